package main

import (
	"fmt"

	"github.com/git-env/git-env/environment/api"
)

type pathCmd struct {
	Env string `arg:"" optional:"" name:"env" help:"The environment."`
}

// Help is the long text of --help.
func (pathCmd) Help() string {
	return `The workspace is mounted if it is not. What is written there belongs to the
environment and is committed with its next exec.`
}

// Run prints the path.
func (c *pathCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	name, err := a.resolve(ctx, c.Env)
	if err != nil {
		return err
	}
	var answer api.PathAnswer
	if err := a.call(ctx, api.MethodPath, api.Path{Caller: a.caller(), Env: name}, &answer); err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.stdout, answer.Path)
	return err
}
