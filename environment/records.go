package environment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/git-env/git-env/notes"
)

// Entry is one commit of an environment with the execs recorded on it. The
// commit that an environment started from is an Entry too when execs that
// changed nothing were recorded on it.
type Entry struct {
	Commit  string         `json:"commit"`
	Subject string         `json:"subject"`
	Author  string         `json:"author"`
	Time    time.Time      `json:"time"`
	Base    bool           `json:"base,omitempty"`
	Records []notes.Record `json:"records,omitempty"`
}

// Records returns the environment's history, oldest first: every commit since
// the one it started from, and every exec. It does not depend on what was merged
// where, so it is as complete after a merge as before.
func (s *Store) Records(ctx context.Context, name string) ([]Entry, error) {
	st, err := s.Load(name)
	if err != nil {
		return nil, err
	}
	tip, err := s.Tip(ctx, name)
	if err != nil {
		return nil, err
	}
	entries, err := s.commits(ctx, st.Origin, tip)
	if err != nil {
		return nil, err
	}
	log := s.execLog()
	var out []Entry
	for _, e := range entries {
		text, err := log.Read(ctx, e.Commit)
		if err != nil {
			return nil, fmt.Errorf("cannot read the record of %s: %w", e.Commit, err)
		}
		for _, b := range notes.Parse(text) {
			if st.owns(b.Env, b.Started) {
				e.Records = append(e.Records, b)
			}
		}
		if e.Base && len(e.Records) == 0 {
			continue
		}
		out = append(out, e)
	}
	return out, nil
}

// commits lists origin and origin..tip, oldest first.
func (s *Store) commits(ctx context.Context, origin, tip string) ([]Entry, error) {
	const format = "--format=%H%x00%ct%x00%an%x00%s"
	lines := func(args ...string) ([]Entry, error) {
		out, err := s.Git.Output(ctx, nil, args...)
		if err != nil {
			return nil, err
		}
		var es []Entry
		for line := range bytes.Lines(out) {
			f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), "\x00", 4)
			if len(f) != 4 {
				continue
			}
			var sec int64
			if _, err := fmt.Sscan(f[1], &sec); err != nil {
				return nil, fmt.Errorf("git log: bad time %q", f[1])
			}
			es = append(es, Entry{Commit: f[0], Time: time.Unix(sec, 0).UTC(), Author: f[2], Subject: f[3]})
		}
		return es, nil
	}
	base, err := lines("log", "--no-walk", format, origin)
	if err != nil {
		return nil, err
	}
	for i := range base {
		base[i].Base = true
	}
	if tip == origin {
		return base, nil
	}
	rest, err := lines("log", "--topo-order", "--reverse", format, tip, "^"+origin)
	if err != nil {
		return nil, err
	}
	return append(base, rest...), nil
}

// Record finds one exec of an environment by its id or a unique prefix of it;
// "" means the newest. It returns the commit that the record is on.
func (s *Store) Record(ctx context.Context, name, id string) (notes.Record, string, error) {
	entries, err := s.Records(ctx, name)
	if err != nil {
		return notes.Record{}, "", err
	}
	var found notes.Record
	var commit string
	n := 0
	for _, e := range entries {
		for _, r := range e.Records {
			switch {
			case id == "":
				if r.ID > found.ID {
					found, commit, n = r, e.Commit, 1
				}
			case strings.HasPrefix(r.ID, strings.ToUpper(id)):
				found, commit = r, e.Commit
				n++
			}
		}
	}
	switch {
	case n == 0 && id == "":
		return found, "", Errorf(ExitFailed, "environment '%s' has no exec yet", name)
	case n == 0:
		return found, "", Errorf(ExitFailed, "environment '%s' has no exec '%s'", name, id).WithHint("'git env log %s' shows them", name)
	case n > 1:
		return found, "", Errorf(ExitUsage, "exec id '%s' is ambiguous: %d execs start with it", id, n)
	}
	return found, commit, nil
}

