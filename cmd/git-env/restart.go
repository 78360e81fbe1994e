package main

import (
	"fmt"
	"time"

	"github.com/git-env/git-env/environment/api"
)

type restartCmd struct {
	Env     string        `arg:"" optional:"" name:"env" help:"The environment."`
	Service []string      `arg:"" optional:"" name:"service" help:"Their names; all services when left out."`
	Timeout time.Duration `default:"10s" placeholder:"duration" help:"How long a service has to end by itself (10s)."`
}

// Help is the long text of --help.
func (restartCmd) Help() string {
	return `Starts also those that had ended or were stopped. Returns when all are ready, and
prints their names.`
}

// Run restarts services.
func (c *restartCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	if c.Timeout < 0 {
		return usagef("--timeout cannot be negative")
	}
	env, services, err := a.envAndProcs(ctx, c.Env, c.Service)
	if err != nil {
		return err
	}
	var done api.Restarted
	if err := a.call(ctx, api.MethodRestart, api.Restart{Caller: a.caller(), Env: env, Services: services, Grace: c.Timeout}, &done); err != nil {
		return err
	}
	for _, name := range done.Services {
		if _, err := fmt.Fprintln(a.stdout, name); err != nil {
			return err
		}
	}
	return nil
}
