package integrate

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/git-env/git-env/environment"
)

// WorkTree writes a tree object of the work tree as it is: everything tracked
// and everything untracked that is not ignored. The user's index and files are
// not touched.
func (t *Tree) WorkTree(ctx context.Context) (string, error) {
	dir, err := os.MkdirTemp("", "git-env-index-")
	if err != nil {
		return "", environment.Errorf(environment.ExitFailed, "cannot make a temporary index: %w", err)
	}
	defer os.RemoveAll(dir)
	index := filepath.Join(dir, "index")
	if err := copyFile(t.gitPath("index"), index); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", environment.Errorf(environment.ExitFailed, "cannot copy the index: %w", err)
	}
	g := t.git.WithEnv("GIT_INDEX_FILE=" + index)
	if _, err := g.Output(ctx, nil, "-c", "advice.addEmbeddedRepo=false", "add", "-A"); err != nil {
		return "", environment.Errorf(environment.ExitFailed, "cannot read the uncommitted work: %w", err)
	}
	return g.Line(ctx, "write-tree")
}
