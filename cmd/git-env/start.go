package main

import (
	"fmt"

	"github.com/git-env/git-env/environment/api"
)

// start starts a background process and prints its id. One that has ended before
// that is reported as run would, with what it said.
func (a *app) start(env string, p api.Run) error {
	ctx, stop := a.interruptible()
	defer stop()
	name, err := a.resolve(ctx, env)
	if err != nil {
		return err
	}
	p.Env, p.Caller = name, a.caller()
	var started api.Started
	if err := a.call(ctx, api.MethodStart, p, &started); err != nil {
		return ours(err)
	}
	if _, err := fmt.Fprintln(a.stdout, started.Exec); err != nil {
		return err
	}
	ran := started.Ran
	if ran == nil {
		return nil
	}
	for _, w := range ran.Warnings {
		a.warnf("%s", w)
	}
	if ran.Exit == 0 {
		a.hintf("it has ended already; 'git env logs %s %s' shows what it printed", name, started.Exec)
		return nil
	}
	if _, err := a.stderr.Write(started.Tail); err != nil {
		return err
	}
	if n := len(started.Tail); n > 0 && started.Tail[n-1] != '\n' {
		fmt.Fprintln(a.stderr)
	}
	a.say("error: ", fmt.Sprintf("the process ended at once (%s)", either(ran.Signal == "", fmt.Sprintf("exit %d", ran.Exit), "signal "+ran.Signal)))
	return exitStatus(ran.Exit)
}
