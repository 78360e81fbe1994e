package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/git-env/git-env/environment"
)

type logCmd struct {
	Env      string `arg:"" optional:"" name:"env" help:"The environment."`
	Patch    bool   `short:"p" help:"Show what each commit changed." xor:"form"`
	Oneline  bool   `help:"Show each commit and each exec on a line." xor:"form"`
	MaxCount int    `short:"n" placeholder:"number" default:"-1" help:"Show this many commits at most."`
	JSON     bool   `name:"json" help:"Print one JSON object a line for each commit, with its execs." xor:"form"`
	Quiet    bool   `short:"q" help:"Print the ids of the execs alone." xor:"form"`
}

// Help is the long text of --help.
func (logCmd) Help() string {
	return `Newest first, through git's pager. The log begins where the environment started
and is as complete after a merge as before. 'git log --notes=env env/<name>' shows
much the same.`
}

// commitJSON is one line of log --json, newest first.
type commitJSON struct {
	Commit  string `json:"commit"`
	Subject string `json:"subject"`
	Author  string `json:"author"`
	// Time is the commit's, RFC 3339 in UTC.
	Time time.Time `json:"time"`
	// Base marks the commit that the environment started from; it is listed only
	// when execs that changed nothing are recorded on it.
	Base bool `json:"base,omitempty"`
	// Execs are those recorded on this commit, newest first.
	Execs []execJSON `json:"execs"`
}

// Run shows the log.
func (c *logCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	name, err := a.resolve(ctx, c.Env)
	if err != nil {
		return err
	}
	entries, err := a.store.Records(ctx, name)
	if err != nil {
		return err
	}
	slices.Reverse(entries)
	if c.MaxCount >= 0 && c.MaxCount < len(entries) {
		entries = entries[:c.MaxCount]
	}
	for i := range entries {
		slices.Reverse(entries[i].Records)
	}
	switch {
	case c.JSON:
		return c.json(a, entries)
	case c.Quiet:
		for _, e := range entries {
			for _, r := range e.Records {
				if _, err := fmt.Fprintln(a.stdout, r.ID); err != nil {
					return err
				}
			}
		}
		return nil
	case c.Oneline:
		return a.paged(ctx, func(out io.Writer, _ []string) error { return oneline(out, entries) })
	}
	return c.full(ctx, a, name, entries)
}

func (c *logCmd) json(a *app, entries []environment.Entry) error {
	for _, e := range entries {
		line := commitJSON{Commit: e.Commit, Subject: e.Subject, Author: e.Author, Time: e.Time, Base: e.Base, Execs: []execJSON{}}
		for _, r := range e.Records {
			line.Execs = append(line.Execs, execOf(r, e.Commit))
		}
		if err := a.jsonLine(line); err != nil {
			return err
		}
	}
	return nil
}

func oneline(out io.Writer, entries []environment.Entry) error {
	var b bytes.Buffer
	for _, e := range entries {
		fmt.Fprintf(&b, "%s %s\n", shortID(e.Commit), e.Subject)
		for _, r := range e.Records {
			fmt.Fprintf(&b, "    %s\n", execLine(r))
		}
	}
	_, err := out.Write(b.Bytes())
	return err
}

// full lets git render the commits; only the one that the environment started
// from is put together here, because its note may speak of others too.
func (c *logCmd) full(ctx context.Context, a *app, name string, entries []environment.Entry) error {
	st, err := a.store.Load(name)
	if err != nil {
		return err
	}
	var base *environment.Entry
	n := len(entries)
	if n > 0 && entries[n-1].Base {
		n--
		base = &entries[n]
	}
	tip, err := a.store.Tip(ctx, name)
	if err != nil {
		return err
	}
	return a.paged(ctx, func(out io.Writer, environ []string) error {
		if n > 0 {
			args := []string{"log", "--no-notes", "--notes=env", "--max-count=" + strconv.Itoa(n)}
			if c.Patch {
				args = append(args, "--patch")
			}
			if err := a.git(ctx, out, environ, append(args, tip, "^"+st.Origin, "--")...); err != nil {
				return err
			}
		}
		if base == nil {
			return nil
		}
		if n > 0 {
			if _, err := io.WriteString(out, "\n"); err != nil {
				return err
			}
		}
		if err := a.git(ctx, out, environ, "log", "--no-notes", "--max-count=1", base.Commit, "--"); err != nil {
			return err
		}
		return noteText(out, *base)
	})
}

// noteText writes records the way git log shows a note.
func noteText(out io.Writer, e environment.Entry) error {
	b := bytes.NewBufferString("\nNotes (env):\n")
	for i := len(e.Records) - 1; i >= 0; i-- { // as appended: oldest first
		for line := range bytes.Lines(e.Records[i].Encode()) {
			if len(bytes.TrimRight(line, "\n")) > 0 {
				b.WriteString("    ")
			}
			b.Write(line)
		}
	}
	_, err := out.Write(b.Bytes())
	return err
}
