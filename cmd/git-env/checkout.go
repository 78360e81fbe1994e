package main

type checkoutCmd struct {
	Env    string `arg:"" optional:"" name:"env" help:"The environment."`
	Branch string `short:"b" placeholder:"branch" help:"Name of the local branch, instead of the environment's name."`
}

// Help is the long text of --help.
func (checkoutCmd) Help() string {
	return `A branch that exists is forwarded when it is only behind, and refused when it has
diverged. What is uncommitted in the workspace is committed first; otherwise the
environment stays as it is.`
}

// Run switches to a local branch.
func (c *checkoutCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
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
	branch := c.Branch
	if branch == "" {
		branch = name
	}
	return t.Checkout(ctx, src, branch)
}
