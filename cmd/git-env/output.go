package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/notes"
)

// jsonLine writes one object on one line; that is the form of every --json.
func (a *app) jsonLine(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// table writes rows with aligned columns.
func (a *app) table(rows [][]string) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(w, strings.TrimRight(strings.Join(r, "\t"), "\t "))
	}
	return w.Flush()
}

// execJSON is one record in JSON.
type execJSON struct {
	// Exec is the ULID, Env the environment that ran it.
	Exec string `json:"exec"`
	Env  string `json:"env"`
	// Commit is the one that the record is on: made by the exec if Changed is
	// not 0, else the one that it ran on; absent in last_exec.
	Commit  string `json:"commit,omitempty"`
	Command string `json:"command"`
	Cwd     string `json:"cwd"`
	// Exit is the command's exit code; absent when it did not exit by itself.
	Exit *int `json:"exit,omitempty"`
	// Signal ("KILL") ended it; Timeout is the limit in seconds that it
	// exceeded; Interrupted says that its supervisor died before its end.
	Signal      string  `json:"signal,omitempty"`
	Timeout     float64 `json:"timeout,omitempty"`
	Interrupted bool    `json:"interrupted,omitempty"`
	// Limits are the limits that it ran into, each a name and its value.
	Limits []string `json:"limits,omitempty"`
	// Started is RFC 3339 in UTC, Duration in seconds.
	Started  time.Time `json:"started"`
	Duration float64   `json:"duration"`
	// Changed is the number of paths committed.
	Changed int `json:"changed"`
	// OutputBytes and Output are the size and the blob of the whole output.
	OutputBytes int64  `json:"output_bytes"`
	Output      string `json:"output,omitempty"`
	// Isolation is how far root inside was from root of this machine.
	Isolation string `json:"isolation,omitempty"`
	Note      string `json:"note,omitempty"`
}

func execOf(r notes.Record, commit string) execJSON {
	e := execJSON{
		Exec: r.ID, Env: r.Env, Commit: commit, Command: r.Command, Cwd: r.Cwd,
		Signal: r.Outcome.Signal, Timeout: r.Outcome.Timeout.Seconds(), Interrupted: r.Outcome.Interrupted,
		Limits: r.Limits, Isolation: r.Isolation,
		Started: r.Started.UTC(), Duration: r.Duration.Seconds(), Changed: r.Changed,
		OutputBytes: r.OutputBytes, Output: r.OutputID, Note: r.Note,
	}
	if e.Signal == "" && e.Timeout == 0 && (!e.Interrupted || r.Outcome.Exit != 0) {
		e.Exit = &r.Outcome.Exit
	}
	return e
}

// outcome says in a few words how an exec ended.
func outcome(o notes.Outcome) string {
	switch {
	case o.Timeout != 0:
		return "timeout " + o.Timeout.String()
	case o.Signal != "":
		return "signal " + o.Signal
	case o.Interrupted && o.Exit == 0:
		return "interrupted"
	}
	return fmt.Sprintf("exit %d", o.Exit)
}

func (e *execJSON) outcome() string {
	o := notes.Outcome{Signal: e.Signal, Timeout: time.Duration(e.Timeout * float64(time.Second)), Interrupted: e.Interrupted}
	if e.Exit != nil {
		o.Exit, o.Interrupted = *e.Exit, false
	}
	return outcome(o)
}

// execLine is an exec on one line.
func execLine(r notes.Record) string {
	cmd, more, _ := strings.Cut(r.Command, "\n")
	if more != "" {
		cmd += " …"
	}
	return fmt.Sprintf("%s  %s  %s", r.ID, outcome(r.Outcome), cmd)
}

// since says how long ago something was, as git does.
func since(t, now time.Time) string {
	d := now.Sub(t)
	switch {
	case t.IsZero():
		return ""
	case d < 0:
		return "in the future"
	case d < 90*time.Second:
		return count(int(d/time.Second), "second") + " ago"
	case d < 90*time.Minute:
		return count(int(d/time.Minute), "minute") + " ago"
	case d < 36*time.Hour:
		return count(int(d/time.Hour), "hour") + " ago"
	case d < 14*24*time.Hour:
		return count(int(d/(24*time.Hour)), "day") + " ago"
	case d < 70*24*time.Hour:
		return count(int(d/(7*24*time.Hour)), "week") + " ago"
	}
	return count(int(d/(30*24*time.Hour)), "month") + " ago"
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// distance says where an environment stands against HEAD.
func distance(s environment.Summary) string {
	switch {
	case s.Ahead == 0 && s.Behind == 0:
		return "="
	case s.Behind == 0:
		return fmt.Sprintf("+%d", s.Ahead)
	case s.Ahead == 0:
		return fmt.Sprintf("-%d", s.Behind)
	}
	return fmt.Sprintf("+%d -%d", s.Ahead, s.Behind)
}

func shortID(id string) string { return id[:min(len(id), 10)] }
