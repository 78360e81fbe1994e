package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/environment/client"
)

type daemonCmd struct {
	Status daemonStatusCmd `cmd:"" help:"Show the daemon of this repository."`
	Stop   daemonStopCmd   `cmd:"" help:"Suspend all environments and stop the daemon."`
}

// Help is the long text of --help.
func (daemonCmd) Help() string {
	return `The daemon is started by the first command that needs it and leaves when nothing
needs it. No work is lost when it ends, in whatever way.`
}

type daemonStatusCmd struct {
	JSON  bool `name:"json" help:"Print a JSON object." xor:"form"`
	Quiet bool `short:"q" help:"Print the process id alone." xor:"form"`
}

// daemonJSON is daemon status --json.
type daemonJSON struct {
	Pid     int    `json:"pid"`
	Version string `json:"version"`
	// Started is RFC 3339 in UTC.
	Started time.Time `json:"started"`
	// Environments it has loaded, Mounts it holds, Execs under way.
	Environments int `json:"environments"`
	Mounts       int `json:"mounts"`
	Execs        int `json:"execs"`
	// FileServerPid is 0 while nothing is mounted; Containerd is the address and
	// version of the containerd in use.
	FileServerPid int    `json:"file_server_pid"`
	Containerd    string `json:"containerd"`
}

// Run asks the daemon how it is.
func (c *daemonStatusCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	var st api.DaemonStatus
	switch running, err := a.askDaemon(ctx, api.MethodDaemonStatus, struct{}{}, &st); {
	case err != nil:
		return err
	case !running:
		return environment.Errorf(environment.ExitFailed, "no daemon is running for this repository").
			WithHint("the next command that needs one starts it")
	}
	if c.JSON {
		return a.jsonLine(daemonJSON{Pid: st.Pid, Version: st.Version, Started: st.Started.UTC(), Environments: st.Envs,
			Mounts: st.Mounts, Execs: st.Execs, FileServerPid: st.FilePid, Containerd: st.Containerd})
	}
	if c.Quiet {
		_, err := fmt.Fprintln(a.stdout, st.Pid)
		return err
	}
	rows := [][]string{
		{"pid", strconv.Itoa(st.Pid)}, {"version", st.Version}, {"started", since(st.Started, time.Now())},
		{"environments", strconv.Itoa(st.Envs)}, {"mounts", strconv.Itoa(st.Mounts)}, {"execs", strconv.Itoa(st.Execs)},
	}
	if st.FilePid != 0 {
		rows = append(rows, []string{"file server", "pid " + strconv.Itoa(st.FilePid)})
	}
	if st.Containerd != "" {
		rows = append(rows, []string{"containerd", st.Containerd})
	}
	return a.table(rows)
}

// askDaemon makes a request of the daemon if one runs.
func (a *app) askDaemon(ctx context.Context, method string, params, result any) (running bool, err error) {
	if err := a.open(ctx); err != nil {
		return false, err
	}
	c, err := client.Dial(ctx, a.repo, client.Options{AnyVersion: true})
	if errors.Is(err, client.ErrNoDaemon) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer c.Close()
	return true, c.Call(ctx, method, params, result, client.Events{Warn: func(w string) { a.warnf("%s", w) }})
}

type daemonStopCmd struct {
	Force bool `help:"Stop running execs too."`
}

// Run stops the daemon and returns when it is gone; that none runs is what was
// wanted.
func (c *daemonStopCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	var st api.DaemonStatus
	running, err := a.askDaemon(ctx, api.MethodDaemonStatus, struct{}{}, &st)
	if err != nil || !running {
		return err
	}
	// Opened before it is asked to leave, so that it is no other's process.
	fd, err := unix.PidfdOpen(st.Pid, 0)
	if err != nil {
		fd = -1
	} else {
		defer unix.Close(fd)
	}
	running, err = a.askDaemon(ctx, api.MethodDaemonStop, api.DaemonStop{Force: c.Force}, nil)
	if err != nil || !running || fd < 0 {
		return err
	}
	return awaitEnd(ctx, fd)
}

// awaitEnd waits for the end of the process that a pidfd stands for.
func awaitEnd(ctx context.Context, pidfd int) error {
	const slice = 200 // milliseconds until the next look whether we were interrupted
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, slice)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return ctx.Err()
}
