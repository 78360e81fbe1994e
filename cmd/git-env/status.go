package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/environment/client"
)

type statusCmd struct {
	Env   string `arg:"" optional:"" name:"env" help:"The environment; all of them, in short, when it is not clear which."`
	JSON  bool   `name:"json" help:"Print one JSON object a line." xor:"form"`
	Quiet bool   `short:"q" help:"Print the names alone." xor:"form"`
}

// Help is the long text of --help.
func (statusCmd) Help() string {
	return `Nothing is started, mounted or written.`
}

// statusJSON is one line of status --json: a summaryJSON and what follows.
type statusJSON struct {
	summaryJSON
	// Mounted and Container say whether the workspace is mounted and whether the
	// container runs.
	Mounted   bool `json:"mounted"`
	Container bool `json:"container"`
	// Isolation is how far root inside is from root of this machine, while the
	// container runs.
	Isolation string `json:"isolation,omitempty"`
	// Running lists the execs under way, each as "<id> <command>".
	Running []string `json:"running"`
	// Dirty lists what is uncommitted in the workspace, at most 1,000 paths; a
	// directory that is new as a whole ends with a slash.
	Dirty []string `json:"dirty"`
	// DiskUsed is how many bytes the workspace keeps on the disk, DiskLimit how many
	// it may; neither is there without a limit.
	DiskUsed  *int64 `json:"disk_used,omitempty"`
	DiskLimit *int64 `json:"disk_limit,omitempty"`
}

// Run shows where one environment stands, or all.
func (c *statusCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	names, err := c.which(ctx, a)
	if err != nil {
		return err
	}
	if c.Quiet {
		for _, n := range names {
			if _, err := fmt.Fprintln(a.stdout, n); err != nil {
				return err
			}
		}
		return nil
	}
	head, err := a.head(ctx)
	if err != nil {
		return err
	}
	if len(names) != 1 && !c.JSON {
		sums, err := a.store.Summaries(ctx, head)
		if err != nil {
			return err
		}
		return a.table(rows(sums, time.Now()))
	}
	for _, n := range names {
		st, err := a.statusOf(ctx, n, head)
		if err != nil {
			return err
		}
		if c.JSON {
			err = a.jsonLine(st)
		} else {
			_, err = a.stdout.Write([]byte(statusText(st, time.Now())))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *statusCmd) which(ctx context.Context, a *app) ([]string, error) {
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

// statusOf puts together what is on disk and, if a daemon runs, what it knows.
func (a *app) statusOf(ctx context.Context, name, head string) (statusJSON, error) {
	sum, err := a.store.Summary(ctx, name, head)
	if err != nil {
		return statusJSON{}, err
	}
	st := statusJSON{summaryJSON: summaryOf(sum), Running: []string{}, Dirty: []string{}}
	if sum.State == "damaged" {
		return st, nil
	}
	live, err := a.live(ctx, name)
	if err != nil {
		return st, err
	}
	if live != nil {
		st.Mounted, st.Container = live.Mounted, live.Container
		st.Isolation = live.Isolation
		st.Running = append(st.Running, live.Execs...)
		st.Dirty = append(st.Dirty, live.Dirty...)
		st.disk(live.DiskUsed, live.DiskLimit)
		return st, nil
	}
	loaded, err := a.store.Load(name)
	if err != nil {
		return st, err
	}
	_, paths, err := a.offlineDirty(loaded)
	if err != nil {
		st.State, st.Error = "damaged", err.Error()
		return st, nil
	}
	st.Dirty = append(st.Dirty, paths...)
	used, limit, err := a.store.DiskUse(ctx, loaded)
	st.disk(used, limit)
	return st, err
}

func (st *statusJSON) disk(used, limit int64) {
	if limit > 0 {
		st.DiskUsed, st.DiskLimit = &used, &limit
	}
}

// live asks a running daemon; nil when there is none that answers.
func (a *app) live(ctx context.Context, name string) (*api.Live, error) {
	c, err := a.dial(ctx, false)
	if err != nil {
		return nil, ctx.Err()
	}
	defer c.Close()
	var live api.Live
	err = c.Call(ctx, api.MethodStatus, api.Status{Env: name}, &live, client.Events{})
	if err != nil && ctx.Err() == nil {
		a.warnf("the daemon cannot tell about '%s': %v", name, err)
		return nil, nil
	}
	return &live, err
}

func statusText(st statusJSON, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Environment %s", st.Name)
	if st.Title != "" {
		fmt.Fprintf(&b, " (%s)", st.Title)
	}
	b.WriteString("\n")
	if st.State != "ready" {
		fmt.Fprintf(&b, "State: %s\n", st.State)
	}
	if st.Error != "" {
		fmt.Fprintf(&b, "    %s\n", st.Error)
	}
	if s := st.Setup; s != nil && s.State != environment.SetupDone {
		fmt.Fprintf(&b, "State: setup %s, %s\n", s.State, s.Summary)
		if s.Exec != "" && s.State != environment.SetupRunning {
			fmt.Fprintf(&b, "    'git env show %s %s --output' shows what it printed, 'git env setup %s' goes on with it\n", st.Name, s.Exec, st.Name)
		}
	}
	fmt.Fprintf(&b, "Branch: %s", strings.TrimPrefix(st.Branch, "refs/heads/"))
	if st.Tip != "" {
		fmt.Fprintf(&b, " at %s, %s ahead of HEAD, %d behind", shortID(st.Tip), count(st.Ahead, "commit"), st.Behind)
	}
	b.WriteString("\n")
	if st.Base != "" {
		fmt.Fprintf(&b, "Base: %s", shortID(st.Base))
		if st.Parent != "" {
			fmt.Fprintf(&b, ", forked from %s", st.Parent)
		}
		fmt.Fprintf(&b, ", created %s\n", since(st.Created, now))
	}
	if st.Workspace != "" {
		fmt.Fprintf(&b, "Workspace: %s%s\n", st.Workspace, either(st.Mounted, "", " (not mounted)"))
		if len(st.Paths) > 0 {
			fmt.Fprintf(&b, "Shows: %s; the rest of the branch is hidden\n", strings.Join(st.Paths, ", "))
		}
		fmt.Fprintf(&b, "Container: %s, image %s%s\n", either(st.Container, "running", "not running"), st.Image,
			either(st.Isolation == "", "", ", isolation "+st.Isolation))
	}
	if len(st.Ports) > 0 {
		fmt.Fprintf(&b, "Ports: %s%s\n", portsText(st.Ports), either(st.Container, "", " (while the container runs)"))
	}
	if st.DiskLimit != nil {
		fmt.Fprintf(&b, "Disk: %s of %s used\n", environment.HumanSize(*st.DiskUsed), environment.HumanSize(*st.DiskLimit))
	}
	if e := st.LastExec; e != nil {
		fmt.Fprintf(&b, "Last exec: %s, %s, %s\n    %s\n", e.Exec, e.outcome(), since(e.Started, now),
			strings.ReplaceAll(strings.TrimRight(e.Command, "\n"), "\n", "\n    "))
	}
	section(&b, "Running", st.Running)
	var behind []string
	for _, p := range st.Processes {
		behind = append(behind, p.line())
	}
	section(&b, "In the background", behind)
	section(&b, "Uncommitted in the workspace", st.Dirty)
	return b.String()
}

func section(b *strings.Builder, title string, lines []string) {
	if len(lines) > 0 {
		fmt.Fprintf(b, "%s:\n    %s\n", title, strings.Join(lines, "\n    "))
	}
}

func either(cond bool, yes, no string) string {
	if cond {
		return yes
	}
	return no
}
