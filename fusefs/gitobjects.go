package fusefs

import (
	"context"
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
	return g.r.Sizes(ctx, ids)
}

func (g gitObjects) Blob(ctx context.Context, id string, w io.Writer) (int64, error) {
	return g.r.Blob(ctx, id, w)
}
