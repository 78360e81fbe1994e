package fusefs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantFile(t testing.TB, path, content string) {
	t.Helper()
	got, err := os.ReadFile(path)
	must(t, err)
	if string(got) != content {
		t.Fatalf("%s: %.100q, want %.100q", path, got, content)
	}
}

func TestLowerTree(t *testing.T) {
	r := newRig(t, map[string]string{
		"file": "hello", "exec": "#!/bin/sh\n", "dir/link": "->../file", "empty": "",
		"odd \xff\n\"name": "odd", "big": strings.Repeat("0123456789abcdef", 200000),
	})
	wantFile(t, r.path("file"), "hello")
	wantFile(t, r.path("dir/link"), "hello")
	wantFile(t, r.path("empty"), "")
	wantFile(t, r.path("odd \xff\n\"name"), "odd")
	wantFile(t, r.path("big"), strings.Repeat("0123456789abcdef", 200000))
	st, err := os.Stat(r.path("exec"))
	must(t, err)
	if st.Mode() != 0o755 || !st.ModTime().Equal(r.spec.Time) {
		t.Errorf("exec: %v %v", st.Mode(), st.ModTime())
	}
	if _, err := os.Stat(r.path(strings.Repeat("n", 256))); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("long name: %v", err)
	}
	if n, _, err := OfflineDirty(filepath.Join(r.dir, "layers"), []string{"l1"}, 1); n != 0 || err != nil {
		t.Errorf("reading made %d dirty: %v", n, err)
	}
	blobs, err := filepath.Glob(filepath.Join(r.dir, "blobs/*/*"))
	must(t, err)
	for _, b := range blobs {
		if st, err := os.Stat(b); err != nil || st.Mode() != 0o444 {
			t.Errorf("%s: %v %v", b, st.Mode(), err)
		}
	}
	if len(blobs) != 1 {
		t.Errorf("materialised %q, want what is large alone", blobs)
	}
}

// A file of the blob cache that lost its bytes is fetched again.
func TestDamagedBlob(t *testing.T) {
	r := newRig(t, map[string]string{"file": "hello"})
	r.keep("hello")
	wantFile(t, r.path("file"), "hello")
	blob := filepath.Join(r.dir, "blobs", "b6", "fc4c620b67d95f953a5c1c1230aaab5db5a1b0")
	r.unmount()
	must(t, os.Truncate(blob, 2))
	r.mount()
	wantFile(t, r.path("file"), "hello")
}

