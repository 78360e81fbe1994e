package environment

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/internal/objects"
)

const (
	// hydrateFiles and hydrateBytes bound one request of the file server: between
	// two the progress is told and an interruption noticed.
	hydrateFiles, hydrateBytes = 512, 8 << 20
	// hydrateSizes is how many sizes are looked up at once, and with it how many
	// objects of a partial clone are fetched at once.
	hydrateSizes = 4096
	// hydrateWarnings bounds how many failures are told one by one.
	hydrateWarnings = 10
)

// Hydrate brings the content of all files of an environment's tree into the
// cache, or of those below some paths. What is there already is checked. It can
// be interrupted, and goes on where it was when it is called again.
func (e *Engine) Hydrate(ctx context.Context, p api.Hydrate, rep Reporter) (*api.Hydrated, error) {
	v, err := e.env(p.Env)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	tree, shown := v.st.Tree, v.st.Paths
	v.mu.Unlock()
	defer v.touch()
	paths, err := hydratePaths(p.Paths)
	if err != nil {
		return nil, err
	}
	ids, err := e.hydrateList(ctx, tree, shown, paths)
	if err != nil {
		return nil, err
	}
	blobs, total, err := e.hydrateSizes(ctx, ids, rep)
	if err != nil {
		return nil, err
	}
	return e.hydrate(ctx, blobs, total, rep)
}

// hydratePaths cleans paths that are relative to the top of the tree; none for
// all of it.
func hydratePaths(given []string) ([]string, error) {
	var paths []string
	for _, p := range given {
		clean := path.Clean(p)
		if path.IsAbs(clean) || clean == ".." || strings.HasPrefix(clean, "../") {
			return nil, Errorf(ExitUsage, "'%s' is outside of the tree", p).WithHint("paths are relative to the top of the tree")
		}
		if clean == "." {
			return nil, nil
		}
		paths = append(paths, clean)
	}
	return paths, nil
}

// hydrateList returns the blobs of all regular files of a tree that are below
// one of shown and one of paths; an empty list of either is no restriction.
func (e *Engine) hydrateList(ctx context.Context, tree string, shown, paths []string) ([]string, error) {
	for _, p := range paths {
		if _, err := e.store.Reader.Path(ctx, tree, p); errors.Is(err, objects.ErrNotFound) {
			return nil, Errorf(ExitFailed, "'%s' did not match any file of the tree that the environment started from", p)
		} else if err != nil {
			return nil, err
		}
		if !atOrBelow(p, shown) && !leadsTo(p, shown) {
			return nil, Errorf(ExitFailed, "'%s' is not shown in this sparse environment", p)
		}
	}
	var ids []string
	seen := map[string]struct{}{}
	var walk func(id, dir string) error
	walk = func(id, dir string) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		entries, err := e.store.Reader.Tree(ctx, id)
		if err != nil {
			return err
		}
		for _, en := range entries {
			name := path.Join(dir, en.Name)
			in := atOrBelow(name, shown) && atOrBelow(name, paths)
			switch {
			case en.Mode.IsTree():
				if in || (atOrBelow(name, shown) || leadsTo(name, shown)) && (atOrBelow(name, paths) || leadsTo(name, paths)) {
					if err := walk(en.ID, name); err != nil {
						return err
					}
				}
			case en.Mode.IsFile() && in:
				if _, dup := seen[en.ID]; !dup {
					seen[en.ID] = struct{}{}
					ids = append(ids, en.ID)
				}
			}
		}
		return nil
	}
	if err := walk(tree, ""); err != nil {
		return nil, err
	}
	return ids, nil
}

// atOrBelow reports whether name is one of paths or in one of them.
func atOrBelow(name string, paths []string) bool {
	return len(paths) == 0 || slices.ContainsFunc(paths, func(p string) bool {
		return name == p || strings.HasPrefix(name, p+"/")
	})
}

// leadsTo reports whether one of paths is in directory name.
func leadsTo(name string, paths []string) bool {
	return slices.ContainsFunc(paths, func(p string) bool { return strings.HasPrefix(p, name+"/") })
}

// hydrateSizes looks the blobs' sizes up. In a partial clone it fetches what is
// missing.
func (e *Engine) hydrateSizes(ctx context.Context, ids []string, rep Reporter) (blobs []fusefs.Blob, total int64, err error) {
	var room int64
	for part := range slices.Chunk(ids, hydrateSizes) {
		if e.store.Reader.Partial() {
			rep.Progress("Fetching objects", int64(len(blobs)), int64(len(ids)))
		}
		sizes, err := e.store.Reader.SizesIf(ctx, part)
		if err != nil {
			return nil, 0, err
		}
		for i, size := range sizes {
			blobs = append(blobs, fusefs.Blob{ID: part[i], Size: size})
			total += max(size, 0)
			room += fusefs.CacheSize(max(size, 0))
		}
	}
	if limit := e.setting.BlobCache; limit > 0 && room > fusefs.CacheRoom(limit) {
		return nil, 0, Errorf(ExitFailed, "the content of %d files takes %s, more than the cache may hold: env.blobCache is %s", len(blobs), bytesText(room), bytesText(limit)).
			WithHint("name paths to fetch less, or raise env.blobCache and stop the daemon with 'git env daemon stop', which reads it when it starts")
	}
	return blobs, total, nil
}

func (e *Engine) hydrate(ctx context.Context, blobs []fusefs.Blob, total int64, rep Reporter) (*api.Hydrated, error) {
	done := &api.Hydrated{Blobs: len(blobs), Bytes: total}
	failed, warned := 0, 0
	var bytes int64
	for len(blobs) > 0 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		rep.Progress("Hydrating", bytes, total)
		n, size := 0, int64(0)
		for n < len(blobs) && n < hydrateFiles && size < hydrateBytes {
			size += max(blobs[n].Size, 0)
			n++
		}
		// Each time, since it may have been replaced.
		files, err := e.fileServer(ctx)
		if err != nil {
			return nil, err
		}
		part, err := files.Hydrate(ctx, blobs[:n])
		if err != nil {
			return nil, err
		}
		done.Fetched += part.Fetched
		failed += part.Failed
		for _, reason := range part.Reasons {
			if warned++; warned <= hydrateWarnings {
				rep.Warn(reason)
			}
		}
		blobs, bytes = blobs[n:], bytes+size
	}
	if failed > 0 {
		return nil, Errorf(ExitFailed, "the content of %d of %d files cannot be had", failed, done.Blobs).
			WithHint("'git fsck' checks the repository; the others are there")
	}
	return done, nil
}

// bytesText says a number of bytes for people.
func bytesText(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d bytes", n)
	}
	value, suffix := float64(n), ""
	for _, suffix = range []string{"KiB", "MiB", "GiB", "TiB"} {
		if value /= unit; value < unit {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", value, suffix)
}
