package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// brokenError means that a process cannot be used any more.
type brokenError struct {
	err     error
	message string // what git said
	final   bool   // another process must not be asked the same
}

func (e *brokenError) Unwrap() error { return e.err }

func (e *brokenError) Error() string {
	if e.message != "" {
		return e.message
	}
	return fmt.Sprintf("git cat-file ended: %v", e.err)
}

// refusedError is a failure that leaves the process usable.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// drain reads an unwanted answer to its end if that is cheaper than another
// process, and returns why it was unwanted.
func (p *proc) drain(in info, why error) error {
	if in.size > drainLimit {
		return &brokenError{err: why, final: true}
	}
	if _, err := p.body(io.Discard, in.size); err != nil {
		return &brokenError{err: why, final: true}
	}
	return &refusedError{why}
}

// do sends a request and has the answer read. When the process turns out to be
// dead, which the first use after its death shows, a new one is asked.
func (r *Reader) do(ctx context.Context, verb string, revs []string, read func(*proc) error) error {
	p, err := r.acquire(ctx)
	if err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		if p == nil {
			if p, err = startProc(r.git); err != nil {
				r.slots <- nil
				return err
			}
		}
		err = ask(ctx, p, verb, revs, read)
		if usable(err) {
			r.slots <- p
			return plain(err)
		}
		p.close()
		message := p.stderr.message()
		p = nil
		if ctx.Err() != nil {
			r.slots <- nil
			return context.Cause(ctx)
		}
		var broken *brokenError
		final := errors.As(err, &broken) && broken.final
		if final || attempt > 0 {
			r.slots <- nil
			if final && message == "" {
				return broken.err
			}
			return &brokenError{err: err, message: message}
		}
	}
}

func (r *Reader) acquire(ctx context.Context) (*proc, error) {
	select {
	case <-r.done:
		return nil, errClosed
	default:
	}
	select {
	case p := <-r.slots:
		return p, nil
	case <-r.done:
		return nil, errClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// ask does one exchange. A context that ends kills the process: there is no
// other way to interrupt it.
func ask(ctx context.Context, p *proc, verb string, revs []string, read func(*proc) error) error {
	stop := context.AfterFunc(ctx, p.kill)
	err := p.send(verb, revs...)
	if err == nil {
		err = read(p)
	}
	if !stop() {
		return &brokenError{err: context.Cause(ctx), final: true}
	}
	return err
}

// usable reports whether the process can take the next request.
func usable(err error) bool {
	var refused *refusedError
	return err == nil || errors.Is(err, ErrNotFound) || errors.As(err, &refused)
}

func plain(err error) error {
	var refused *refusedError
	if errors.As(err, &refused) {
		return refused.err
	}
	return err
}
