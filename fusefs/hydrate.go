package fusefs

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// A Blob is a blob of a repository; Size is -1 when git does not have it.
type Blob struct {
	ID   string
	Size int64
}

// Hydrated is what a call of Hydrate did.
type Hydrated struct {
	// Fetched counts the blobs that were not there.
	Fetched int
	// Failed counts those that cannot be had, and Reasons says why, of a few.
	Failed  int
	Reasons []string
}

// Hydrate brings blobs into the cache and checks those that are there. It needs
// no mount. It is meant for some hundred blobs a call, which cannot be
// interrupted.
func (c *Client) Hydrate(ctx context.Context, blobs []Blob) (Hydrated, error) {
	resp, err := c.call(ctx, &request{Op: opHydrate, Blobs: blobs}, nil)
	return resp.Hydrated, err
}

// maxReasons bounds Hydrated.Reasons.
const maxReasons = 5

func (h *Hydrated) fail(err error) {
	h.Failed++
	if len(h.Reasons) < maxReasons {
		h.Reasons = append(h.Reasons, err.Error())
	}
}

// hydrate answers Client.Hydrate.
func (b *blobStore) hydrate(ctx context.Context, blobs []Blob) (Hydrated, error) {
	var done Hydrated
	var group []wanted
	var bytes int64
	flush := func() error {
		err := b.hydrateGroup(ctx, group, &done)
		group, bytes = group[:0], 0
		return err
	}
	for _, blob := range blobs {
		if !isBlobID(blob.ID) {
			return done, fmt.Errorf("bad blob id %q", blob.ID)
		}
		if blob.Size < 0 {
			if !b.keeps(blob.ID) {
				done.fail(fmt.Errorf("blob %s is neither in the repository nor in the cache", blob.ID))
			}
			continue
		}
		group = append(group, wanted{blob.ID, blob.Size})
		if bytes += blob.Size; len(group) < aheadGroup && bytes < aheadGroupBytes {
			continue
		}
		if err := flush(); err != nil {
			return done, err
		}
	}
	return done, flush()
}

func (b *blobStore) hydrateGroup(ctx context.Context, group []wanted, done *Hydrated) error {
	for _, item := range group {
		if !exists(b.path(item.id)) {
			b.forget(item.id) // removed by hand
		}
	}
	failed := map[string]bool{}
	n, err := b.fetchGroup(ctx, group, true, func(id string, err error) {
		failed[id] = true
		done.fail(err)
	})
	done.Fetched += n
	if err != nil {
		return hydrateError(err)
	}
	for _, item := range group {
		if failed[item.id] || b.isGood(item.id) {
			continue
		}
		// There, to be checked, or on its way for somebody else.
		f, fetched, err := b.get(ctx, item.id, item.size)
		if err != nil {
			done.fail(err)
			continue
		}
		f.Close()
		if fetched {
			done.Fetched++
		}
	}
	return nil
}

// keeps reports whether a blob that git does not have is in the cache.
func (b *blobStore) keeps(id string) bool {
	st, err := os.Lstat(b.path(id))
	if err != nil {
		return false
	}
	f := b.check(id, st.Size())
	if f == nil {
		return false
	}
	f.Close()
	b.setGood(id)
	return true
}

// hydrateError makes the end of a fetch for lack of room say so.
func hydrateError(err error) error {
	if errors.Is(err, errGivenUp) {
		return fmt.Errorf("the cache of blobs cannot be written; daemon.log says why")
	}
	return err
}
