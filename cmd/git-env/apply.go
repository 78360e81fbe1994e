package main

import (
	"fmt"

	"github.com/git-env/git-env/environment/integrate"
)

type applyCmd struct {
	Env   string `arg:"" optional:"" name:"env" help:"The environment."`
	Stash bool   `help:"Set your uncommitted changes of tracked files aside first and give them back after." xor:"how"`
	Abort bool   `help:"Give back index and files as they were before the last apply, with or without conflicts." xor:"how"`
}

func (*applyCmd) restUsage() string { return "[-- <path>…]" }

// Help is the long text of --help.
func (applyCmd) Help() string {
	return `The change is merged three-way, as by 'git cherry-pick --no-commit'. A conflict ends
with exit code 12. Uncommitted changes and untracked files (ignored ones too) that
are in the way are never touched: the apply is refused, also with exit code 12.

--abort works until HEAD moves or an applied file is edited.`
}

// Run applies.
func (c *applyCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	if c.Abort {
		if c.Env != "" || len(a.rest) > 0 {
			return usagef("--abort takes no other argument")
		}
		if err := a.open(ctx); err != nil {
			return err
		}
		t, err := a.tree()
		if err != nil {
			return err
		}
		return t.ApplyAbort(ctx)
	}
	name, err := a.resolve(ctx, c.Env)
	if err != nil {
		return err
	}
	t, err := a.tree()
	if err != nil {
		return err
	}
	src, err := a.source(ctx, name)
	if err != nil {
		return err
	}
	done, err := t.Apply(ctx, src, integrate.ApplyOptions{Stash: c.Stash, Paths: a.rest})
	if err != nil {
		return err
	}
	if done.Changed == 0 {
		_, err := fmt.Fprintln(a.stdout, "Already up to date.")
		return err
	}
	a.tipf("%s staged; 'git env apply --abort' takes them back", count(done.Changed, "path"))
	return done.Conflict
}
