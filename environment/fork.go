package environment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/internal/objects"
	"github.com/git-env/git-env/notes"
	"github.com/git-env/git-env/runtime"
)

// committed is when a commit was made, by its committer.
func committed(c *objects.Commit) (time.Time, error) {
	f := strings.Fields(c.Committer[strings.LastIndexByte(c.Committer, '>')+1:])
	if len(f) == 0 {
		return time.Time{}, fmt.Errorf("bad committer %q", c.Committer)
	}
	sec, err := strconv.ParseInt(f[0], 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("bad committer %q: %w", c.Committer, err)
	}
	return time.Unix(sec, 0).UTC(), nil
}

// Fork makes a new environment that is what another is now: tracked, untracked
// and ignored files, the container's root filesystem, the history. The layers
// are shared, so the cost does not depend on their size. The source stays as it
// is and usable.
func (e *Engine) Fork(ctx context.Context, p api.Fork, rep Reporter) (*api.Created, error) {
	src, err := e.env(p.Env)
	if err != nil {
		return nil, err
	}
	name, release, err := e.claimNew(ctx, p.Name)
	if err != nil {
		return nil, err
	}
	defer release()
	src.mu.Lock()
	defer src.mu.Unlock()
	if err := src.notPrepared(nil); err != nil {
		return nil, err
	}
	st, pause, err := e.branchOff(ctx, src, name, p)
	if err != nil {
		return nil, err
	}
	err = e.bringIntoBeing(ctx, st, func() error {
		if err := copySkipped(src.dir(), e.store.EnvDir(name)); err != nil {
			return fmt.Errorf("cannot take over what was left out of commits: %w", err)
		}
		return e.forkRootFS(ctx, src, st)
	})
	if err != nil {
		return nil, err
	}
	e.log.Info("forked", "env", src.st.Name, "to", name, "layers", len(st.Layers), "pause", pause)
	out := created(st)
	out.Pause = pause.Seconds()
	return out, nil
}

// flushWait bounds how long a fork waits for what processes have written into
// mapped files to leave the kernel; they go on meanwhile.
const flushWait = 500 * time.Millisecond

// frozen makes the workspace as it is now a stack of layers that never change,
// and returns them and for how long writes were held up. When nothing has changed
// since the last time they are the ones of then. v.mu is held, and the workspace
// mounted.
func (v *Env) frozen(ctx context.Context) ([]string, time.Duration, error) {
	stack, err := v.files.Stack(ctx, v.st.ID)
	if err != nil {
		return nil, 0, fmt.Errorf("cannot look at the workspace's layers: %w", err)
	}
	layers := slices.Clone(v.st.Layers)
	if n := len(stack.Logs); n > 0 && stack.Logs[n-1] == 0 {
		return layers[:len(layers)-1], 0, nil
	}
	pause, err := v.freeze(ctx)
	if err == nil {
		v.mergeSoon(stack.Nodes)
	}
	return layers, pause, err
}

// flush brings what processes have written into mapped files into the workspace.
// That it takes too long is no reason not to go on: it is as if they had written
// it later. v.mu is held, and the workspace mounted.
func (v *Env) flush(ctx context.Context) {
	if done, err := v.files.Flush(ctx, v.st.ID, flushWait); err != nil || !done {
		v.e.log.Info("what was written into mapped files last may be missing", "env", v.st.Name, "err", err)
	}
}

// branchOff commits what is uncommitted in the source, freezes its workspace and
// returns the state of the new environment on the frozen layers, and for how long
// writes were held up. src.mu is held.
func (e *Engine) branchOff(ctx context.Context, src *Env, name string, p api.Fork) (*State, time.Duration, error) {
	if err := src.mount(ctx); err != nil {
		return nil, 0, err
	}
	if err := src.flushPending(ctx); err != nil {
		return nil, 0, err
	}
	src.flush(ctx)
	res, err := src.commit(ctx, commitRequest{caller: p.Caller, message: "Uncommitted work before a fork"})
	if err != nil {
		return nil, 0, err
	}
	set, err := src.settings(ctx)
	if err != nil {
		return nil, 0, err
	}
	if err := e.store.checkTrust(ctx, set); err != nil {
		return nil, 0, err
	}
	outputs, err := e.outputsToFork(ctx, src.st.Name, name)
	if err != nil {
		return nil, 0, err
	}
	frozen, pause, err := src.frozen(ctx)
	if err != nil {
		return nil, 0, err
	}
	at := now()
	st := *src.st
	st.ID, st.Name, st.Title, st.Phase, st.Created = notes.NewID(at), name, p.Title, PhaseCreating, at
	st.Parent, st.ParentID = src.st.Name, src.st.ID
	st.Lineage = append(slices.Clone(src.st.Lineage), Ancestor{Name: src.st.Name, Until: at})
	st.Base, st.First = res.tip, res.tip
	st.Layers = append(frozen, notes.NewID(at))
	st.RootFS = notes.NewID(at)
	st.Outputs = outputs
	if st.Ports, err = e.portsToFork(&st); err != nil {
		return nil, 0, err
	}
	st.Workspace = e.store.WorkspaceDir(name, set.WorkspaceDir, DataHome())
	if st.Title == "" {
		st.Title = src.st.Title
	}
	return &st, pause, nil
}

