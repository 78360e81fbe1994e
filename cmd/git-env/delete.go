package main

import (
	"errors"

	"github.com/git-env/git-env/environment/api"
)

type deleteCmd struct {
	Env   []string `arg:"" name:"env" help:"The environments."`
	Force bool     `help:"Delete also what is unmerged, uncommitted or running; it is named."`
	JSON  bool     `name:"json" help:"Print one JSON object a line for each that was deleted: name, tip, destroyed."`
}

// Help is the long text of --help.
func (deleteCmd) Help() string {
	return `Deletes branch, workspace and container. Without --force, an environment with work
that HEAD does not contain is refused. The records stay in the notes.`
}

// Run deletes one after the other; a failure does not keep the others.
func (c *deleteCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	if err := a.open(ctx); err != nil {
		return err
	}
	head, err := a.head(ctx)
	if err != nil {
		return err
	}
	var failed error
	for _, given := range c.Env {
		if ctx.Err() != nil {
			return errors.Join(failed, ctx.Err())
		}
		var gone api.Deleted
		name, err := a.resolve(ctx, given)
		if err == nil {
			err = a.call(ctx, api.MethodDelete, api.Delete{Caller: a.caller(), Env: name, Force: c.Force, Into: head}, &gone)
		}
		if err != nil {
			if failed != nil {
				a.report(failed)
			}
			failed = err
			continue
		}
		if c.JSON {
			if err := a.jsonLine(gone); err != nil {
				return err
			}
		}
		a.deleted(gone)
	}
	return failed
}

// deleted says what went, as git branch -d does, and what went with it.
func (a *app) deleted(gone api.Deleted) {
	for _, d := range gone.Destroyed {
		a.warnf("destroyed: %s", d)
	}
	if gone.Tip == "" {
		a.say("", "Deleted environment "+gone.Name+".")
		return
	}
	a.say("", "Deleted environment "+gone.Name+" (was "+shortID(gone.Tip)+").")
}
