package fusefs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func sparseRig(t *testing.T, paths ...string) *rig {
	t.Helper()
	r := newRig(t, map[string]string{
		"README": "r", ".gitignore": "*.o\n", "top": "t",
		"src/a/one": "1", "src/a/two": "2", "src/b/three": "3", "src/main": "m",
		"lib/x": "x", "lib/deep/y": "y", "all/only": "o",
	})
	r.unmount()
	r.spec.Paths = paths
	r.mount()
	return r
}

func (r *rig) names() []string {
	r.t.Helper()
	var names []string
	for name := range snapshot(r.t, r.spec.Dir) {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func TestSparseShowsThePathsAlone(t *testing.T) {
	r := sparseRig(t, "src/a", "lib/deep/y", "top")
	want := []string{".", "lib", "lib/deep", "lib/deep/y", "src", "src/a", "src/a/one", "src/a/two", "top"}
	if got := r.names(); !reflect.DeepEqual(got, want) {
		t.Errorf("shown %q, want %q", got, want)
	}
	for _, name := range []string{"README", "src/b", "src/b/three", "lib/x"} {
		if _, err := os.Lstat(r.path(name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSparseRefusesHiddenNames(t *testing.T) {
	r := sparseRig(t, "src/a", "lib/deep/y", "top")
	for what, try := range map[string]func() error{
		"write":     func() error { return os.WriteFile(r.path("README"), nil, 0o644) },
		"mkdir":     func() error { return os.Mkdir(r.path("src/b"), 0o755) },
		"symlink":   func() error { return os.Symlink("x", r.path("lib/x")) },
		"link":      func() error { return os.Link(r.path("top"), r.path("src/main")) },
		"rename":    func() error { return os.Rename(r.path("top"), r.path(".gitignore")) },
		"mknod":     func() error { return unix.Mkfifo(r.path("all"), 0o644) },
		"move away": func() error { return os.Rename(r.path("src"), r.path("elsewhere")) },
		"exchange": func() error {
			return unix.Renameat2(unix.AT_FDCWD, r.path("src/a"), unix.AT_FDCWD, r.path("lib"), unix.RENAME_EXCHANGE)
		},
	} {
		if err := try(); !errors.Is(err, syscall.EPERM) {
			t.Errorf("%s: %v", what, err)
		}
	}
	got, err := r.c.Notices(context.Background(), r.spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got.Refusals, func(a, b Refusal) int { return slices.Compare([]byte(a.Path), []byte(b.Path)) })
	want := []Refusal{{Path: ".gitignore"}, {Path: "README"}, {Path: "all"}, {Path: "lib", Leads: true},
		{Path: "lib/x"}, {Path: "src", Leads: true}, {Path: "src/b"}, {Path: "src/main"}}
	if !reflect.DeepEqual(got.Refusals, want) || got.MoreRefusals != 0 {
		t.Errorf("told %+v, want %+v", got, want)
	}
	if got, err = r.c.Notices(context.Background(), r.spec.ID); err != nil || len(got.Refusals) != 0 {
		t.Errorf("told twice: %+v %v", got, err)
	}
	if seq, dirty := r.dirtyFiles(); len(dirty) != 0 {
		t.Errorf("dirty at %d: %v", seq, dirty)
	}
}

func TestSparseKeepsDirectoriesWithHiddenNames(t *testing.T) {
	r := sparseRig(t, "src/a", "lib/deep/y", "all/only")
	if err := os.RemoveAll(r.path("src/a")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(r.path("src")); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("rmdir: %v", err)
	}
	if err := os.Mkdir(r.path("new"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Rename(r.path("new"), r.path("src")); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("replace: %v", err)
	}
	// Where nothing is hidden, a directory is like any other.
	for _, step := range []error{
		os.Rename(r.path("lib/deep"), r.path("lib/deeper")),
		os.Rename(r.path("all"), r.path("every")),
		os.Rename(r.path("new"), r.path("all")),
		os.WriteFile(r.path("all/fresh"), []byte("f"), 0o644),
		os.WriteFile(r.path("src/fresh"), []byte("f"), 0o644),
	} {
		if step != nil {
			t.Error(step)
		}
	}
	want := []string{".", "all", "all/fresh", "every", "every/only", "lib", "lib/deeper", "lib/deeper/y", "src", "src/fresh"}
	if got := r.names(); !reflect.DeepEqual(got, want) {
		t.Errorf("shown %q, want %q", got, want)
	}
	before := snapshot(t, r.spec.Dir)
	r.unmount()
	r.mount()
	same(t, "remounted", snapshot(t, r.spec.Dir), before, exact)
	if err := os.Mkdir(r.path("src/b"), 0o755); !errors.Is(err, syscall.EPERM) {
		t.Errorf("mkdir after a remount: %v", err)
	}
}

// What has moved into the place of a directory that was shown is shown whole.
func TestSparseConeIsOfTheTree(t *testing.T) {
	r := sparseRig(t, "src", "all/only")
	for _, step := range []error{
		os.RemoveAll(r.path("all")),
		os.Rename(r.path("src"), r.path("all")),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	r.unmount()
	r.mount()
	want := []string{".", "all", "all/a", "all/a/one", "all/a/two", "all/b", "all/b/three", "all/main"}
	if got := r.names(); !reflect.DeepEqual(got, want) {
		t.Errorf("shown %q, want %q", got, want)
	}
}

func TestSparseRefusesBadPaths(t *testing.T) {
	r := newRig(t, map[string]string{"a": "a"})
	for _, p := range []string{"", "/a", "a/", "../a", "a/.git"} {
		spec := r.spec
		spec.ID, spec.Dir, spec.Layers, spec.Paths = "bad", filepath.Join(r.dir, "bad"), []string{"bad"}, []string{p}
		if err := r.c.Mount(context.Background(), spec); err == nil {
			t.Errorf("%q was taken", p)
		}
	}
}
