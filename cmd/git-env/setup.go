package main

import (
	"context"
	"io"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/environment/client"
)

type setupCmd struct {
	Env string `arg:"" optional:"" name:"env" help:"The environment."`
}

// Help is the long text of --help.
func (setupCmd) Help() string {
	return `The setup commands of the configuration (env.setup) prepare the root filesystem, the
install commands (env.install) the workspace. 'git env create' runs them; this runs
what it left out, and goes on with the one that failed. When all have succeeded there
is nothing to do. What they print goes to the standard error; each is recorded like
any exec. Nothing else can run in the environment meanwhile.`
}

// Run prepares an environment.
func (c *setupCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	name, err := a.resolve(ctx, c.Env)
	if err != nil {
		return err
	}
	return a.setup(ctx, name)
}

// setup has the daemon run the steps, and tells of one that failed.
func (a *app) setup(ctx context.Context, name string) error {
	c, err := a.dial(ctx, true)
	if err != nil {
		return err
	}
	defer c.Close()
	bar := a.progress()
	defer bar.end()
	out := &afterBar{bar, a.stderr}
	var done api.SetUp
	p := api.Setup{Caller: a.caller(), Env: name}
	err = c.Stream(ctx, api.MethodSetup, p, &done, out, out, client.Events{Progress: bar.show, Warn: bar.warn})
	bar.end()
	switch {
	case ctx.Err() != nil:
		a.hintf("environment '%s' is there; 'git env setup %s' goes on with its setup", name, name)
		return ctx.Err()
	case err != nil:
		return err
	case done.Failed > 0:
		return environment.Errorf(environment.ExitFailed, "the setup of environment '%s' failed: step %d of %d '%s', %s",
			name, done.Failed, done.Steps, done.Command, done.Ending).
			WithHint("'git env show %s %s --output' shows what it printed, 'git env setup %s' tries it again", name, done.Exec, name)
	}
	return nil
}

// afterBar takes the bar away before anything is printed.
type afterBar struct {
	bar *progress
	w   io.Writer
}

func (o *afterBar) Write(p []byte) (int, error) {
	o.bar.end()
	return o.w.Write(p)
}

// setupJSON is the preparation of an environment as part of another object.
type setupJSON struct {
	// State is pending, skipped, running, failed, interrupted or done.
	State string `json:"state"`
	Steps int    `json:"steps"`
	// Step counts from 1: the one that runs, failed or comes next. What follows is
	// about it.
	Step    int    `json:"step,omitempty"`
	Stage   string `json:"stage,omitempty"`
	Command string `json:"command,omitempty"`
	Exec    string `json:"exec,omitempty"`
	// Summary says it all in words.
	Summary string `json:"summary"`
}

func setupOf(v *environment.SetupView) *setupJSON {
	if v == nil {
		return nil
	}
	return &setupJSON{State: v.State, Steps: v.Steps, Step: v.Step, Stage: v.Stage, Command: v.Command, Exec: v.Exec, Summary: v.String()}
}
