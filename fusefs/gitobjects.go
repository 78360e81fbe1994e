package fusefs

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/git-env/git-env/internal/objects"
)

// gitObjects reads the objects of a repository.
type gitObjects struct{ r *objects.Reader }

func (g gitObjects) Tree(ctx context.Context, id string) ([]TreeEntry, error) {
	entries, err := g.r.Tree(ctx, id)
	if err != nil {
		return nil, err
	}
	out := make([]TreeEntry, len(entries))
	for i, e := range entries {
		out[i] = TreeEntry{Name: e.Name, Mode: uint32(e.Mode), ID: e.ID}
	}
	return out, nil
}

func (g gitObjects) Sizes(ctx context.Context, ids []string) ([]int64, error) {
	return g.r.SizesIf(ctx, ids)
}

func (g gitObjects) Blob(ctx context.Context, id string, w io.Writer) (int64, error) {
	return g.r.Blob(ctx, id, w)
}

func (g gitObjects) Blobs(ctx context.Context, ids []string, take func(int, int64, io.Reader, error) error) error {
	return g.r.Blobs(ctx, ids, func(i int, size int64, content io.Reader, err error) error {
		if err != nil && !errors.Is(err, objects.ErrFetch) {
			err = fmt.Errorf("blob %s cannot be had: %w; 'git fsck' tells more", ids[i], err)
		}
		return take(i, size, content, err)
	})
}
