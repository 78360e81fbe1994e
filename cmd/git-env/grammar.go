package main

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/kong"
)

// grammar lists the commands in the order in which help shows them.
type grammar struct {
	Create   createCmd   `cmd:"" help:"Create an environment from a commit."`
	Setup    setupCmd    `cmd:"" help:"Run what prepares an environment and has not succeeded yet."`
	Run      runCmd      `cmd:"" help:"Run a command in an environment, commit what it changed and record it."`
	Shell    shellCmd    `cmd:"" help:"Open an interactive shell in an environment."`
	Ps       psCmd       `cmd:"" help:"List the background processes and services of an environment."`
	Logs     logsCmd     `cmd:"" help:"Show what a background process or service printed."`
	Stop     stopCmd     `cmd:"" help:"End background processes and services."`
	Restart  restartCmd  `cmd:"" help:"End services and start them anew."`
	Commit   commitCmd   `cmd:"" help:"Commit what is uncommitted in an environment."`
	Log      logCmd      `cmd:"" help:"Show the commits and execs of an environment."`
	Show     showCmd     `cmd:"" help:"Show the record of one exec."`
	Status   statusCmd   `cmd:"" help:"Show where an environment stands."`
	List     listCmd     `cmd:"" help:"List the environments of this repository."`
	Diff     diffCmd     `cmd:"" help:"Show what an environment changed."`
	Path     pathCmd     `cmd:"" help:"Print the path of an environment's workspace on this machine."`
	Hydrate  hydrateCmd  `cmd:"" help:"Fetch the content of an environment's files that was not read yet."`
	Checkout checkoutCmd `cmd:"" help:"Switch to a local branch at an environment's work."`
	Merge    mergeCmd    `cmd:"" help:"Merge an environment into the current branch."`
	Apply    applyCmd    `cmd:"" help:"Apply an environment's whole change to the work tree, staged, without a commit."`
	Fork     forkCmd     `cmd:"" help:"Copy an environment with everything in it."`
	Layer    layerCmd    `cmd:"" help:"List the layers of workspaces, or export one."`
	Delete   deleteCmd   `cmd:"" help:"Delete environments."`
	Config   configCmd   `cmd:"" help:"Read and change the settings of environments."`
	Trust    trustCmd    `cmd:"" help:"Allow what the repository's own files ask of this machine."`
	Daemon   daemonCmd   `cmd:"" help:"Show or stop this repository's daemon."`
	Doctor   doctorCmd   `cmd:"" help:"Check what this machine needs for environments."`
	Version  versionCmd  `cmd:"" help:"Print the version."`
	Man      manCmd      `cmd:"" hidden:"" help:"Write the manual pages into a directory."`
}

// grammarFor is the part of the grammar that concerns a command line: to build all
// of it takes as long as the rest of a short command. What names no command by its
// full name gets the whole.
func grammarFor(args []string) any {
	if len(args) > 0 {
		whole := reflect.TypeFor[grammar]()
		for i := range whole.NumField() {
			if f := whole.Field(i); strings.ToLower(f.Name) == args[0] {
				return reflect.New(reflect.StructOf([]reflect.StructField{f})).Interface()
			}
		}
	}
	return &grammar{}
}

// newParser makes a parser of a pointer to a grammar or a part of one.
func newParser(g any) (*kong.Kong, error) {
	return kong.New(g, kong.Name("git env"), kong.NoDefaultHelp(),
		kong.Description("Environments: Git branches you can run."),
		kong.WithHyphenPrefixedParameters(true),
		kong.Exit(func(int) {})) // nothing of kong's may end the program
}

// restTaker is a command whose arguments after "--" are its own affair; it
// returns how they look in its usage line.
type restTaker interface{ restUsage() string }

// allTaker is a command that takes its arguments apart itself, because they are
// git's.
type allTaker interface{ takesAll() }

// parse turns arguments into what is to be run; nil when there is nothing left
// to do.
func (a *app) parse(args []string) (func() error, error) {
	parser, err := newParser(grammarFor(args))
	if err != nil {
		return nil, fmt.Errorf("broken grammar: %w", err)
	}
	node, err := findNode(parser.Model.Node, args)
	if err != nil {
		return nil, err
	}
	before, rest, split := cutRest(args)
	if wantsHelp(node, before) {
		return func() error { return printHelp(a.stdout, node) }, nil
	}
	if len(args) == 0 {
		return nil, &usageError{msg: "no command given", usage: usageLines(node, 0), hint: "'git env -h' lists the commands"}
	}
	target := node.Target.Addr().Interface()
	switch target.(type) {
	case allTaker:
		a.rest = args[1:]
		args = append([]string{args[0], "--"}, args[1:]...)
	case restTaker:
		args, a.rest, a.split = before, rest, split
	}
	_, all := target.(allTaker)
	if i := slices.IndexFunc(args, func(s string) bool { return !utf8.ValidString(s) }); i >= 0 && !all {
		return nil, usagef("%q is not UTF-8", args[i])
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		return nil, parseError(node, target, a.split, err)
	}
	if !all {
		if err := emptyValue(ctx); err != nil {
			return nil, err
		}
	}
	return func() error {
		err := ctx.Run(a)
		if ue, ok := err.(*usageError); ok && ue.usage == "" {
			ue.usage = usageLines(node, 0)
		}
		return err
	}, nil
}

// emptyValue refuses an argument or option that was given and is empty: most
// often a variable that was not set, and what is left out has a meaning.
func emptyValue(ctx *kong.Context) error {
	for _, p := range ctx.Path {
		value := p.Positional
		name := ""
		switch {
		case p.Flag != nil:
			value, name = p.Flag.Value, "--"+p.Flag.Name
		case value != nil:
			name = "<" + value.Name + ">"
		default:
			continue
		}
		if value.Tag.Has("maybeempty") {
			continue
		}
		given := value.Target.Interface()
		empty := given == ""
		if list, ok := given.([]string); ok {
			empty = slices.Contains(list, "")
		}
		if empty {
			return usagef("%s is empty", name).withHint("leave it out, or give it a value")
		}
	}
	return nil
}

// cutRest splits arguments at the first "--".
func cutRest(args []string) (before, rest []string, split bool) {
	if i := slices.Index(args, "--"); i >= 0 {
		return args[:i], args[i+1:], true
	}
	return args, nil, false
}

func wantsHelp(node *kong.Node, before []string) bool {
	if slices.Contains(before, "--help") {
		return true
	}
	if len(before) == 1 && before[0] == "help" && node.Type == kong.ApplicationNode {
		return true
	}
	return slices.Contains(before, "-h")
}

// findNode descends to the command that the arguments name.
func findNode(node *kong.Node, args []string) (*kong.Node, error) {
	for _, arg := range args {
		if len(node.Children) == 0 {
			break
		}
		if strings.HasPrefix(arg, "-") || (arg == "help" && node.Parent == nil) {
			break
		}
		i := slices.IndexFunc(node.Children, func(c *kong.Node) bool { return c.Name == arg })
		if i < 0 {
			return nil, &usageError{msg: fmt.Sprintf("'%s' is not a %s command", arg, fullName(node)),
				hint: fmt.Sprintf("'%s -h' lists the commands", fullName(node))}
		}
		node = node.Children[i]
	}
	return node, nil
}

func parseError(node *kong.Node, target any, split bool, err error) error {
	e := &usageError{msg: err.Error(), usage: usageLines(node, 0)}
	if _, ok := target.(*runCmd); ok && !split {
		e.hint = "the command to run comes after '--': git env run [<env>] -- <command>"
	}
	return e
}
