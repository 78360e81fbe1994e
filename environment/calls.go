package environment

import (
	"context"
	"slices"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/fusefs"
)

// maxDirtyPaths bounds how many uncommitted paths a status names.
const maxDirtyPaths = 1000

// Path mounts the workspace and returns where.
func (e *Engine) Path(ctx context.Context, p api.Path, _ Reporter) (*api.PathAnswer, error) {
	v, err := e.env(p.Env)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	defer v.touch()
	if err := v.forgetUnmounted(ctx, true); err != nil {
		return nil, err
	}
	if err := v.mount(ctx); err != nil {
		return nil, err
	}
	// Whoever asks for the path is about to work there, perhaps with git.
	v.e.awaitIndexFor(ctx, v.st)
	if err := v.ensureIndex(ctx); err != nil {
		return nil, err
	}
	return &api.PathAnswer{Path: v.st.Workspace}, nil
}

// Commit commits what is uncommitted in a workspace. A workspace that is not
// mounted and has nothing uncommitted is not touched.
func (e *Engine) Commit(ctx context.Context, p api.Commit) (*api.Committed, error) {
	v, err := e.env(p.Env)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	defer v.touch()
	if !v.mounted {
		dirty, err := v.dirtyOffline()
		if err != nil {
			return nil, err
		}
		if !dirty {
			tip, err := e.store.Tip(ctx, p.Env)
			return &api.Committed{Tip: tip}, err
		}
		if err := v.mount(ctx); err != nil {
			return nil, err
		}
	}
	if err := v.flushPending(ctx); err != nil {
		return nil, err
	}
	msg := p.Message
	if msg == "" {
		msg = "Uncommitted work in the workspace"
	}
	res, err := v.commit(ctx, commitRequest{caller: p.Caller, message: msg})
	if err != nil {
		return nil, err
	}
	return &api.Committed{Tip: res.tip, Commit: res.commit, Changed: res.changed, Warnings: res.warnings}, nil
}

// Status tells what only the daemon knows; it changes nothing.
func (e *Engine) Status(ctx context.Context, p api.Status) (*api.Live, error) {
	v, err := e.env(p.Env)
	if err != nil {
		return nil, err
	}
	live := &api.Live{}
	v.usage.Lock()
	live.Mounted = v.usage.mounted
	for id, r := range v.usage.execs {
		if r.bg == nil {
			live.Execs = append(live.Execs, id+" "+r.display)
		}
	}
	v.usage.Unlock()
	slices.Sort(live.Execs)
	if !v.mu.TryLock() {
		live.Busy = true // an image on its way, a commit: a status does not wait for it
		return live, nil
	}
	defer v.mu.Unlock()
	live.Container = v.ctr != nil
	if v.ctr != nil {
		live.Isolation = string(v.ctr.Isolation())
	}
	if live.Mounted { // unless somebody took it away
		if live.Mounted, err = fusefs.Mounted(v.st.Workspace); err != nil {
			return nil, err
		}
	}
	dirty, held, err := v.uncommitted(ctx)
	if err != nil {
		return nil, err
	}
	if live.DiskUsed, live.DiskLimit, err = v.diskUse(ctx); err != nil {
		return nil, err
	}
	live.Dirty = maskAll(v.secrets.finds(), uniq(append(dirty, held...)))
	live.Dirty = live.Dirty[:min(len(live.Dirty), maxDirtyPaths)]
	return live, nil
}

// uncommitted lists what a commit would take now, and what it would hold back.
// v.mu is held; a workspace that is not mounted is read from its layers.
func (v *Env) uncommitted(ctx context.Context) (paths, held []string, err error) {
	left, err := v.loadSkipped()
	if err != nil {
		return nil, nil, err
	}
	if !v.mounted || v.serverDied() {
		_, paths, err := fusefs.OfflineDirty(v.e.layerDir(), v.st.Layers, maxDirtyPaths)
		return paths, plainPaths(left.Held), err
	}
	sc, err := newScratch(v.e.tmpDir(), v.e.store.Git, v)
	if err != nil {
		return nil, nil, err
	}
	defer sc.close()
	if left.More {
		left.Held = nil // to find all of them
	}
	set, err := v.changes(ctx, sc, left, nil)
	if err != nil {
		return nil, nil, err
	}
	return set.paths(), set.held, nil
}

// serverDied says that the mount went with its file server; v.mu is held.
func (v *Env) serverDied() bool {
	select {
	case <-v.files.Done():
		return true
	default:
		return false
	}
}

func (v *Env) dirtyOffline() (bool, error) {
	n, _, err := fusefs.OfflineDirty(v.e.layerDir(), v.st.Layers, maxDirtyPaths)
	return n > 0, err
}
