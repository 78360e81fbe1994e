package environment

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/notes"
)

// procHome is where a running background process or service is known: its state,
// its log, and the lock that tells that somebody watches over it.
type procHome struct {
	v    *Env
	log  *procLog
	lock *durable.FileLock

	mu    sync.Mutex
	state Process // guarded by mu
}

// open makes the place of a process that is about to be started.
func (h *procHome) open(ctx context.Context, v *Env, p Process) (err error) {
	h.v, h.state = v, p
	store := v.e.store
	if h.log, err = newProcLog(store.logDir(v.name, p.ID)); err != nil {
		return fmt.Errorf("cannot keep the output of the process: %w", err)
	}
	defer func() {
		if err != nil {
			h.drop()
		}
	}()
	if h.lock, err = durable.Lock(ctx, filepath.Join(store.procDir(v.name, p.ID), "lock")); err != nil {
		return err
	}
	return store.saveProcess(v.name, &h.state)
}

func (h *procHome) id() string { return h.state.ID } // which never changes

// now returns the state as it is.
func (h *procHome) now() Process {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

func (h *procHome) title() string {
	p := h.now()
	return p.Title()
}

// update changes the state and writes it down.
func (h *procHome) update(change func(*Process)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.state)
	if err := h.v.e.store.saveProcess(h.v.name, &h.state); err != nil {
		h.v.e.log.Warn("cannot note the state of a process", "env", h.v.name, "process", h.state.ID, "err", err)
	}
}

// close notes how the process ended and lets go of it.
func (h *procHome) close(state string, o notes.Outcome) {
	h.log.end()
	h.update(func(p *Process) { p.State, p.Outcome, p.Ended, p.Pid, p.Health = state, o, now(), 0, "" })
	if err := h.lock.Close(); err != nil {
		h.v.e.log.Warn("cannot let go of a process", "env", h.v.name, "process", h.id(), "err", err)
	}
}

// drop forgets a process that was never started.
func (h *procHome) drop() {
	if h.lock != nil {
		_ = h.lock.Close()
	}
	h.log.end()
	_ = os.RemoveAll(h.v.e.store.procDir(h.v.name, h.id()))
}
