package main

import (
	"context"
	"fmt"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/environment/integrate"
)

type mergeCmd struct {
	Env      string `arg:"" optional:"" name:"env" help:"The environment."`
	NoFF     bool   `name:"no-ff" help:"Make a merge commit even where the branch could be forwarded." xor:"how"`
	Squash   bool   `help:"Stage the result as if it were one change, and commit nothing." xor:"how"`
	Stash    bool   `help:"Set your uncommitted changes of tracked files aside first and give them back after."`
	Delete   bool   `help:"Delete the environment after a clean merge that was verified."`
	Message  string `short:"m" placeholder:"msg" help:"Message of the merge commit."`
	Into     string `placeholder:"env" help:"Merge into this environment instead of your work tree, which stays as it is."`
	Continue bool   `help:"Finish a merge after its conflicts were resolved." xor:"how"`
	Abort    bool   `help:"Give up a merge that stopped and give back what was there before." xor:"how"`
}

// Help is the long text of --help.
func (mergeCmd) Help() string {
	return `This is 'git merge' with your own configuration and hooks. A conflict ends with exit
code 12 and leaves git's usual state of one. Uncommitted changes and untracked files
(ignored ones too) that are in the way are never touched: the merge is refused, also
with exit code 12.`
}

// Run merges.
func (c *mergeCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	if c.Continue || c.Abort {
		if c.Env != "" || c.Stash || c.Delete || c.Message != "" || c.Into != "" {
			return usagef("--continue and --abort take no other argument")
		}
		if err := a.open(ctx); err != nil {
			return err
		}
		t, err := a.tree()
		if err != nil {
			return err
		}
		if c.Abort {
			return t.MergeAbort(ctx)
		}
		return t.MergeContinue(ctx)
	}
	name, err := a.resolve(ctx, c.Env)
	if err != nil {
		return err
	}
	if c.Into != "" {
		return c.into(ctx, a, name)
	}
	t, err := a.tree()
	if err != nil {
		return err
	}
	src, err := a.source(ctx, name)
	if err != nil {
		return err
	}
	m, err := t.Merge(ctx, src, integrate.MergeOptions{NoFF: c.NoFF, Squash: c.Squash, Stash: c.Stash, Message: c.Message})
	if err != nil {
		return err
	}
	if m.Conflict != nil {
		if c.Delete {
			a.warnf("environment '%s' is merged but not deleted", name)
		}
		return m.Conflict
	}
	if c.Delete {
		return c.delete(ctx, a, name, m)
	}
	return nil
}

// into merges into another environment.
func (c *mergeCmd) into(ctx context.Context, a *app, name string) error {
	if c.Stash {
		return usagef("--stash is about your work tree; --into does not touch it")
	}
	if err := environment.CheckName(c.Into); err != nil {
		return err
	}
	p := api.Merge{Caller: a.caller(), From: name, Into: c.Into, NoFF: c.NoFF, Squash: c.Squash, Message: c.Message}
	var done api.Merged
	err := a.call(ctx, api.MethodMerge, p, &done)
	if err != nil {
		return err
	}
	if done.UpToDate {
		_, err = fmt.Fprintln(a.stdout, "Already up to date.")
	} else {
		_, err = fmt.Fprintf(a.stdout, "Environment %s is now at %.10s.\n", c.Into, done.Tip)
	}
	if err != nil {
		return err
	}
	if c.Delete {
		return c.delete(ctx, a, name, integrate.Merged{Into: done.Tip})
	}
	return nil
}

// delete ends the environment; the daemon looks again whether all of it is in
// the commit that the merge was verified by.
func (c *mergeCmd) delete(ctx context.Context, a *app, name string, m integrate.Merged) error {
	if m.Into == "" {
		return environment.Errorf(environment.ExitFailed, "environment '%s' is not deleted: it could not be verified that all of it was merged", name).
			WithHint("look at the result, commit it, and use 'git env delete --force %s'", name)
	}
	var gone api.Deleted
	if err := a.call(ctx, api.MethodDelete, api.Delete{Caller: a.caller(), Env: name, Into: m.Into}, &gone); err != nil {
		return err
	}
	a.deleted(gone)
	return nil
}
