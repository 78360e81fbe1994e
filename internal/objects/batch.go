package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Blobs reads many blobs, in the order of ids, with one exchange for all of
// them. For each it calls take with the index in ids, the size and the content,
// which is valid during the call, or with why there is none. The blob that git
// cannot read is the only one that fails; an error of take ends the whole. It
// is meant for some hundred blobs a call: a process serves nobody else
// meanwhile.
func (r *Reader) Blobs(ctx context.Context, ids []string, take func(i int, size int64, content io.Reader, err error) error) error {
	for _, id := range ids {
		if !isID(id) {
			return fmt.Errorf("invalid object id '%s'", id)
		}
	}
	missing, err := r.blobs(ctx, ids, take, r.partial() != nil)
	if err != nil || len(missing) == 0 {
		return err
	}
	again := make([]string, len(missing))
	for i, at := range missing {
		again[i] = ids[at]
	}
	if err = r.promised(ctx, again); err == nil {
		_, err = r.blobs(ctx, again, func(i int, size int64, content io.Reader, err error) error {
			return take(missing[i], size, content, err)
		}, false)
		return err
	}
	for i, at := range missing {
		if err := take(at, 0, nil, fmt.Errorf("blob %s: %w", again[i], err)); err != nil {
			return err
		}
	}
	return nil
}

// blobs is Blobs for what is here. With later it returns the indexes of what is
// not, instead of telling take.
func (r *Reader) blobs(ctx context.Context, ids []string, take func(int, int64, io.Reader, error) error, later bool) (missing []int, err error) {
	r = r.here()
	for next := 0; next < len(ids); {
		start := next
		err := r.do(ctx, "contents", ids[start:], func(p *proc) error {
			for next < len(ids) {
				err := takeBlob(p, ids[next], func(size int64, content io.Reader, err error) error {
					if later && errors.Is(err, ErrNotFound) {
						missing = append(missing, next)
						return nil
					}
					return take(next, size, content, err)
				})
				var broken *brokenError
				if errors.As(err, &broken) && next > start {
					broken.final = true // some were taken already
				}
				if err != nil {
					return err
				}
				next++
			}
			return nil
		})
		var taken *takeError
		switch {
		case err == nil:
			return missing, nil
		case ctx.Err() != nil, errors.Is(err, errClosed):
			return nil, err
		case errors.As(err, &taken):
			return nil, taken.err
		case next > start:
			continue // the next one is what git ended over, or it was killed
		}
		if err := take(next, 0, nil, err); err != nil {
			return nil, err
		}
		next++
	}
	return missing, nil
}

// takeError is a failure of the receiver.
type takeError struct{ err error }

func (e *takeError) Error() string { return e.err.Error() }

// takeBlob reads the answer about one blob and leaves none of it.
func takeBlob(p *proc, id string, take func(int64, io.Reader, error) error) error {
	taken := func(err error) error {
		if err != nil {
			return &brokenError{err: &takeError{err}, final: true}
		}
		return nil
	}
	in, err := p.answer(id)
	if errors.Is(err, ErrNotFound) {
		return taken(take(0, nil, err))
	}
	if err != nil {
		return &brokenError{err: err}
	}
	body := &io.LimitedReader{R: p.out, N: in.size}
	if in.kind == KindBlob {
		err = take(in.size, body, nil)
	} else {
		err = take(0, nil, fmt.Errorf("object %s is a %s, not a blob", id, in.kind))
	}
	if err != nil {
		return taken(err)
	}
	if _, err := io.Copy(io.Discard, body); err != nil || body.N > 0 {
		return &brokenError{err: io.ErrUnexpectedEOF, final: true}
	}
	if _, err := p.out.Discard(1); err != nil {
		return &brokenError{err: err, final: true}
	}
	return nil
}

// SizesIf is Sizes with -1 for an object that the repository does not have. In
// a partial clone what was promised is fetched first, all at once; an error
// means that this failed.
func (r *Reader) SizesIf(ctx context.Context, ids []string) ([]int64, error) {
	sizes, err := r.sizes(ctx, ids)
	if err != nil || r.partial() == nil {
		return sizes, err
	}
	if !slices.Contains(sizes, -1) {
		return sizes, nil
	}
	if err := r.promised(ctx, ids); err != nil {
		return nil, err
	}
	return r.sizes(ctx, ids)
}

// SizesHere is Sizes with -1 for an object that is not here, without fetching
// anything.
func (r *Reader) SizesHere(ctx context.Context, ids []string) ([]int64, error) {
	return r.sizes(ctx, ids)
}

func (r *Reader) sizes(ctx context.Context, ids []string) ([]int64, error) {
	r = r.here()
	for _, id := range ids {
		if !isID(id) {
			return nil, fmt.Errorf("invalid object id '%s'", id)
		}
	}
	sizes := make([]int64, len(ids))
	for start := 0; start < len(ids); start += pipeline {
		part := ids[start:min(start+pipeline, len(ids))]
		err := r.do(ctx, "info", part, func(p *proc) error {
			for i, id := range part {
				in, err := p.answer(id)
				switch {
				case errors.Is(err, ErrNotFound):
					in.size = -1
				case err != nil:
					return err
				}
				sizes[start+i] = in.size
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return sizes, nil
}
