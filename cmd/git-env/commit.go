package main

import (
	"fmt"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/api"
)

type commitCmd struct {
	Env     string `arg:"" optional:"" name:"env" help:"The environment."`
	Message string `short:"m" placeholder:"msg" help:"The commit's message."`
}

// Help is the long text of --help.
func (commitCmd) Help() string {
	return `Commits what background processes, or you, wrote into the workspace since the last
exec, by the same rules as 'git env run'. Prints the commit's id. Fails when there
is nothing to commit, as git does.`
}

// Run commits.
func (c *commitCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	name, err := a.resolve(ctx, c.Env)
	if err != nil {
		return err
	}
	var done api.Committed
	if err := a.call(ctx, api.MethodCommit, api.Commit{Caller: a.caller(), Env: name, Message: c.Message}, &done); err != nil {
		return err
	}
	for _, w := range done.Warnings {
		a.warnf("%s", w)
	}
	if done.Commit == "" {
		return environment.Errorf(environment.ExitFailed, "nothing to commit in environment '%s'", name)
	}
	_, err = fmt.Fprintln(a.stdout, done.Commit)
	return err
}
