package environment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/notes"
)

// recover finishes or undoes what an earlier daemon left half done. A damaged
// environment is left alone: it is listed, and nothing else fails because of it.
func (e *Engine) recover(ctx context.Context) error {
	if err := os.RemoveAll(e.tmpDir()); err != nil {
		return fmt.Errorf("cannot clear %s: %w", e.tmpDir(), err)
	}
	names, err := e.store.Names()
	if err != nil {
		return err
	}
	left := false // background processes that nobody watches over
	for _, n := range names {
		st, err := e.store.Load(n)
		if err != nil {
			e.log.Warn("damaged environment", "env", n, "err", err)
			continue
		}
		if err := fusefs.AbortStale(st.Workspace); err != nil {
			e.log.Warn("stale mount", "env", n, "err", err)
		}
		switch st.Phase {
		case PhaseCreating:
			e.log.Info("undoing an interrupted create", "env", n)
			err = e.undoCreate(ctx, st)
		case PhaseDeleting:
			e.log.Info("finishing an interrupted delete", "env", n)
			err = e.finishDelete(ctx, st)
		}
		if err != nil {
			e.log.Warn("cannot recover", "env", n, "err", err)
		}
		gone, err := e.store.markInterrupted(n)
		if err != nil {
			e.log.Warn("cannot note the end of background processes", "env", n, "err", err)
		}
		left = left || gone
	}
	if left {
		go e.clearContainers()
	}
	return errors.Join(e.dropOrphanLayers(), e.dropOrphanIndexes())
}

// clearContainers ends what an earlier daemon's background processes still do in
// containers that have lost their workspace.
func (e *Engine) clearContainers() {
	if _, err := e.runtimeBackend(e.life); err != nil {
		e.log.Warn("cannot end what an earlier daemon left", "err", err)
	}
}

// recoverExecs records the execs that were under way when an earlier daemon (or
// the machine) went down, and commits what they wrote. The workspace was just
// mounted; v.mu is held.
func (v *Env) recoverExecs(ctx context.Context) error {
	if v.recovered {
		return nil
	}
	files, err := filepath.Glob(filepath.Join(globEscape(v.dir()), "exec-*.json"))
	if err != nil {
		return err
	}
	for _, f := range files {
		var j journal
		if err := durable.ReadJSON(f, &j); err != nil || j.Record.ID == "" {
			v.e.log.Warn("unreadable exec journal", "file", f, "err", err)
			discard(f)
			continue
		}
		if v.isRunning(j.Record.ID) || v.isPending(f) {
			continue
		}
		if j.Record.Duration == 0 { // it had not ended
			j.Record.Outcome = notes.Outcome{Interrupted: true, Exit: ExitOurs}
		}
		out, err := recorderOf(v.e.store.logDir(v.name, j.Record.ID)) // empty unless it was in the background
		if err != nil {
			v.e.log.Warn("cannot read back the output of an exec", "env", v.name, "exec", j.Record.ID, "err", err)
		}
		req := commitRequest{caller: j.Caller, message: j.Msg, record: &j.Record, output: out}
		if _, err := v.commit(ctx, req); err != nil {
			return fmt.Errorf("cannot recover exec %s: %w", j.Record.ID, err)
		}
		v.e.notice("exec %s of environment '%s' was interrupted by a crash; what it wrote is kept and recorded", j.Record.ID, v.name)
		discard(f)
	}
	v.recovered = true
	return nil
}

// isPending says whether an exec's journal is of this daemon, which still has its
// output; v.mu is held.
func (v *Env) isPending(journal string) bool {
	return slices.ContainsFunc(v.pending, func(p pendingCommit) bool { return p.journal == journal })
}

// pendingCommit is an exec that ended and could not be committed.
type pendingCommit struct {
	req     commitRequest
	journal string
}

// flushPending commits and records execs whose commit failed; v.mu is held and
// the workspace mounted.
func (v *Env) flushPending(ctx context.Context) error {
	if err := v.recoverExecs(ctx); err != nil {
		return &Error{Code: ExitOurs, Err: err, Msg: err.Error(), Hint: "it is kept in the workspace; make room, then run any command"}
	}
	for len(v.pending) > 0 {
		p := v.pending[0]
		if _, err := v.commit(ctx, p.req); err != nil {
			return &Error{Code: ExitOurs, Err: err,
				Msg:  fmt.Sprintf("the work of exec %s cannot be committed: %v", p.req.record.ID, err),
				Hint: "it is kept in the workspace; make room, then run any command"}
		}
		discard(p.journal)
		v.pending = v.pending[1:]
	}
	return nil
}

func (v *Env) isRunning(id string) bool {
	v.usage.Lock()
	defer v.usage.Unlock()
	_, ok := v.usage.execs[id]
	return ok
}

// globEscape protects a path from being read as a pattern.
func globEscape(p string) string {
	out := make([]byte, 0, len(p))
	for i := range len(p) {
		switch p[i] {
		case '*', '?', '[', '\\':
			out = append(out, '\\')
		}
		out = append(out, p[i])
	}
	return string(out)
}

// dropOrphanIndexes removes cached indexes of what no environment started from;
// they are made again when needed.
func (e *Engine) dropOrphanIndexes() error {
	dir := filepath.Join(e.store.Dir, "index")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	names, nerr := e.store.Names()
	if err = errors.Join(err, nerr); err != nil {
		return err
	}
	used := map[string]bool{}
	for _, n := range names {
		if st, err := e.store.Load(n); err == nil {
			used[filepath.Base(e.cachedIndex(st))] = true
			used[filepath.Base(e.cachedIndex(st))+filteredSuffix] = true
		}
	}
	for _, d := range entries {
		if !used[d.Name()] {
			discard(filepath.Join(dir, d.Name()))
		}
	}
	return nil
}
