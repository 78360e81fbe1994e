package integrate

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"

	"github.com/git-env/git-env/environment"
)

// A delta is one path that an environment changed, without rename detection.
type delta struct {
	Path     string
	Mode, ID string // after; the mode is "000000" for a deleted path
	Status   byte   // A, M, D or T
}

// deltas lists what differs between two commits; pathspecs are relative to the
// user's directory.
func (t *Tree) deltas(ctx context.Context, base, tip string, pathspecs []string) ([]delta, error) {
	var out, msg bytes.Buffer
	// The user's own git, because pathspecs mean what they mean to the user.
	args := append([]string{"diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", base, tip, "--"}, pathspecs...)
	rc, err := t.userWith(ctx, IO{Stdout: &out, Stderr: &msg}, nil, args...)
	if err != nil {
		return nil, err
	}
	if rc != 0 {
		return nil, environment.Errorf(environment.ExitFailed, "cannot compare %s with %s: %s", short(base), short(tip), strings.TrimSpace(msg.String()))
	}
	fields := splitNUL(out.Bytes())
	var ds []delta
	for i := 0; i+1 < len(fields); i += 2 {
		f := strings.Fields(strings.TrimPrefix(fields[i], ":"))
		if len(f) != 5 {
			return nil, environment.Errorf(environment.ExitFailed, "git diff-tree printed %q", fields[i])
		}
		ds = append(ds, delta{Path: fields[i+1], Mode: f[1], ID: f[3], Status: f[4][0]})
	}
	return ds, nil
}

// inTheWay returns the untracked files, ignored ones included, that writing the
// deltas would destroy. git itself overwrites ignored files without a word.
func (t *Tree) inTheWay(ctx context.Context, ds []delta) ([]string, error) {
	var found []string
	dirs := map[string]bool{"": true} // known to be real directories
	for _, d := range ds {
		if d.Status == 'D' {
			continue
		}
		occ, err := t.occupants(d.Path, dirs)
		if err != nil {
			return nil, err
		}
		found = append(found, occ...)
	}
	if len(found) == 0 {
		return nil, nil
	}
	tracked, err := t.tracked(ctx, found)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var out []string
	for _, p := range found {
		if !tracked[p] && !seen[p] {
			seen[p] = true
			out = append(out, p)
		}
	}
	sort.Strings(out)
	return out, nil
}

// occupants returns the files that stand where p is to be written: p itself, a
// non-directory among its parents, or what is inside when p is a directory.
// Links are never followed.
func (t *Tree) occupants(p string, dirs map[string]bool) ([]string, error) {
	for i, c := range p {
		if c != '/' || dirs[p[:i]] {
			continue
		}
		fi, err := os.Lstat(t.abs(p[:i]))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, nil
		case err != nil:
			return nil, err
		case !fi.IsDir():
			return []string{p[:i]}, nil
		}
		dirs[p[:i]] = true
	}
	fi, err := os.Lstat(t.abs(p))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !fi.IsDir():
		return []string{p}, nil
	}
	return t.inside(p)
}

// inside lists files below a directory, as many as a message needs.
func (t *Tree) inside(dir string) ([]string, error) {
	const enough = 1000
	var files []string
	err := filepath.WalkDir(t.abs(dir), func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			return nil
		}
		rel, err := filepath.Rel(t.repo.WorkTree, name)
		if err != nil {
			return err
		}
		if files = append(files, filepath.ToSlash(rel)); len(files) >= enough {
			return fs.SkipAll
		}
		return nil
	})
	return files, err
}

func (t *Tree) abs(p string) string { return filepath.Join(t.repo.WorkTree, filepath.FromSlash(p)) }

// tracked returns which of the paths are in the index.
func (t *Tree) tracked(ctx context.Context, paths []string) (map[string]bool, error) {
	const chunk = 400
	in := map[string]bool{}
	add := func(args ...string) error {
		out, err := t.git.Output(ctx, nil, append([]string{"ls-files", "-z", "--"}, args...)...)
		for _, p := range splitNUL(out) {
			in[p] = true
		}
		return err
	}
	if len(paths) > 10*chunk { // cheaper to read the whole index once
		return in, add()
	}
	for len(paths) > 0 {
		n := min(chunk, len(paths))
		if err := add(paths[:n]...); err != nil {
			return nil, err
		}
		paths = paths[n:]
	}
	return in, nil
}

func refuseInTheWay(paths []string) error {
	return environment.Errorf(environment.ExitConflict, "untracked files are in the way: %s", few(paths)).
		WithHint("move or remove them first; nothing was changed")
}

// overlapping returns the uncommitted changes that touch a path of the deltas,
// or a directory that a delta replaces.
func overlapping(changes []Change, ds []delta) []string {
	exact := map[string]bool{}
	parents := map[string]bool{}
	for _, d := range ds {
		exact[d.Path] = true
		for p := path.Dir(d.Path); p != "."; p = path.Dir(p) {
			parents[p] = true
		}
	}
	var out []string
	for _, c := range changes {
		hit := exact[c.Path] || parents[c.Path]
		for p := path.Dir(c.Path); p != "." && !hit; p = path.Dir(p) {
			hit = exact[p]
		}
		if hit && !c.Untracked {
			out = append(out, c.Path)
		}
	}
	return out
}

func refuseTouched(paths []string) error {
	return environment.Errorf(environment.ExitConflict, "your uncommitted changes would be touched: %s", few(paths)).
		WithHint("commit them first, or set them aside with --stash; nothing was changed")
}