func TestDotGit(t *testing.T) {
	r := newRig(t, map[string]string{"file": "hello"})
	git := r.path(".git")
	wantFile(t, git, r.spec.DotGit)
	check := func(what string, err error, want ...error) {
		t.Helper()
		for _, w := range want {
			if errors.Is(err, w) {
				return
			}
		}
		t.Errorf("%s: %v, want %v", what, err, want)
	}
	check("unlink", unix.Unlink(git), unix.EBUSY)
	check("rename", unix.Rename(git, r.path("x")), unix.EBUSY)
	check("replace", unix.Rename(r.path("file"), git), unix.EBUSY)
	check("exchange", unix.Renameat2(unix.AT_FDCWD, git, unix.AT_FDCWD, r.path("file"), unix.RENAME_EXCHANGE), unix.EBUSY)
	check("link over", unix.Link(r.path("file"), git), unix.EEXIST)
	check("link", unix.Link(git, r.path("x")), unix.EPERM)
	check("mkdir", unix.Mkdir(git, 0o755), unix.EEXIST)
	check("truncate", unix.Truncate(git, 0), unix.EPERM)
	check("chmod", unix.Chmod(git, 0o777), unix.EPERM)
	check("setxattr", unix.Setxattr(git, "user.x", []byte("x"), 0), unix.EPERM)
	_, err := os.OpenFile(git, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	check("create", err, unix.EEXIST)
	if f, err := os.OpenFile(git, os.O_RDWR, 0); err == nil {
		_, err = f.Write([]byte("x"))
		check("write", err, unix.EPERM)
		f.Close()
	}
	wantFile(t, git, r.spec.DotGit)
	names, err := os.ReadDir(r.spec.Dir)
	must(t, err)
	if len(names) != 2 {
		t.Errorf("listing: %v", names)
	}
	if _, dirty := r.dirtyFiles(); len(dirty) != 0 {
		t.Errorf("dirty: %v", dirty)
	}
	must(t, os.RemoveAll(r.path("file")))
	must(t, os.MkdirAll(r.path("sub/.git"), 0o755)) // elsewhere it is a name like any other
}

func TestUnlinkedWhileOpen(t *testing.T) {
	r := newRig(t, map[string]string{"lower": "lower", "dir/over": "over"})
	must(t, os.WriteFile(r.path("upper"), []byte("upper"), 0o644))
	for _, name := range []string{"lower", "upper", "dir/over"} {
		f, err := os.OpenFile(r.path(name), os.O_RDWR, 0)
		must(t, err)
		if name == "dir/over" {
			must(t, os.WriteFile(r.path("tmp"), []byte("tmp"), 0o644))
			must(t, os.Rename(r.path("tmp"), r.path(name)))
		} else {
			must(t, os.Remove(r.path(name)))
		}
		_, err = f.WriteAt([]byte("WRITTEN"), 2)
		must(t, err)
		must(t, f.Chmod(0o600))
		buf := make([]byte, 100)
		n, _ := f.ReadAt(buf, 0)
		if want := filepath.Base(name)[:2] + "WRITTEN"; string(buf[:n]) != want {
			t.Errorf("%s: %q, want %q", name, buf[:n], want)
		}
		f.Close()
	}
	wantFile(t, r.path("dir/over"), "tmp")
	r.unmount()
	r.mount()
	wantFile(t, r.path("dir/over"), "tmp")
	var left []string
	must(t, filepath.WalkDir(filepath.Join(r.dir, "layers/l1/data"), func(path string, d os.DirEntry, err error) error {
		if !d.IsDir() {
			left = append(left, path)
		}
		return err
	}))
	if len(left) != 1 {
		t.Errorf("data files left: %q", left)
	}
}

func TestReaddirWhileDeleting(t *testing.T) {
	files := map[string]string{}
	for i := range 3000 {
		files[fmt.Sprintf("d/f%d", i)] = "x"
	}
	r := newRig(t, files)
	must(t, os.Mkdir(r.path("n"), 0o755))
	for i := range 3000 {
		must(t, os.WriteFile(r.path(fmt.Sprintf("n/f%d", i)), nil, 0o644))
	}
	for _, dir := range []string{"d", "n"} {
		d, err := os.Open(r.path(dir))
		must(t, err)
		removed := 0
		for {
			names, err := d.Readdirnames(7)
			for _, name := range names {
				must(t, os.Remove(filepath.Join(r.path(dir), name)))
				removed++
			}
			if err != nil {
				break
			}
		}
		d.Close()
		if removed != 3000 {
			t.Errorf("%s: removed %d of 3000", dir, removed)
		}
		must(t, os.Remove(r.path(dir)))
	}
}

func TestMmap(t *testing.T) {
	r := newRig(t, map[string]string{"lower": strings.Repeat("x", 10000)})
	f, err := os.OpenFile(r.path("lower"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 10000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	copy(m[5000:], "mapped")
	must(t, unix.Msync(m, unix.MS_SYNC))
	_, err = r.c.Freeze(context.Background(), "m", "l2")
	must(t, err)
	copy(m[6000:], "again")
	must(t, unix.Msync(m, unix.MS_SYNC))
	must(t, unix.Munmap(m))
	r.spec.Layers = []string{"l1", "l2"}
	r.unmountWithOpen(f)
	r.mount()
	got, err := os.ReadFile(r.path("lower"))
	must(t, err)
	if string(got[5000:5006]) != "mapped" || string(got[6000:6005]) != "again" || len(got) != 10000 {
		t.Errorf("%q", got[4990:6010])
	}
}

// unmountWithOpen unmounts while f is open, which then is of no use.
func (r *rig) unmountWithOpen(f *os.File) {
	r.t.Helper()
	r.unmount()
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		r.t.Error("writing to an aborted mount works")
	}
}

func TestPrivilegeBits(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	must(t, unix.Chmod(r.path("f"), 0o6755))
	must(t, unix.Chown(r.path("f"), 1000, 1000))
	var st unix.Stat_t
	must(t, unix.Stat(r.path("f"), &st))
	if st.Mode&0o7777 != 0o755 {
		t.Errorf("after chown: %o", st.Mode)
	}
	must(t, unix.Mkfifo(r.path("fifo"), 0o755))
	must(t, unix.Chmod(r.path("fifo"), 0o6755))
	must(t, unix.Chown(r.path("fifo"), 1000, 1000))
	must(t, unix.Stat(r.path("fifo"), &st))
	if st.Mode&0o7777 != 0o755 {
		t.Errorf("fifo after chown: %o", st.Mode)
	}
	must(t, unix.Mkdir(r.path("sgid"), 0o755))
	must(t, unix.Chown(r.path("sgid"), 0, 77))
	must(t, unix.Chmod(r.path("sgid"), 0o2755))
	must(t, unix.Mkdir(r.path("sgid/sub"), 0o755))
	must(t, unix.Stat(r.path("sgid/sub"), &st))
	if st.Gid != 77 || st.Mode&syscall.S_ISGID == 0 {
		t.Errorf("in a set-gid directory: gid %d, mode %o", st.Gid, st.Mode)
	}
}

// Writers on open files go on over a freeze, and the frozen layer does not
// change any more.
func TestFreezeWithWriters(t *testing.T) {
	r := newRig(t, map[string]string{"lower": "0"})
	var stop atomic.Bool
	var wg sync.WaitGroup
	var last [4]atomic.Uint64
	for i := range last {
		f, err := os.Create(r.path(fmt.Sprintf("w%d", i)))
		must(t, err)
		wg.Go(func() {
			defer f.Close()
			for n := uint64(1); !stop.Load(); n++ {
				if _, err := f.WriteAt(fmt.Appendf(nil, "%020d", n), int64(n%1000)*20); err != nil {
					t.Error(err)
					return
				}
				last[i].Store(n)
			}
		})
	}
	layers := filepath.Join(r.dir, "layers")
	frozen := map[string]map[string][]byte{}
	for i := range 5 {
		before := last[0].Load()
		f, err := r.c.Freeze(context.Background(), "m", fmt.Sprintf("top%d", i))
		must(t, err)
		sealed := f.Sealed
		r.spec.Layers = append(r.spec.Layers, fmt.Sprintf("top%d", i))
		frozen[sealed] = readDir(t, filepath.Join(layers, sealed, "data"))
		for last[0].Load() < before+200 && !t.Failed() {
		}
	}
	stop.Store(true)
	wg.Wait()
	for id, was := range frozen {
		for path, data := range readDir(t, filepath.Join(layers, id, "data")) {
			if !bytes.Equal(was[path], data) {
				t.Errorf("%s changed after the freeze", path)
			}
		}
	}
	live := snapshot(t, r.spec.Dir)
	r.unmount()
	r.mount()
	same(t, "remount", snapshot(t, r.spec.Dir), live, exact)
	for i := range last {
		n := last[i].Load()
		data, err := os.ReadFile(r.path(fmt.Sprintf("w%d", i)))
		must(t, err)
		if got := string(data[n%1000*20:][:20]); got != fmt.Sprintf("%020d", n) {
			t.Errorf("writer %d: last write was %d, there is %s", i, n, got)
		}
	}
}

func readDir(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		out[path], err = os.ReadFile(path)
		return err
	}))
	return out
}

