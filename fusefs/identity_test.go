package fusefs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

var identityFiles = map[string]string{
	"f": "content", "empty": "", "x": "#!/bin/sh\n", "l": "->f", "d/f": "in d", "d/sub/f": "deep", "big": strings.Repeat("0123456789", 20000),
}

// inodes walks dir.
func inodes(t testing.TB, dir string) map[string]uint64 {
	t.Helper()
	all := map[string]uint64{}
	for path, s := range snapshot(t, dir) {
		all[path] = s.ino
	}
	return all
}

// An inode number is for ever: whatever happens to content, name or mount.
func TestInodesStay(t *testing.T) {
	eachKind(t, identityFiles, func(t *testing.T, r *rig, dir string) {
		want := inodes(t, dir)
		seen := map[uint64]string{}
		for path, ino := range want {
			if other, ok := seen[ino]; ok {
				t.Errorf("%s and %s share inode %d", path, other, ino)
			}
			seen[ino] = path
		}
		check := func(when string) {
			t.Helper()
			for path, ino := range inodes(t, dir) {
				if want[path] != ino {
					t.Errorf("%s: %s: inode %d, was %d", when, path, ino, want[path])
				}
			}
			// What a listing says is what stat says.
			for _, sub := range []string{"", "d"} {
				for name, ino := range listed(t, filepath.Join(dir, sub)) {
					if got := lstat(t, filepath.Join(dir, sub, name)).Ino; got != ino {
						t.Errorf("%s: %s is listed with inode %d, is %d", when, name, ino, got)
					}
				}
			}
		}
		check("at first")
		for _, name := range []string{"f", "empty", "big", "d/f"} {
			must(t, writeAt(filepath.Join(dir, name), []byte("more"), 3, 0))
		}
		must(t, os.Chmod(filepath.Join(dir, "x"), 0o700))
		must(t, os.Lchown(filepath.Join(dir, "l"), 5, 5))
		check("after changes")
		r.freeze()
		must(t, writeAt(filepath.Join(dir, "f"), []byte("again"), 3, 0))
		check("after a freeze")
		r.unmount()
		r.mount()
		check("after a remount")
		must(t, os.Rename(filepath.Join(dir, "d"), filepath.Join(dir, "d2")))
		must(t, os.Rename(filepath.Join(dir, "d2"), filepath.Join(dir, "d")))
		check("after a rename")
		r.unmount()
		r.mount()
		check("after another remount")
	})
}

// listed returns the inode numbers that a listing of dir has.
func listed(t testing.TB, dir string) map[string]uint64 {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	defer unix.Close(fd)
	all := map[string]uint64{}
	buf := make([]byte, 8192)
	for {
		n, err := unix.Getdents(fd, buf)
		must(t, err)
		if n == 0 {
			return all
		}
		for _, e := range parseDirents(buf[:n]) {
			if e.name != "." && e.name != ".." {
				all[e.name] = e.ino
			}
		}
	}
}

// Names of one file stay names of one file.
func TestHardLinksStay(t *testing.T) {
	eachKind(t, identityFiles, func(t *testing.T, r *rig, dir string) {
		a, b, c := filepath.Join(dir, "big"), filepath.Join(dir, "d/linked"), filepath.Join(dir, "third")
		must(t, os.Link(a, b))
		check := func(when string, names uint64, paths ...string) {
			t.Helper()
			first := lstat(t, paths[0])
			content, err := os.ReadFile(paths[0])
			must(t, err)
			for _, path := range paths {
				st := lstat(t, path)
				if st.Ino != first.Ino || st.Nlink != names || st.Mode != first.Mode || st.Mtim != first.Mtim || st.Size != first.Size {
					t.Errorf("%s: %s: %+v, want %+v", when, path, st, first)
				}
				wantFile(t, path, string(content))
			}
		}
		check("linked", 2, a, b)
		must(t, writeAt(b, []byte("changed"), 100, 0))
		check("written", 2, a, b)
		r.freeze()
		check("frozen", 2, a, b)
		must(t, writeAt(a, []byte("changed again"), 100, 0))
		check("written after a freeze", 2, a, b)
		must(t, os.Link(b, c))
		must(t, os.Chmod(c, 0o600))
		must(t, os.Rename(a, a+"2"))
		r.unmount()
		r.mount()
		check("remounted", 3, a+"2", b, c)
		fork := r.spec
		fork.ID, fork.Dir, fork.Layers = "fork", filepath.Join(r.dir, "fork"), append(append([]string{}, r.spec.Layers...), "top-of-"+filepath.Base(dir))
		r.freeze()
		must(t, r.c.Mount(context.Background(), fork))
		rel, err := filepath.Rel(r.spec.Dir, dir)
		must(t, err)
		in := func(name string) string { return filepath.Join(fork.Dir, rel, name) }
		must(t, writeAt(in("third"), []byte("in the fork"), 0, 0))
		check("forked", 3, in("big2"), in("d/linked"), in("third"))
		check("source of the fork", 3, a+"2", b, c)
		must(t, r.c.Unmount(context.Background(), "fork"))
		must(t, os.Remove(b))
		check("removed", 2, a+"2", c)
	})
}

