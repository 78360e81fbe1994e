package fusefs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// kinds are the ways in which a path can be there: only in the tree; only in
// the top layer; from the tree but copied up; only in a frozen layer.
var kinds = []string{"lower", "upper", "up", "frozen"}

// newKinds mounts a workspace with a directory for each kind, with the same
// files of that kind in each.
func newKinds(t testing.TB, files map[string]string) *rig {
	t.Helper()
	tree := map[string]string{}
	for name, content := range files {
		tree["lower/"+name] = content
		tree["up/"+name] = content
	}
	r := newRig(t, tree)
	writeFiles(t, r.path("frozen"), files)
	if _, err := r.c.Freeze(context.Background(), r.spec.ID, "l2"); err != nil {
		t.Fatal(err)
	}
	r.spec.Layers = append(r.spec.Layers, "l2")
	writeFiles(t, r.path("upper"), files)
	copyUpAll(t, r.path("up"))
	return r
}

// copyUpAll changes everything below dir and changes it back.
func copyUpAll(t testing.TB, dir string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		if st.Mode&syscall.S_IFMT != syscall.S_IFREG {
			return unix.Lchown(path, int(st.Uid), int(st.Gid))
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		b := []byte{'x'}
		if _, err := f.WriteAt(b, st.Size); err != nil {
			return err
		}
		return f.Truncate(st.Size)
	}))
}

// eachKind runs fn in a directory of each kind.
func eachKind(t *testing.T, files map[string]string, fn func(t *testing.T, r *rig, dir string)) {
	t.Helper()
	r := newKinds(t, files)
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			sub := *r
			sub.t = t
			fn(t, &sub, r.path(kind))
			r.spec = sub.spec
		})
	}
}

// freeze puts a new layer on the workspace.
func (r *rig) freeze() {
	r.t.Helper()
	id := fmt.Sprintf("l%d", len(r.spec.Layers)+1)
	if _, err := r.c.Freeze(context.Background(), r.spec.ID, id); err != nil {
		r.t.Fatal(err)
	}
	r.spec.Layers = append(r.spec.Layers, id)
}

func lstat(t testing.TB, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return st
}

// countsLinks reports whether the file system of dir counts the links of
// directories.
func countsLinks(t testing.TB, dir string) bool {
	t.Helper()
	sub := filepath.Join(dir, "counts-links")
	must(t, os.MkdirAll(filepath.Join(sub, "a"), 0o755))
	defer os.RemoveAll(sub)
	return lstat(t, sub).Nlink == 3
}