// OutputOf writes the whole output of an exec, byte for byte as recorded.
func (s *Store) OutputOf(ctx context.Context, rec notes.Record, w io.Writer) error {
	if rec.OutputID == "" {
		return nil
	}
	if _, err := s.Reader.Blob(ctx, rec.OutputID, w); err != nil {
		return &Error{Code: ExitFailed, Err: err,
			Msg:  fmt.Sprintf("the output of exec %s (%s) cannot be read: %v", rec.ID, rec.OutputID, err),
			Hint: "it may live on the machine that ran it, or have been dropped: the oldest go when all exceed env.outputLimit, and all of an environment that is deleted with --force"}
	}
	return nil
}

// Summary is one line of a listing.
type Summary struct {
	Name    string    `json:"name"`
	Title   string    `json:"title,omitempty"`
	State   string    `json:"state"` // ready, creating, deleting, damaged
	Branch  string    `json:"branch"`
	Base    string    `json:"base,omitempty"`
	Tip     string    `json:"tip,omitempty"`
	Parent  string    `json:"parent,omitempty"`
	Ahead   int       `json:"ahead"`
	Behind  int       `json:"behind"`
	Created time.Time `json:"created,omitzero"`
	Image   string    `json:"image,omitempty"`
	Digest  string    `json:"digest,omitempty"`
	// Workspace is where it is or would be mounted.
	Workspace string `json:"workspace,omitempty"`
	// Paths are what a sparse environment shows.
	Paths    []string      `json:"paths,omitempty"`
	LastExec *notes.Record `json:"last_exec,omitempty"`
	// Ports are published on this machine's loopback while the container runs.
	Ports []PublishedPort `json:"ports,omitempty"`
	// Processes are the background processes that run.
	Processes []Process `json:"processes,omitempty"`
	// Setup is where its preparation stands; nil when it needs none.
	Setup *SetupView `json:"setup,omitempty"`
	// Error says what is wrong with a damaged environment.
	Error string `json:"error,omitempty"`
}

// Summaries lists all environments; ahead and behind are counted against head
// (a commit; "" leaves them zero). A damaged environment is an item like any
// other, never an error of the listing.
func (s *Store) Summaries(ctx context.Context, head string) ([]Summary, error) {
	names, err := s.Names()
	if err != nil {
		return nil, err
	}
	out := make([]Summary, 0, len(names))
	for _, n := range names {
		sum, err := s.Summary(ctx, n, head)
		if err != nil {
			return nil, err
		}
		out = append(out, sum)
	}
	return out, nil
}

// Summary describes one environment; see Summaries.
func (s *Store) Summary(ctx context.Context, name, head string) (Summary, error) {
	sum := Summary{Name: name, Branch: BranchRef(name), State: "damaged"}
	st, err := s.Load(name)
	if err != nil {
		if errors.Is(err, ErrNoEnv) {
			return sum, err
		}
		sum.Error = err.Error()
		return sum, nil
	}
	sum.Title, sum.Base, sum.Parent, sum.Created = st.Title, st.Base, st.Parent, st.Created
	sum.Image, sum.Digest, sum.Workspace = st.Image.Ref, st.Image.Digest, st.Workspace
	sum.Paths, sum.Ports = st.Paths, st.Ports
	sum.Tip, err = s.Tip(ctx, name)
	if err != nil {
		sum.Error = err.Error()
		return sum, ctx.Err()
	}
	sum.State = string(st.Phase)
	if head != "" {
		line, err := s.Git.Line(ctx, "rev-list", "--left-right", "--count", head+"..."+sum.Tip)
		if err == nil {
			_, err = fmt.Sscan(line, &sum.Behind, &sum.Ahead)
		}
		if err != nil {
			sum.State, sum.Error = "damaged", err.Error()
			return sum, ctx.Err()
		}
	}
	if rec, _, err := s.Record(ctx, name, ""); err == nil {
		sum.LastExec = &rec
	}
	if sum.Processes, err = s.running(name); err != nil {
		sum.State, sum.Error = "damaged", err.Error()
	}
	if sum.Setup, err = s.SetupOf(name); err != nil {
		sum.State, sum.Error = "damaged", err.Error()
	}
	return sum, ctx.Err()
}
