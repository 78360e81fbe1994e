package gitcmd

import (
	"context"
	"os"
	"sync"
)

// RefTransaction is a git update-ref that is started before its updates are
// known, so that the start of a process does not come on top of what has to be
// waited for. It locks nothing and reads no ref until Run. Safe for concurrent
// use; only the first Run has the head start.
type RefTransaction struct {
	g    *Git
	msg  string
	stop context.CancelFunc

	mu    sync.Mutex
	stdin *os.File   // guarded by mu; nil when the process is used up
	done  chan error // yields how the process ended
}

// StartUpdate starts a transaction. The caller closes it. It cannot fail: when
// the process does, Run starts another.
func (g *Git) StartUpdate(reflogMsg string) *RefTransaction {
	ctx, stop := context.WithCancel(context.Background())
	t := &RefTransaction{g: g, msg: reflogMsg, stop: stop, done: make(chan error, 1)}
	r, w, err := os.Pipe()
	if err != nil {
		return t
	}
	t.stdin = w
	go func() {
		defer r.Close()
		_, err := g.Output(ctx, r, updateArgs(reflogMsg)...)
		t.done <- err
	}()
	return t
}

// Run is UpdateRefs.
func (t *RefTransaction) Run(ctx context.Context, ups ...RefUpdate) error {
	t.mu.Lock()
	stdin := t.stdin
	t.stdin = nil
	t.mu.Unlock()
	if stdin == nil || len(ups) == 0 {
		if stdin != nil {
			_ = stdin.Close()
		}
		return t.g.UpdateRefs(ctx, t.msg, ups...)
	}
	first := true
	return t.g.updateRefs(ctx, ups, func(input []byte) error {
		if !first {
			return t.g.UpdateRefs(ctx, t.msg, ups...)
		}
		first = false
		_, err := stdin.Write(input)
		if cerr := stdin.Close(); err == nil {
			err = cerr
		}
		if werr := <-t.done; werr != nil {
			return werr
		}
		return err
	})
}

// Close ends the process if it was not used.
func (t *RefTransaction) Close() {
	t.mu.Lock()
	stdin := t.stdin
	t.stdin = nil
	t.mu.Unlock()
	if stdin != nil {
		// Killed before its input ends, it does nothing; an empty input would do
		// nothing either.
		t.stop()
		_ = stdin.Close()
		<-t.done
	}
}
