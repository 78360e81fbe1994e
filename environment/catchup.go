package environment

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/git-env/git-env/fusefs"
)

// After a commit the host's index and git inside are brought up to it beside, since
// that takes time by the number of files in the tree, which no exec is to wait for.
// Nobody sees them behind: before the branch moves, the workspace's file .git is
// put on hold, through which git finds either of them, and let go when they are
// there. What moves meanwhile is done in one go.

// lockPatience is for how long readers are kept waiting for an index that a git of
// the user's has locked.
const lockPatience = 2 * time.Second

// quietFor is for how long no commit must come before the indexes are written,
// unless somebody waits for them: who runs one command after another is not to
// share the processors with that. quietMost bounds it.
const (
	quietFor  = 60 * time.Millisecond
	quietMost = time.Second
)

// catchUp is what an Env knows of its indexes.
type catchUp struct {
	// work is held while one of them is written; before mu.
	work sync.Mutex
	cone *fusefs.Cone // what is hidden; nil until it is read, guarded by work

	mu     sync.Mutex
	at     *standing     // nil until it is read, guarded by mu
	target string        // what they are to stand for next; "" when they do, guarded by mu
	done   chan struct{} // of the job; nil when there is none, guarded by mu
	stop   func()        // the job, guarded by mu
	newer  chan struct{} // of the job: another commit came; guarded by mu
	hurry  chan struct{} // of the job: closed when somebody waits for it; guarded by mu, nil then
	gaveUp bool          // readers wait no longer, guarded by mu
	moving int           // commits that are about to move the branch, guarded by mu

	holdMu sync.Mutex // one call at a time; before mu
	held   bool       // guarded by holdMu
	holder *fusefs.Client
}

// hold keeps readers of the indexes waiting because the branch is about to move;
// the caller calls the result when it has, or will not. v.mu is held and the
// workspace mounted.
func (v *Env) hold(ctx context.Context) (release func()) {
	c := &v.catch
	c.mu.Lock()
	c.moving++
	c.mu.Unlock()
	v.settleHold(ctx, v.files)
	return func() {
		c.mu.Lock()
		c.moving--
		c.mu.Unlock()
		v.settleHold(ctx, nil)
	}
}

// settleHold puts the file .git on hold or lets it go, as it is to be. fc is the
// file server to tell, nil for the one that was told last.
func (v *Env) settleHold(ctx context.Context, fc *fusefs.Client) {
	c := &v.catch
	c.holdMu.Lock()
	defer c.holdMu.Unlock()
	if fc != nil && fc != c.holder {
		c.holder, c.held = fc, false
	}
	c.mu.Lock()
	want := c.moving > 0 || c.done != nil && !c.gaveUp
	c.mu.Unlock()
	if want == c.held || c.holder == nil {
		return
	}
	err := c.holder.Hold(context.WithoutCancel(ctx), v.fixed.ID, want)
	if err != nil && !errors.Is(err, fusefs.ErrServerDead) && !errors.Is(err, fusefs.ErrNotMounted) {
		v.e.log.Warn("cannot hold readers of the indexes", "env", v.name, "err", err)
		return
	}
	c.held = want
}

// mountedHeld notes that the workspace was just mounted, with its file .git on
// hold or not.
func (v *Env) mountedHeld(fc *fusefs.Client, on bool) {
	v.catch.holdMu.Lock()
	defer v.catch.holdMu.Unlock()
	v.catch.holder, v.catch.held = fc, on
}

// standing returns what the indexes stand for; tip is the branch's.
func (v *Env) standing(tip string) standing {
	v.catch.mu.Lock()
	defer v.catch.mu.Unlock()
	if v.catch.at == nil {
		s, noted := v.loadStanding(tip)
		if !noted { // before the branch moves on
			v.noteStanding(s)
		}
		v.catch.at = &s
	}
	return *v.catch.at
}

// stands notes what the indexes stand for now.
func (v *Env) stands(change func(*standing)) {
	c := &v.catch
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == nil {
		return // read before anything is changed
	}
	next := *c.at
	change(&next)
	if next == *c.at {
		return
	}
	v.noteStanding(next)
	*c.at = next
}

func (v *Env) noteStanding(s standing) {
	if err := v.saveStanding(s); err != nil {
		v.e.log.Warn("cannot note what the indexes stand for", "env", v.name, "err", err)
		discard(v.standingPath()) // rather unknown than wrong
	}
}

// follow has the indexes brought up to a commit, beside. v.mu is held.
func (v *Env) follow(tip string) {
	v.standing(tip)
	c := &v.catch
	c.mu.Lock()
	defer c.mu.Unlock()
	c.target = tip
	if c.done != nil {
		c.gaveUp = false // the lock that it waits for may be gone by now
		select {
		case c.newer <- struct{}{}:
		default:
		}
		return
	}
	ctx, stop := context.WithCancel(v.e.life)
	done := make(chan struct{})
	c.done, c.stop, c.gaveUp = done, stop, false
	c.newer, c.hurry = make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer stop()
		v.catchUp(ctx)
		v.settleHold(ctx, nil)
		close(done)
	}()
}