// outputsToFork is the tree of outputs that a fork begins with; "" when the
// source has none, or an earlier environment of that name left its own.
func (e *Engine) outputsToFork(ctx context.Context, from, to string) (string, error) {
	outputs, err := e.store.ref(ctx, OutputRef(from))
	if err != nil || outputs == "" {
		return "", err
	}
	old, err := e.store.ref(ctx, OutputRef(to))
	if err != nil || old != "" {
		return "", err
	}
	return outputs, nil
}

// freeze seals the writable layer and puts an empty one on top. The new layer is
// named in env.json before anything can be written into it. It returns for how
// long writes were held up.
func (v *Env) freeze(ctx context.Context) (time.Duration, error) {
	next := *v.st
	next.Layers = append(slices.Clone(v.st.Layers), notes.NewID(now()))
	if err := v.e.store.save(&next); err != nil {
		return 0, err
	}
	// Not cut short: it would go on over there, and what is written next would be
	// in a layer that nobody names.
	done, err := v.files.Freeze(context.WithoutCancel(ctx), v.st.ID, next.top())
	if errors.Is(err, fusefs.ErrServerDead) {
		v.st = &next // perhaps it was done; if not, the next mount makes the new top
		return 0, fmt.Errorf("cannot freeze the workspace: %w", err)
	}
	if errors.Is(err, fusefs.ErrOpenForWriting) {
		err = Errorf(ExitBusy, "environment '%s': %w", v.st.Name, err).
			WithHint("with env.fsProfile=io nothing can be forked while a file is open for writing; wait, or stop what writes")
		return 0, errors.Join(err, v.e.store.save(v.st))
	}
	if err != nil {
		// Still on the old top: go back to naming it as the writable one.
		return 0, errors.Join(fmt.Errorf("cannot freeze the workspace: %w", err), v.e.store.save(v.st))
	}
	v.st = &next
	return done.Pause, nil
}

// forkRootFS branches the container's root filesystem off, if there is one yet.
// An idle container is stopped for it, which makes the branch cost nothing;
// beside a running exec what was written is copied.
func (e *Engine) forkRootFS(ctx context.Context, src *Env, st *State) (err error) {
	if src.ctr == nil && !src.hadContainer() {
		return nil
	}
	b, err := e.runtimeBackend(ctx)
	if err != nil {
		return err
	}
	if _, execs := src.use(); execs == 0 && len(src.servicesUp()) == 0 {
		if err := errors.Join(src.removeBoxes(ctx), src.stopContainer(ctx)); err != nil {
			return err
		}
	}
	if len(src.servicesUp()) > 0 {
		letGo, still := src.standStill(ctx)
		if still != nil {
			return fmt.Errorf("cannot hold the services still: %w", still)
		}
		defer func() { err = errors.Join(err, letGo()) }()
	}
	img, err := b.Resolve(ctx, src.imageRef(), nil)
	if err != nil {
		return imageError(src.st.Image.Ref, err)
	}
	err = b.ForkRootFS(ctx, src.st.RootFS, st.RootFS, img)
	// When there is none yet, no exec has run there: the fork starts from the image
	// too.
	if err != nil && !errors.Is(err, runtime.ErrNotFound) {
		return fmt.Errorf("cannot fork the root filesystem: %w", err)
	}
	return e.forkServices(ctx, b, src, st)
}

// hadContainer says whether a container ever ran, so that a root filesystem may
// exist.
func (v *Env) hadContainer() bool {
	_, err := os.Stat(filepath.Join(v.dir(), "started"))
	return err == nil
}

// dropRootFS removes the root filesystem of an environment that may have one.
func (e *Engine) dropRootFS(ctx context.Context, st *State) error {
	if _, err := os.Stat(filepath.Join(e.store.EnvDir(st.Name), "started")); err != nil {
		return nil //nolint:nilerr // none was ever made
	}
	b, err := e.runtimeBackend(ctx)
	if err != nil {
		return err
	}
	if err := b.RemoveRootFS(ctx, st.RootFS); err != nil {
		return fmt.Errorf("cannot remove the root filesystem: %w", err)
	}
	return e.dropBoxes(ctx, b, st.Name)
}

// copySkipped takes over what commits of the source left in the workspace, which
// is in the fork's workspace too, that it has a root filesystem, and how far it was prepared.
func copySkipped(from, to string) error {
	for _, name := range []string{"skipped.json", heldObjects, "started", "setup.json"} {
		data, err := os.ReadFile(filepath.Join(from, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := durable.WriteFile(filepath.Join(to, name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}