// A directory of the tree moves without a byte of what is in it.
func TestRenameCopiesNothing(t *testing.T) {
	files := map[string]string{}
	for i := range 200 {
		files[fmt.Sprintf("d/sub%d/f", i%10)+fmt.Sprint(i)] = strings.Repeat("x", 5000)
	}
	r := newRig(t, files)
	must(t, os.Mkdir(r.path("new"), 0o755))
	must(t, os.Rename(r.path("d"), r.path("new/moved")))
	must(t, os.Rename(r.path("new/moved/sub3"), r.path("sub3")))
	for _, what := range []string{"layers/l1/data", "blobs"} {
		if left := readDir(t, filepath.Join(r.dir, what)); len(left) != 0 {
			t.Errorf("%d files in %s", len(left), what)
		}
	}
	log, err := os.Stat(filepath.Join(r.dir, "layers/l1/log"))
	must(t, err)
	if log.Size() > 2000 {
		t.Errorf("the log has %d bytes", log.Size())
	}
	wantFile(t, r.path("new/moved/sub1/f11"), strings.Repeat("x", 5000))
	wantFile(t, r.path("sub3/f13"), strings.Repeat("x", 5000))
}

// What is open or mapped stays as it was when its name goes to another file,
// or to none.
func TestReplacedWhileInUse(t *testing.T) {
	eachKind(t, identityFiles, func(t *testing.T, r *rig, dir string) {
		p := func(name string) string { return filepath.Join(dir, name) }
		for i, gone := range []func(name string) error{
			os.Remove,
			func(name string) error {
				if err := os.WriteFile(name+"new", []byte("new"), 0o644); err != nil {
					return err
				}
				return os.Rename(name+"new", name)
			},
		} {
			name := p([]string{"f", "big"}[i])
			was, err := os.ReadFile(name)
			must(t, err)
			f, err := os.OpenFile(name, os.O_RDWR, 0)
			must(t, err)
			mem, err := unix.Mmap(int(f.Fd()), 0, len(was), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			must(t, err)
			must(t, gone(name))
			if !bytes.Equal(mem, was) {
				t.Error("a mapping lost its content")
			}
			mem[0] = '!'
			must(t, writeAtFile(f, []byte("more"), int64(len(was))))
			r.freeze() // which must not lose what has no name
			must(t, writeAtFile(f, []byte("!!"), int64(len(was))+4))
			got := make([]byte, len(was)+6)
			_, err = f.ReadAt(got, 0)
			must(t, err)
			if want := "!" + string(was[1:]) + "more!!"; string(got) != want {
				t.Errorf("%.60q, want %.60q", got, want)
			}
			var st unix.Stat_t
			must(t, unix.Fstat(int(f.Fd()), &st))
			if st.Nlink != 0 || st.Size != int64(len(got)) {
				t.Errorf("%d links, size %d", st.Nlink, st.Size)
			}
			// It can be opened again as long as it is open.
			again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDWR, 0)
			must(t, err)
			all, err := io.ReadAll(again)
			must(t, err)
			if !bytes.Equal(all, got) {
				t.Errorf("opened again: %.60q, want %.60q", all, got)
			}
			must(t, again.Truncate(1))
			again.Close()
			must(t, unix.Munmap(mem))
			f.Close()
		}
		wantFile(t, p("big"), "new")
		if _, err := os.Lstat(p("f")); !os.IsNotExist(err) {
			t.Errorf("f: %v", err)
		}
	})
}

func writeAtFile(f *os.File, b []byte, off int64) error {
	_, err := f.WriteAt(b, off)
	return err
}

// A directory that is somebody's working directory can be removed; nothing
// comes into it any more.
func TestRemovedDirectoryInUse(t *testing.T) {
	eachKind(t, map[string]string{"d/f": "x"}, func(t *testing.T, r *rig, dir string) {
		d, err := os.Open(filepath.Join(dir, "d"))
		must(t, err)
		defer d.Close()
		must(t, os.RemoveAll(filepath.Join(dir, "d")))
		fd := int(d.Fd())
		for what, err := range map[string]error{
			"mkdir":   unix.Mkdirat(fd, "x", 0o755),
			"symlink": unix.Symlinkat("x", fd, "y"),
			"mknod":   unix.Mknodat(fd, "x", unix.S_IFIFO|0o644, 0),
			"rename":  unix.Renameat(unix.AT_FDCWD, dir, fd, "x"),
			"stat":    unix.Fstatat(fd, "f", new(unix.Stat_t), 0),
		} {
			if err != unix.ENOENT {
				t.Errorf("%s in a removed directory: %v", what, err)
			}
		}
		if names, err := d.Readdirnames(0); len(names) != 0 || !errors.Is(err, unix.ENOENT) {
			t.Errorf("a removed directory lists %q, %v", names, err)
		}
	})
}
