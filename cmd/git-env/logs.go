package main

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/environment/client"
)

type logsCmd struct {
	Env     string `arg:"" optional:"" name:"env" help:"The environment."`
	Process string `arg:"" optional:"" name:"process" help:"Its name, its id or the beginning of that; the only one that runs when left out."`
	Follow  bool   `short:"f" help:"Go on with what it prints until it ends."`
	Lines   int    `short:"n" name:"lines" placeholder:"number" default:"-1" help:"Begin with this many of the last lines."`
	Since   string `placeholder:"time" help:"Leave out what was printed before: a duration ago ('10m') or a time ('2026-01-31T18:20:11Z')."`
}

// Help is the long text of --help.
func (logsCmd) Help() string {
	return `What the process wrote to its standard output comes on standard output, what it
wrote to its standard error on standard error. Of a long output the first and the
last 4 MiB are kept, and a warning says how much is missing between them.`
}

// Run shows the log of one process.
func (c *logsCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	since, err := sinceTime(c.Since, time.Now())
	if err != nil {
		return err
	}
	var procs []string
	if c.Process != "" {
		procs = append(procs, c.Process)
	}
	env, procs, err := a.envAndProcs(ctx, c.Env, procs)
	if err != nil {
		return err
	}
	if len(procs) > 1 {
		return usagef("'%s' is no environment, and 'logs' shows one process", c.Env)
	}
	p, err := a.store.FindProcess(env, strings.Join(procs, ""))
	if err != nil {
		return err
	}
	if !c.Follow || !p.Running() {
		return a.store.Logs(env, p.ID, environment.LogOptions{Lines: c.Lines, Since: since}, a.stdout, a.stderr,
			func(w string) { a.warnf("%s", w) })
	}
	conn, err := a.dial(ctx, true)
	if err != nil {
		return err
	}
	defer conn.Close()
	// Who reads what we print may go away: then nothing is to be followed.
	return conn.Stream(ctx, api.MethodLogs, api.Logs{Env: env, Proc: p.ID, Lines: c.Lines, Since: since}, nil,
		&endWriter{a.stdout, cancel}, &endWriter{a.stderr, cancel},
		client.Events{Warn: func(w string) { a.warnf("%s", w) }})
}

// endWriter calls end when its writer fails.
type endWriter struct {
	w   io.Writer
	end func()
}

func (e *endWriter) Write(p []byte) (int, error) {
	n, err := e.w.Write(p)
	if err != nil {
		e.end()
	}
	return n, err
}

// sinceTime reads a point in time, "" the beginning of all.
func sinceTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, usagef("--since '%s' is neither a duration such as 10m nor a time such as 2026-01-31T18:20:11Z", text)
	}
	return t, nil
}
