package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/runtime"
)

// DiffRootFS implements runtime.Backend.
func (b *Backend) DiffRootFS(ctx context.Context, id string, fn func(runtime.RootChange) error) error {
	if err := checkID(id); err != nil {
		return err
	}
	defer b.roots.lock(id)()
	st, err := b.roots.load(id)
	if err != nil {
		return err
	}
	overlays := slices.Clone(st.Overlays)
	slices.SortFunc(overlays, func(x, y overlay) int { return strings.Compare(x.Target, y.Target) })
	for _, o := range overlays {
		d := rootDiffer{ctx: ctx, fn: fn, targets: map[string]bool{}}
		for _, other := range overlays {
			d.targets[other.Target] = true
		}
		base, err := b.lowersOf(ctx, id, st, o)
		if err != nil {
			return err
		}
		changed := []string{b.roots.path(id, "top", o.Name)}
		for _, layer := range slices.Backward(st.Sealed) {
			changed = append(changed, b.roots.sealedPath(layer, o.Name))
		}
		if err := d.directory(o.Target, changed, base, false); err != nil {
			return fmt.Errorf("changes of root filesystem: %w", err)
		}
	}
	return nil
}

// lowersOf are the directories of an overlay that nothing in it has changed, top
// first.
func (b *Backend) lowersOf(ctx context.Context, id string, st *rootState, o overlay) ([]string, error) {
	switch {
	case !st.Host:
		return b.imageLowers(ctx, id)
	case o.Target == "/":
		return []string{b.roots.host.skeletonRoot(st.Skeleton)}, nil
	default:
		return []string{o.Target}, nil
	}
}

// rootDiffer compares stacks of directories, top first, as overlayfs lays them
// over one another. It only looks, and follows no link: what is in the upper
// ones was written inside.
type rootDiffer struct {
	ctx     context.Context
	fn      func(runtime.RootChange) error
	targets map[string]bool // where overlays are mounted
}

// stacked is what a stack of directories has under one name.
type stacked struct {
	st     unix.Stat_t // of what shows
	dirs   []string    // of a directory, top first
	found  bool        // something shows
	gone   bool        // a whiteout hides what is further down
	opaque bool        // so does a directory
}

// lookIn finds name in a stack.
func lookIn(stack []string, name string) (stacked, error) {
	var s stacked
	for _, dir := range stack {
		p := filepath.Join(dir, name)
		var st unix.Stat_t
		err := unix.Lstat(p, &st)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
			continue
		case err != nil:
			return s, &os.PathError{Op: "lstat", Path: p, Err: err}
		}
		if isWhiteout(&st) {
			s.gone = !s.found
			s.opaque = s.found
			return s, nil
		}
		isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
		if !s.found {
			s.st, s.found = st, true
		}
		if !isDir {
			s.opaque = true // of a directory above, too
			return s, nil
		}
		s.dirs = append(s.dirs, p)
		if isOpaque(p) {
			s.opaque = true
			return s, nil
		}
	}
	return s, nil
}

func isWhiteout(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

// namesIn are the names in a stack, sorted.
func namesIn(stack []string) ([]string, error) {
	var all []string
	for _, dir := range stack {
		names, err := readNames(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, names...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// directory compares what is in directory at. With opaque, what the upper ones
// do not have is gone.
func (d *rootDiffer) directory(at string, changed, base []string, opaque bool) error {
	if err := d.ctx.Err(); err != nil {
		return err
	}
	stack := changed
	if opaque {
		stack = slices.Concat(changed, base)
	}
	names, err := namesIn(stack)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := d.entry(path.Join(at, name), name, changed, base, opaque); err != nil {
			return err
		}
	}
	return nil
}

func (d *rootDiffer) entry(at, name string, changed, base []string, opaque bool) error {
	if d.targets[at] {
		return nil // what is mounted there counts
	}
	now, err := lookIn(changed, name)
	if err != nil {
		return err
	}
	was, err := lookIn(base, name)
	if err != nil {
		return err
	}
	switch {
	case !now.found:
		if was.found && (now.gone || opaque) {
			return d.tell('D', at, was.st.Mode)
		}
		return nil
	case !was.found:
		if err := d.tell('A', at, now.st.Mode); err != nil {
			return err
		}
		return d.directory(at, now.dirs, nil, false)
	case len(now.dirs) == 0 && len(was.dirs) == 0:
		if same(&now.st, &was.st) {
			return nil // opened for writing, and not written
		}
		return d.tell('M', at, now.st.Mode)
	case len(now.dirs) == 0 || len(was.dirs) == 0: // one replaces the other
		if err := d.tell('D', at, was.st.Mode); err != nil {
			return err
		}
		if err := d.tell('A', at, now.st.Mode); err != nil {
			return err
		}
		return d.directory(at, now.dirs, nil, false)
	}
	if now.st.Mode != was.st.Mode || now.st.Uid != was.st.Uid || now.st.Gid != was.st.Gid {
		if err := d.tell('M', at, now.st.Mode); err != nil {
			return err
		}
	}
	return d.directory(at, now.dirs, was.dirs, now.opaque)
}

// same reports whether a file copied up is what it was.
func same(x, y *unix.Stat_t) bool {
	return x.Mode == y.Mode && x.Uid == y.Uid && x.Gid == y.Gid && x.Size == y.Size && x.Mtim == y.Mtim && x.Rdev == y.Rdev
}

func (d *rootDiffer) tell(status byte, at string, mode uint32) error {
	return d.fn(runtime.RootChange{Status: status, Path: at, Dir: mode&unix.S_IFMT == unix.S_IFDIR})
}
