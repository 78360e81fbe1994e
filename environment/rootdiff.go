package environment

import (
	"context"
	"errors"
	"strings"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/runtime"
)

// rootDiffBytes bounds the paths in one answer.
const rootDiffBytes = 1 << 20

// RootDiff tells what an environment changed in its root filesystem. One that
// never ran has none, which is no change.
func (e *Engine) RootDiff(ctx context.Context, p api.RootDiff) (*api.RootDiffed, error) {
	v, err := e.env(p.Env)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	id := v.st.RootFS
	v.mu.Unlock()
	b, err := e.runtimeBackend(ctx)
	if err != nil {
		return nil, err
	}
	ans, seen, bytes := &api.RootDiffed{Changes: []api.RootChange{}}, 0, 0
	full := errors.New("enough for one answer")
	err = b.DiffRootFS(ctx, id, func(c runtime.RootChange) error {
		if ours(c.Path) {
			return nil
		}
		if seen++; seen <= p.After {
			return nil
		}
		if bytes > rootDiffBytes {
			return full
		}
		bytes += len(c.Path) + 64
		ans.Changes = append(ans.Changes, api.RootChange{Status: string(rune(c.Status)), Path: []byte(c.Path), Dir: c.Dir})
		return nil
	})
	switch {
	case errors.Is(err, full):
		ans.More = true
	case err != nil && !errors.Is(err, runtime.ErrNotFound):
		return nil, err
	}
	return ans, nil
}

// ours reports whether a path is where something of ours is mounted: the runtime
// makes the directories for that.
func ours(p string) bool {
	return p == defaultWorkdir || p == insideRoot || strings.HasPrefix(p, insideRoot+"/")
}