// catchUp works until there is nothing left to do, or ctx ends.
func (v *Env) catchUp(ctx context.Context) {
	c := &v.catch
	c.mu.Lock()
	newer, hurry := c.newer, c.hurry
	c.mu.Unlock()
	for {
		v.quiet(ctx, newer, hurry)
		c.mu.Lock()
		target := c.target
		c.target = ""
		if target == "" || ctx.Err() != nil {
			c.done = nil
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		took := startLaps()
		if err := v.bringUp(ctx, target, took); err != nil && ctx.Err() == nil {
			v.e.log.Warn("cannot update the indexes", "env", v.name, "err", err)
		}
		v.e.log.Debug("indexes", append([]any{"env", v.name}, took.parts...)...)
	}
}

// quiet waits until no commit has come for a while, somebody waits for the
// indexes, or ctx ends.
func (v *Env) quiet(ctx context.Context, newer, hurry <-chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, quietMost)
	defer cancel()
	c := &v.catch
	c.holdMu.Lock()
	holder := c.holder
	c.holdMu.Unlock()
	if holder != nil {
		go func() {
			defer cancel()
			_ = holder.Awaited(ctx, v.fixed.ID) // whatever it says, there is nothing to wait for
		}()
	}
	t := time.NewTimer(quietFor)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return
		case <-newer:
			t.Reset(quietFor)
		case <-hurry:
			return
		case <-ctx.Done():
			return
		}
	}
}

// hurryUp has a job that waits for quiet begin. mu is held.
func (c *catchUp) hurryUp() {
	if c.hurry != nil {
		close(c.hurry)
		c.hurry = nil
	}
}

// bringUp brings both indexes up to a commit: git inside first when the host's
// index is locked, which may be for long.
func (v *Env) bringUp(ctx context.Context, target string, took *laps) error {
	err := v.bringHost(ctx, target)
	took.lap("host")
	locked := errors.Is(err, errIndexLocked)
	if err != nil && !locked {
		return err
	}
	if err := v.bringInside(ctx, target); err != nil {
		return fmt.Errorf("git inside: %w", err)
	}
	took.lap("inside")
	if !locked {
		return nil
	}
	return v.awaitLock(ctx, target)
}

// awaitLock tries again until the index is free. Readers do not wait for ever: it
// is a git of theirs that holds it.
func (v *Env) awaitLock(ctx context.Context, target string) error {
	const first, most = 2 * time.Millisecond, 250 * time.Millisecond
	c := &v.catch
	since := time.Now()
	for pause := first; ; pause = min(2*pause, most) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
		c.mu.Lock()
		newer := c.target != ""
		late := !c.gaveUp && time.Since(since) > lockPatience
		c.gaveUp = c.gaveUp || late
		c.mu.Unlock()
		if newer {
			return nil // the next round waits again
		}
		if late {
			v.settleHold(ctx, nil)
		}
		if err := v.bringHost(ctx, target); !errors.Is(err, errIndexLocked) {
			return err
		}
	}
}

// awaitIndexes waits until the indexes stand for the branch, or will not soon.
// v.mu is held, so the branch does not move meanwhile.
func (v *Env) awaitIndexes(ctx context.Context) error {
	const most = 10 * time.Second
	c := &v.catch
	c.mu.Lock()
	done := c.done
	c.hurryUp()
	c.mu.Unlock()
	if done == nil {
		return nil
	}
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-done:
		return nil
	case <-t.C:
		return Errorf(ExitBusy, "the index of environment '%s' is locked by another git", v.name).
			WithHint("end it, or remove '%s.lock' if there is none", v.indexPath())
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stopFollowing ends the job; what it has not done is done after the next mount.
func (v *Env) stopFollowing() {
	c := &v.catch
	c.mu.Lock()
	done, stop := c.done, c.stop
	c.mu.Unlock()
	if done != nil {
		stop()
		<-done
	}
}

// behind says whether the indexes do not stand for the branch's tip. v.mu is held.
func (v *Env) behind(tip string) bool {
	at := v.standing(tip)
	return at.Host != tip && exists(v.indexPath()) || at.Inside != tip && exists(v.insideDir())
}

// lateHold is a hold of the commit under way, from when it is needed.
type lateHold struct {
	v       *Env
	release func()
	// follow is what the indexes are to follow when the commit fails; "" for
	// nothing.
	follow string
}

// begin puts readers on hold; once is enough.
func (h *lateHold) begin(ctx context.Context) {
	if h != nil && h.release == nil {
		h.release = h.v.hold(ctx)
	}
}

func (h *lateHold) end() {
	if h.follow != "" {
		h.v.follow(h.follow)
	}
	if h.release != nil {
		h.release()
	}
}
