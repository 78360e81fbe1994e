package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/git-env/git-env/environment"
)

type manCmd struct {
	Dir string `arg:"" name:"dir" help:"Where to write the pages."`
}

// Run writes git-env.1 and one page for each command, from the same grammar as
// --help. The same grammar makes the same bytes.
func (c *manCmd) Run(_ *app) error {
	parser, err := newParser(&grammar{})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return environment.Errorf(environment.ExitFailed, "cannot make the directory: %w", err)
	}
	root := parser.Model.Node
	pages := map[string]string{"git-env.1": overviewPage(root)}
	for _, cmd := range shown(root) {
		pages["git-env-"+cmd.Name+".1"] = commandPage(cmd)
	}
	for name, text := range pages {
		if err := os.WriteFile(filepath.Join(c.Dir, name), []byte(text), 0o644); err != nil {
			return environment.Errorf(environment.ExitFailed, "cannot write the page: %w", err)
		}
	}
	return nil
}

// roff quotes text for a manual page.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "…", "...").Replace(s)
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	return s
}

// page collects a manual page.
type page struct{ strings.Builder }

func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *page) title(name, about string) {
	p.line(`.TH "%s" "1" "" "git env" "Git Manual"`, strings.ToUpper(roff(name)))
	p.line(".SH NAME")
	p.line(`%s \- %s`, roff(name), roff(strings.TrimSuffix(about, ".")))
}

// text writes paragraphs; an indented line stands as it is.
func (p *page) text(s string) {
	literal := false
	for _, l := range strings.Split(strings.TrimSpace(s), "\n") {
		indented := strings.HasPrefix(l, "    ")
		if indented != literal {
			p.line("%s", either(indented, ".nf", ".fi"))
			literal = indented
		}
		if l == "" {
			p.line(".PP")
			continue
		}
		p.line("%s", roff(l))
	}
	if literal {
		p.line(".fi")
	}
}

func (p *page) synopsis(node *kong.Node) {
	p.line(".nf")
	text := strings.TrimPrefix(usageLines(node, lineWidth-7), "usage: ")
	for _, l := range strings.Split(text, "\n") {
		p.line("%s", roff(strings.TrimPrefix(l, "       ")))
	}
	p.line(".fi")
}

func (p *page) flags(flags []*kong.Flag) {
	for _, f := range flags {
		if f.Hidden {
			continue
		}
		p.line(".TP")
		p.line(`.B "%s"`, strings.ReplaceAll(roff(flagNames(f)), `"`, `\(dq`))
		p.line("%s", roff(f.Help))
	}
}

// commandPage is the page of one command, its subcommands included.
func commandPage(node *kong.Node) string {
	p := &page{}
	p.title("git-env-"+node.Name, lowerFirst(node.Help))
	p.line(".SH SYNOPSIS")
	leaves := shown(node)
	if len(leaves) == 0 {
		p.synopsis(node)
	}
	for _, l := range leaves {
		p.synopsis(l)
	}
	p.line(".SH DESCRIPTION")
	p.text(node.Help)
	if node.Detail != "" {
		p.line(".PP")
		p.text(node.Detail)
	}
	p.arguments(node)
	for _, l := range leaves {
		p.line(".SH %s", strings.ToUpper(l.Name))
		p.text(l.Help)
		p.flags(l.Flags)
	}
	p.line(".SH SEE ALSO")
	p.line(`\fBgit\-env\fR(1)`)
	return p.String()
}

func (p *page) arguments(node *kong.Node) {
	if len(node.Flags)+len(node.Positional) == 0 {
		return
	}
	p.line(".SH OPTIONS")
	for _, arg := range node.Positional {
		p.line(".TP")
		p.line(`.B "<%s>%s"`, roff(arg.Name), either(arg.IsCumulative(), "...", ""))
		p.line("%s", roff(arg.Help))
	}
	p.flags(node.Flags)
}

// overviewPage is git-env.1, which "git env --help" shows.
func overviewPage(root *kong.Node) string {
	p := &page{}
	p.title("git-env", "environments: Git branches you can run")
	p.line(".SH SYNOPSIS")
	p.line(".nf")
	p.line("%s", roff("git env <command> [<args>]"))
	p.line(".fi")
	p.line(".SH DESCRIPTION")
	p.text(`An environment is a branch that you can run: the branch env/<name>, a workspace that
shows it, a container whose /workspace that is, and a record of every command that
ran. Each command's changes become one commit.

Where <env> is left out, it is $GIT_ENV, else the environment whose workspace the
current directory is in, else the only one; otherwise the command is refused and the
candidates are listed.`)
	p.line(".SH COMMANDS")
	for _, c := range shown(root) {
		p.line(".TP")
		p.line(`\fBgit\-env\-%s\fR(1)`, roff(c.Name))
		p.line("%s", roff(c.Help))
	}
	p.line(".SH EXIT CODES")
	for _, row := range exitCodes() {
		p.line(".TP")
		p.line(`.B "%s"`, row[0])
		p.line("%s", roff(row[1]))
	}
	p.line(".SH ENVIRONMENT")
	p.line(".TP")
	p.line(".B GIT_ENV")
	p.line("The environment to use when none is named.")
	p.line(".SH SEE ALSO")
	p.line(`\fBgit\fR(1), \fBgit\-worktree\fR(1), \fBgit\-notes\fR(1)`)
	return p.String()
}

func exitCodes() [][2]string {
	return [][2]string{
		{"0", "Done."},
		{"1", "The operation failed."},
		{"10", "No such environment."},
		{"11", "It exists already, is busy or locked."},
		{"12", "A conflict, or uncommitted work in the way."},
		{"20", "The machine lacks something; the hint names the package, 'git env doctor' checks all."},
		{"124, 125, 126, 127", "Of run and shell: the time was over; git env failed; the command cannot be executed; it was not found. Other codes are the command's own."},
		{"128", "Not a repository, or damaged state."},
		{"129", "A wrong command line, or it is not clear which environment is meant."},
		{"130, 143", "Interrupted."},
	}
}

func lowerFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}