// A change after Dirty is not lost by the Mark that follows.
func TestChangeBetweenDirtyAndMark(t *testing.T) {
	r := newRig(t, map[string]string{"d/f": "x"})
	ctx := context.Background()
	must(t, os.WriteFile(r.path("d/f"), []byte("one"), 0o644))
	f, err := os.OpenFile(r.path("d/f"), os.O_WRONLY, 0)
	must(t, err)
	defer f.Close()
	seq, _ := r.dirtyFiles()
	_, err = f.WriteAt([]byte("two"), 0)
	must(t, err)
	must(t, r.c.Mark(ctx, "m", seq, "c1"))
	seq, dirty := r.dirtyFiles()
	if dirty["d/f"] == nil {
		t.Fatal("the second write is lost")
	}
	must(t, r.c.Mark(ctx, "m", seq, "c2"))
	if _, dirty := r.dirtyFiles(); len(dirty) != 0 {
		t.Errorf("dirty after the mark: %v", dirty)
	}
	r.unmountWithOpen(f)
	r.mount()
	if _, dirty := r.dirtyFiles(); len(dirty) != 0 {
		t.Errorf("dirty after a remount: %v", dirty)
	}
}

func TestTwoForks(t *testing.T) {
	r := newRig(t, map[string]string{"f": "base", "g": "base"})
	ctx := context.Background()
	must(t, os.WriteFile(r.path("f"), []byte("before"), 0o644))
	f, err := r.c.Freeze(ctx, "m", "a")
	must(t, err)
	fork := r.spec
	fork.ID, fork.Dir, fork.Layers = "fork", filepath.Join(r.dir, "fork"), []string{f.Sealed, "b"}
	must(t, r.c.Mount(ctx, fork))
	must(t, os.WriteFile(r.path("f"), []byte("mine"), 0o644))
	must(t, os.WriteFile(filepath.Join(fork.Dir, "f"), []byte("theirs"), 0o644))
	must(t, os.Remove(filepath.Join(fork.Dir, "g")))
	wantFile(t, r.path("f"), "mine")
	wantFile(t, r.path("g"), "base")
	wantFile(t, filepath.Join(fork.Dir, "f"), "theirs")
	must(t, r.c.Unmount(ctx, "fork"))
	fork.ReadOnly = true
	must(t, r.c.Mount(ctx, fork))
	wantFile(t, filepath.Join(fork.Dir, "f"), "theirs")
	if err := os.WriteFile(filepath.Join(fork.Dir, "new"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing to a read-only mount: %v", err)
	}
}

func TestTmpfile(t *testing.T) {
	r := newRig(t, map[string]string{"d/f": "x"})
	fd, err := unix.Open(r.path("d"), unix.O_TMPFILE|unix.O_RDWR, 0o640)
	must(t, err)
	f := os.NewFile(uintptr(fd), "tmp")
	defer f.Close()
	_, err = f.Write([]byte("bytes"))
	must(t, err)
	must(t, unix.Fsetxattr(fd, "user.x", []byte("y"), 0))
	if _, dirty := r.dirtyFiles(); len(dirty) != 0 {
		t.Errorf("a file without a name is dirty: %v", dirty)
	}
	must(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, r.path("d/named"), unix.AT_SYMLINK_FOLLOW))
	_, err = f.WriteAt([]byte("more"), 5)
	must(t, err)
	must(t, unix.Link(r.path("d/named"), r.path("twice")))
	before := snapshot(t, r.spec.Dir)
	f.Close()
	r.unmount()
	r.mount()
	same(t, "remount", snapshot(t, r.spec.Dir), before, exact)
	wantFile(t, r.path("twice"), "bytesmore")
	if s := before["twice"]; s.Mode&0o777 != 0o640 || s.Xattr != "user.x=y;" || s.Nlink != 2 {
		t.Errorf("%+v", s)
	}
}
