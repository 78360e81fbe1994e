package fusefs

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDirectoryLinks(t *testing.T) {
	files := map[string]string{"none/f": "x", "two/a/f": "x", "two/b/c/f": "x", "two/link": "->a", "two/file": ""}
	eachKind(t, files, func(t *testing.T, r *rig, dir string) {
		want := func(name string, n uint64) {
			t.Helper()
			if got := lstat(t, filepath.Join(dir, name)).Nlink; got != n {
				t.Errorf("%s: %d links, want %d", name, got, n)
			}
		}
		_, err := os.ReadDir(dir) // which must not make it a guess
		must(t, err)
		want("", 4)
		want("none", 2)
		want("two", 4)
		want("two/a", 2)
		must(t, os.Chmod(filepath.Join(dir, "two/b"), 0o700)) // tells the attributes, too
		want("two/b", 3)
		must(t, os.Mkdir(filepath.Join(dir, "two/new"), 0o755))
		want("two", 5)
		must(t, os.Rename(filepath.Join(dir, "two/b"), filepath.Join(dir, "none/b")))
		want("two", 4)
		want("none", 3)
		want("none/b", 3)
		must(t, unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "two/a"), unix.AT_FDCWD, filepath.Join(dir, "none/f"), unix.RENAME_EXCHANGE))
		want("two", 3)
		want("none", 4)
		must(t, os.Rename(filepath.Join(dir, "two/new"), filepath.Join(dir, "none/new")))
		must(t, os.Rename(filepath.Join(dir, "none/new"), filepath.Join(dir, "two/new")))
		must(t, os.Remove(filepath.Join(dir, "two/new")))
		want("two", 2)
		open, err := os.Open(filepath.Join(dir, "two"))
		must(t, err)
		must(t, os.RemoveAll(filepath.Join(dir, "two")))
		var st unix.Stat_t
		must(t, unix.Fstat(int(open.Fd()), &st))
		open.Close()
		if st.Nlink != 0 {
			t.Errorf("a removed directory has %d links", st.Nlink)
		}
		r.unmount()
		r.mount()
		want("none", 4)
		want("none/b", 3)
		want("none/b/c", 2)
		want("", 3)
	})
}

// Links of a directory are known without a look at the sizes of what is in it.
func TestDirectoryLinksWithoutLoading(t *testing.T) {
	r := newRig(t, map[string]string{"d/a/f": "x", "d/b/f": "x", "d/f": "x"})
	if n := lstat(t, r.path("d")).Nlink; n != 4 {
		t.Errorf("d: %d links", n)
	}
	must(t, os.Remove(r.path("d/a/f")))
	must(t, os.Remove(r.path("d/a")))
	r.unmount()
	r.mount()
	if n := lstat(t, r.path("d")).Nlink; n != 3 {
		t.Errorf("d after a remount: %d links", n)
	}
}
