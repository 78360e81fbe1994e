package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

const (
	programName = "git env"
	lineWidth   = 80
)

// fullName is how a command is called: "git env daemon stop".
func fullName(node *kong.Node) string {
	if node.Parent == nil {
		return programName
	}
	return fullName(node.Parent) + " " + node.Name
}

// shown returns the subcommands that help lists.
func shown(node *kong.Node) []*kong.Node {
	var out []*kong.Node
	for _, c := range node.Children {
		if !c.Hidden {
			out = append(out, c)
		}
	}
	return out
}

// usageWords are the parts of a usage line after the command's name, none of
// which is to be broken.
func usageWords(node *kong.Node) []string {
	if len(node.Children) > 0 {
		return []string{"<command>", "[<args>]"}
	}
	var words []string
	for _, p := range node.Positional {
		words = append(words, argUsage(p))
	}
	seen := map[string]bool{}
	for _, f := range node.Flags {
		if f.Hidden || seen[f.Name] {
			continue
		}
		words = append(words, "["+flagUsage(node, f, seen)+"]")
	}
	if r, ok := node.Target.Addr().Interface().(restTaker); ok {
		words = append(words, r.restUsage())
	}
	return words
}

// flagUsage shows a flag with those it excludes: "--no-ff | --squash".
func flagUsage(node *kong.Node, f *kong.Flag, seen map[string]bool) string {
	alts := []string{flagForm(f)}
	for _, other := range node.Flags {
		if other != f && len(f.Xor) > 0 && len(other.Xor) > 0 && other.Xor[0] == f.Xor[0] {
			seen[other.Name] = true
			alts = append(alts, flagForm(other))
		}
	}
	return strings.Join(alts, " | ")
}

func flagForm(f *kong.Flag) string {
	form := "--" + f.Name
	if f.Short != 0 {
		form = "-" + string(f.Short)
	}
	if v := flagValue(f); v != "" {
		form += " " + v
	}
	if f.IsSlice() {
		form += "…"
	}
	return form
}

// flagValue is how the value of a flag is shown, "" for one without.
func flagValue(f *kong.Flag) string {
	if f.IsBool() {
		return ""
	}
	p := f.PlaceHolder
	if p == "" {
		p = f.Name
	}
	if strings.ContainsAny(p, "<=") {
		return p
	}
	return "<" + p + ">"
}

func argUsage(p *kong.Positional) string {
	form := "<" + p.Name + ">"
	if p.IsCumulative() {
		form += "…"
	}
	if !p.Required {
		form = "[" + form + "]"
	}
	return form
}

// usageLines is the usage of a command, wrapped and aligned the way git does.
func usageLines(node *kong.Node, width int) string {
	if width == 0 {
		width = lineWidth
	}
	first := "usage: " + fullName(node)
	indent := strings.Repeat(" ", len(first))
	var b strings.Builder
	line := first
	for _, w := range usageWords(node) {
		if len(line)+1+len(w) > width && line != first && line != indent {
			b.WriteString(line + "\n")
			line = indent
		}
		line += " " + w
	}
	b.WriteString(line)
	return b.String()
}

// printHelp writes what -h and --help show.
func printHelp(w io.Writer, node *kong.Node) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n%s\n", usageLines(node, 0), node.Help)
	if len(node.Children) > 0 {
		b.WriteString("\nCommands:\n")
	}
	for _, c := range shown(node) {
		fmt.Fprintf(&b, "    %-10s %s\n", c.Name, strings.TrimSuffix(c.Help, "."))
	}
	if node.Parent == nil {
		fmt.Fprintf(&b, "\n'%s <command> --help' tells more. Where <env> is left out, it is $GIT_ENV, else the\n"+
			"environment whose workspace this directory is in, else the only one.\n", programName)
	}
	if len(node.Flags) > 0 {
		b.WriteString("\n")
	}
	for _, f := range node.Flags {
		if !f.Hidden {
			helpFlag(&b, f)
		}
	}
	if node.Detail != "" {
		fmt.Fprintf(&b, "\n%s\n", strings.TrimSpace(node.Detail))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// helpFlag writes one flag in two columns.
func helpFlag(b *strings.Builder, f *kong.Flag) {
	const column = 26
	left := "    " + flagNames(f)
	if len(left) > column-2 {
		fmt.Fprintf(b, "%s\n", left)
		left = ""
	}
	for i, line := range wrap(f.Help, lineWidth-column) {
		if i > 0 {
			left = ""
		}
		fmt.Fprintf(b, "%-*s%s\n", column, left, line)
	}
}

func flagNames(f *kong.Flag) string {
	names := "--" + f.Name
	if f.Short != 0 {
		names = "-" + string(f.Short) + ", " + names
	}
	if v := flagValue(f); v != "" {
		names += " " + v
	}
	return names
}

func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, w := range strings.Fields(text) {
		if line != "" && len(line)+1+len(w) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += w
	}
	return append(lines, line)
}
