package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/git-env/git-env/environment"
)

type psCmd struct {
	Env   string `arg:"" optional:"" name:"env" help:"The environment; all of them when it is not clear which."`
	JSON  bool   `name:"json" help:"Print one JSON object a line." xor:"form"`
	Quiet bool   `short:"q" help:"Print the ids alone." xor:"form"`
}

// Help is the long text of --help.
func (psCmd) Help() string {
	return `Columns: id, name, state, when it was started, its pid inside, command; services have
their address and ports between the last two. Of those
that have ended the last ten are listed; the records of all are in 'git env log'.
Nothing is started, mounted or written.`
}

// processJSON is one line of ps --json.
type processJSON struct {
	// ID is that of the exec, Env the environment.
	ID  string `json:"id"`
	Env string `json:"env"`
	// Kind is process or service.
	Kind string `json:"kind"`
	// Name is what it was called with --name, or the service's.
	Name    string `json:"name,omitempty"`
	Command string `json:"command"`
	Cwd     string `json:"cwd"`
	// State is starting, running, restarting, exited, stopped, failed or interrupted.
	State string `json:"state"`
	// Exit is its exit code, Signal what ended it.
	Exit   *int   `json:"exit,omitempty"`
	Signal string `json:"signal,omitempty"`
	// Timeout is the limit in seconds that it exceeded.
	Timeout float64 `json:"timeout,omitempty"`
	// Started and Ended are RFC 3339 in UTC.
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	// Pid is its number inside while it runs.
	Pid int `json:"pid,omitempty"`
	// What follows is a service's: what its health check says, how often it was
	// started again, where it is reached inside.
	Health   string   `json:"health,omitempty"`
	Restarts int      `json:"restarts,omitempty"`
	Address  string   `json:"address,omitempty"`
	Ports    []uint16 `json:"ports,omitempty"`
}

func processOf(env string, p environment.Process) processJSON {
	out := processJSON{ID: p.ID, Env: env, Kind: p.Kind, Name: p.Name, Command: p.Command, Cwd: p.Cwd, State: p.State,
		Signal: p.Outcome.Signal, Timeout: p.Outcome.Timeout.Seconds(), Started: p.Started.UTC(), Pid: p.Pid,
		Health: p.Health, Restarts: p.Restarts, Address: p.Address, Ports: p.Ports}
	if !p.Ended.IsZero() {
		out.Ended = p.Ended.UTC()
	}
	if !p.Running() && p.State != environment.ProcInterrupted && out.Signal == "" && out.Timeout == 0 {
		out.Exit = &p.Outcome.Exit
	}
	return out
}

func processesOf(env string, procs []environment.Process) []processJSON {
	out := []processJSON{}
	for _, p := range procs {
		out = append(out, processOf(env, p))
	}
	return out
}

// state is the state in words, with how it ended.
func (p *processJSON) state() string {
	switch {
	case p.Health != "" && p.State == environment.ProcRunning:
		return p.Health
	case p.Timeout > 0:
		return "timeout " + time.Duration(p.Timeout*float64(time.Second)).String()
	case p.State != environment.ProcExited && p.State != environment.ProcFailed:
		return p.State
	case p.Signal != "":
		return "signal " + p.Signal
	case p.Exit != nil:
		return fmt.Sprintf("%s %d", p.State, *p.Exit)
	}
	return p.State
}

// line is a process on one line.
func (p *processJSON) line() string {
	name := p.ID
	if p.Name != "" {
		name += " " + p.Name
	}
	return name + " " + firstLine(p.Command)
}

func firstLine(command string) string {
	cmd, more, _ := strings.Cut(command, "\n")
	if more != "" {
		cmd += " …"
	}
	return cmd
}

// Run lists processes.
func (c *psCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	names, err := c.which(ctx, a)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, env := range names {
		procs, err := a.store.Processes(env)
		if err != nil {
			return err
		}
		for _, proc := range procs {
			p := processOf(env, proc)
			switch {
			case c.JSON:
				err = a.jsonLine(p)
			case c.Quiet:
				_, err = fmt.Fprintln(a.stdout, p.ID)
			default:
				rows = append(rows, p.row(len(names) > 1, time.Now()))
			}
			if err != nil {
				return err
			}
		}
	}
	return a.table(rows)
}

func (p *processJSON) row(withEnv bool, now time.Time) []string {
	row := []string{p.ID, either(p.Name == "", "-", p.Name), p.state(), since(p.Started, now), either(p.Pid == 0, "-", fmt.Sprint(p.Pid))}
	if p.Kind == environment.KindService {
		at := p.Address
		for i, port := range p.Ports {
			at += either(i == 0, ":", ",") + fmt.Sprint(port)
		}
		row = append(row, at)
	}
	row = append(row, firstLine(p.Command))
	if withEnv {
		row = append([]string{p.Env}, row...)
	}
	return row
}

func (c *psCmd) which(ctx context.Context, a *app) ([]string, error) {
	name, err := a.resolve(ctx, c.Env)
	if err == nil {
		return []string{name}, nil
	}
	var amb *environment.AmbiguousError
	if errors.As(err, &amb) {
		return amb.Candidates, nil
	}
	return nil, err
}

// envAndProcs applies the rule for a left-out environment to arguments of which
// the first may be a process already.
func (a *app) envAndProcs(ctx context.Context, env string, procs []string) (string, []string, error) {
	name, err := a.resolve(ctx, env)
	if err == nil || env == "" || environment.ExitCode(err) != environment.ExitNoEnv {
		return name, procs, err
	}
	only, rerr := a.resolve(ctx, "")
	if rerr != nil {
		return "", nil, err
	}
	if _, ferr := a.store.FindProcess(only, env); ferr != nil {
		return "", nil, environment.Errorf(environment.ExitNoEnv, "no environment '%s', and no process of that name in environment '%s'", env, only).
			WithHint("'git env list' shows the environments, 'git env ps %s' the processes", only)
	}
	return only, append([]string{env}, procs...), nil
}
