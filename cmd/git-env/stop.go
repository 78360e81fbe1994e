package main

import (
	"fmt"
	"time"

	"github.com/git-env/git-env/environment/api"
)

type stopCmd struct {
	Env     string        `arg:"" optional:"" name:"env" help:"The environment."`
	Process []string      `arg:"" optional:"" name:"process" help:"Their names, ids or beginnings of ids; the only one that runs when left out."`
	Timeout time.Duration `default:"10s" placeholder:"duration" help:"How long a process has to end by itself (10s)."`
	All     bool          `help:"End all background processes of the environment."`
}

// Help is the long text of --help.
func (stopCmd) Help() string {
	return `A process is sent TERM, with its process group; once it has ended, what else it has
started is sent TERM too; what is there after the timeout is killed. What it changed
is committed and its record made before this command returns. Prints the ids of the
processes that were ended; one that had ended before is no error.`
}

// Run ends processes.
func (c *stopCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	if c.Timeout < 0 {
		return usagef("--timeout cannot be negative")
	}
	env, procs, err := a.envAndProcs(ctx, c.Env, c.Process)
	if err != nil {
		return err
	}
	if c.All && len(procs) > 0 {
		return usagef("--all stands for every process; there is '%s' too", procs[0])
	}
	var done api.Stopped
	p := api.Stop{Caller: a.caller(), Env: env, Procs: procs, All: c.All, Grace: c.Timeout}
	if err := a.call(ctx, api.MethodStop, p, &done); err != nil {
		return err
	}
	for _, w := range done.Warnings {
		a.warnf("%s", w)
	}
	for _, id := range done.Procs {
		if _, err := fmt.Fprintln(a.stdout, id); err != nil {
			return err
		}
	}
	for _, id := range done.Idle {
		a.hintf("process %s had ended already", id)
	}
	return nil
}
