package main

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/git-env/git-env/environment/api"
)

type runCmd struct {
	Env      string        `arg:"" optional:"" name:"env" help:"The environment."`
	Message  string        `short:"m" placeholder:"msg" help:"Subject of the commit, instead of the command."`
	Workdir  string        `short:"w" placeholder:"dir" help:"Where the command starts, instead of /workspace; a relative path is below it."`
	Var      []string      `short:"e" name:"env" sep:"none" placeholder:"<name>[=<value>]" help:"Set a variable for the command; a name alone takes your own value. May be repeated."`
	Timeout  time.Duration `placeholder:"duration" help:"End the command and everything it started after this long ('90s', '1h30m')."`
	NoCommit bool          `help:"Leave what it changed uncommitted in the workspace, for the next commit; it is recorded all the same."`
	Network  string        `placeholder:"mode" enum:",full,none,allow,host" default:"" help:"Network that the command has: full, none, allow or host."`
	Ports    []string      `short:"p" name:"publish" sep:"none" placeholder:"[<host port>:]<port>" help:"Publish a port inside on this machine's loopback address. May be repeated."`
	Detach   bool          `short:"d" help:"Start it in the background and return at once; print its id."`
	Name     string        `placeholder:"name" help:"With -d: what 'ps', 'logs' and 'stop' may call it."`
	Alone    bool          `name:"no-services" help:"Do not start services that are not up, nor wait for them."`
	Line     string        `short:"c" name:"command" placeholder:"line" help:"Run a line of shell instead of a command."`
}

func (*runCmd) restUsage() string { return "-- <command> [<arg>…]" }

// Help is the long text of --help.
func (runCmd) Help() string {
	return `The arguments after '--' are run as they are, without a shell. Input, output and
error stream live and stay apart; when all three are terminals, the command has one
too. When it has ended, what it changed becomes one commit, and the command, how it
ended and what it printed are recorded (see 'git env log').

With -p a port inside is at a port of 127.0.0.1 and ::1 on this machine, which is
printed. It stays the same and is there whenever the environment's container runs.
--network gives the command another network than env.network says: none, full, allow
(what env.allow lists) or host (this machine's own).

With -d the command has no input, and what it changes is committed with the next
exec, by 'git env commit', and when it ends; then it is recorded too. One that ends
within a fifth of a second is reported: with its exit code and what it said. It ends
with the environment's container, at the latest when the daemon does.

The exit code is the command's own; 124 when --timeout was over, 125 when git env
failed, 126 when the command cannot be executed, 127 when it was not found.`
}

// Run runs one exec.
func (c *runCmd) Run(a *app) error {
	p, err := c.params(a)
	if err != nil {
		return err
	}
	if err := c.publish(a); err != nil {
		return err
	}
	if c.Detach {
		return a.start(c.Env, p)
	}
	return a.session(c.Env, p)
}

// publish publishes the ports before the command starts, which then finds the
// place taken care of.
func (c *runCmd) publish(a *app) error {
	if len(c.Ports) == 0 {
		return nil
	}
	ctx, stop := a.interruptible()
	defer stop()
	name, err := a.resolve(ctx, c.Env)
	if err != nil {
		return err
	}
	return a.publish(ctx, name, c.Ports)
}

// params checks the command line.
func (c *runCmd) params(a *app) (api.Run, error) {
	p := api.Run{Args: a.rest, Message: c.Message, Workdir: c.Workdir, Timeout: c.Timeout, Network: c.Network, Name: c.Name, NoCommit: c.NoCommit, NoServices: c.Alone}
	switch {
	case c.NoCommit && c.Detach:
		return p, usagef("--no-commit is for commands that are waited for; it does not go with -d")
	case c.NoCommit && c.Message != "":
		return p, usagef("-m is for the commit; it does not go with --no-commit")
	case c.Name != "" && !c.Detach:
		return p, usagef("--name is for background processes: it goes with -d")
	case c.Line != "" && len(a.rest) > 0:
		return p, usagef("-c takes one line of shell; there is a command after '--' too")
	case c.Line != "":
		p.Args, p.Display = []string{"sh", "-c", c.Line}, c.Line
	case len(a.rest) == 0:
		return p, usagef("no command given").
			withHint("the command to run comes after '--': git env run [<env>] -- <command>")
	case a.rest[0] == "":
		return p, usagef("the command is empty")
	}
	if c.Timeout < 0 {
		return p, usagef("--timeout cannot be negative")
	}
	for _, v := range c.Var {
		name, _, given := strings.Cut(v, "=")
		if name == "" || strings.ContainsAny(v, "\x00") {
			return p, usagef("'-e %s' names no variable", v)
		}
		if !given {
			value, set := a.lookup(name)
			if !set {
				continue
			}
			v = name + "=" + value
		}
		p.Vars = append(p.Vars, v)
	}
	return p, onlyUTF8(slices.Concat(p.Vars, p.Args))
}

// onlyUTF8 refuses what would reach the command as something else: a container's
// configuration is JSON, which cannot hold other bytes.
func onlyUTF8(words []string) error {
	for _, w := range words {
		if !utf8.ValidString(w) {
			return usagef("%q cannot be passed to a container: it is not UTF-8", w).
				withHint("pass it on standard input, or in a script")
		}
	}
	return nil
}

func (a *app) lookup(name string) (string, bool) {
	for i := len(a.environ) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(a.environ[i], name+"="); ok {
			return v, true
		}
	}
	return "", false
}

type shellCmd struct {
	Env string `arg:"" optional:"" name:"env" help:"The environment."`
}

// Help is the long text of --help.
func (shellCmd) Help() string {
	return `Like 'git env run' with the best shell that the container has: what is changed in
it is committed, and what it printed is recorded, when it ends.`
}

// Run runs a shell.
func (c *shellCmd) Run(a *app) error { return a.session(c.Env, api.Run{Shell: true}) }
