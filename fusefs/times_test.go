package fusefs

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// mtimes of everything but the mount's own file.
func mtimes(t testing.TB, dir string) map[string]int64 {
	t.Helper()
	all := map[string]int64{}
	for path, s := range snapshot(t, dir) {
		all[path] = s.mtime
	}
	return all
}

func sameTimes(t testing.TB, when string, got, want map[string]int64) {
	t.Helper()
	for path, at := range want {
		if got[path] != at {
			t.Errorf("%s: %s: mtime %d, was %d", when, path, got[path], at)
		}
	}
}

// What does not change a file does not change its mtime, which is what build
// tools go by.
func TestMtimeStays(t *testing.T) {
	r := newKinds(t, map[string]string{"f": "content", "empty": "", "l": "->f", "d/f": "in d", "big": strings.Repeat("0123456789", 20000)})
	must(t, os.Symlink("x", r.path("new-link")))
	set := []unix.Timespec{{Sec: 1234567890, Nsec: 123456789}, {Sec: 987654321, Nsec: 987654321}}
	for _, kind := range kinds {
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, r.path(kind+"/empty"), set, 0))
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, r.path(kind+"/l"), set, unix.AT_SYMLINK_NOFOLLOW))
	}
	want := mtimes(t, r.spec.Dir)
	must(t, os.Chmod(r.path("lower/f"), 0o600))
	must(t, os.Chmod(r.path("up/f"), 0o600))
	must(t, os.Chown(r.path("frozen/big"), 3, 3))
	must(t, unix.Setxattr(r.path("upper/f"), "user.x", []byte("y"), 0))
	// Opened for writing, and nothing written.
	for _, kind := range kinds {
		f, err := os.OpenFile(r.path(kind+"/big"), os.O_RDWR, 0)
		must(t, err)
		f.Close()
	}
	sameTimes(t, "attributes", mtimes(t, r.spec.Dir), want)
	r.freeze()
	sameTimes(t, "freeze", mtimes(t, r.spec.Dir), want)
	r.unmount()
	r.mount()
	sameTimes(t, "remount", mtimes(t, r.spec.Dir), want)
	seq, _ := r.dirtyFiles()
	must(t, r.c.Mark(context.Background(), "m", seq, "c"))
	sameTimes(t, "commit", mtimes(t, r.spec.Dir), want)
	fork := r.spec
	fork.ID, fork.Dir, fork.Layers = "fork", filepath.Join(r.dir, "fork"), append(append([]string{}, r.spec.Layers...), "top-of-fork")
	r.freeze()
	must(t, r.c.Mount(context.Background(), fork))
	sameTimes(t, "fork", mtimes(t, fork.Dir), want)
	must(t, os.Chmod(filepath.Join(fork.Dir, "lower/big"), 0o600))
	// Copied up and given its old time again, as tar and cp -a do.
	for _, kind := range kinds {
		path := filepath.Join(fork.Dir, kind, "big")
		must(t, writeAt(path, []byte("x"), 0, 0))
		if at := nanos(lstat(t, path).Mtim); at <= want[kind+"/big"] {
			t.Errorf("%s: a write leaves mtime %d, was %d", kind, at, want[kind+"/big"])
		}
		ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(want[kind+"/big"])}
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, ts, 0))
	}
	must(t, r.c.Unmount(context.Background(), "fork"))
	must(t, r.c.Mount(context.Background(), fork))
	sameTimes(t, "fork, copied up", mtimes(t, fork.Dir), want)
	must(t, r.c.Unmount(context.Background(), "fork"))
}

// Times have nanoseconds and go far; those that do not fit are the nearest
// that does, as in other file systems.
func TestTimes(t *testing.T) {
	eachKind(t, map[string]string{"f": "x", "d/f": "x", "l": "->f"}, func(t *testing.T, r *rig, dir string) {
		for _, c := range []struct{ set, want unix.Timespec }{
			{unix.Timespec{Sec: 0, Nsec: 1}, unix.Timespec{Sec: 0, Nsec: 1}},
			{unix.Timespec{Sec: -1, Nsec: 999999999}, unix.Timespec{Sec: -1, Nsec: 999999999}},
			{unix.Timespec{Sec: -1 << 31}, unix.Timespec{Sec: -1 << 31}},
			{unix.Timespec{Sec: 1 << 31, Nsec: 5}, unix.Timespec{Sec: 1 << 31, Nsec: 5}},
			{unix.Timespec{Sec: 1 << 33}, unix.Timespec{Sec: 1 << 33}},
			{unix.Timespec{Sec: 1 << 40}, unix.NsecToTimespec(1<<63 - 1)},
			{unix.Timespec{Sec: -1 << 40}, unix.NsecToTimespec(-1 << 63)},
		} {
			for _, name := range []string{"f", "d", "l"} {
				path := filepath.Join(dir, name)
				must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{c.set, c.set}, unix.AT_SYMLINK_NOFOLLOW))
				want := c.want
				if st := lstat(t, path); st.Mtim != want || st.Atim != want {
					t.Errorf("%s: set to %v, is %v, accessed %v", name, c.set, st.Mtim, st.Atim)
				}
			}
		}
		want := unix.Timespec{Sec: 1 << 32, Nsec: 7}
		for _, name := range []string{"f", "d", "l"} {
			must(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(dir, name), []unix.Timespec{want, want}, unix.AT_SYMLINK_NOFOLLOW))
		}
		r.freeze()
		r.unmount()
		r.mount()
		for _, name := range []string{"f", "d", "l"} {
			if st := lstat(t, filepath.Join(dir, name)); st.Mtim != want || st.Atim != want {
				t.Errorf("%s after a remount: %v, accessed %v", name, st.Mtim, st.Atim)
			}
		}
		// Reading leaves the access time, as on a file system mounted with
		// noatime.
		wantFile(t, filepath.Join(dir, "f"), "x")
		if st := lstat(t, filepath.Join(dir, "f")); st.Atim != want {
			t.Errorf("accessed at %v after reading", st.Atim)
		}
	})
}

// ctime goes up with every change, of the content too.
func TestCtime(t *testing.T) {
	eachKind(t, map[string]string{"f": "x"}, func(t *testing.T, r *rig, dir string) {
		f, g := filepath.Join(dir, "f"), filepath.Join(dir, "g")
		for _, c := range []struct {
			what  string
			do    func() error
			now   string
			bytes bool
		}{
			{"chmod", func() error { return unix.Chmod(f, 0o600) }, f, false},
			{"chown", func() error { return unix.Chown(f, 1, 1) }, f, false},
			{"setxattr", func() error { return unix.Setxattr(f, "user.a", []byte("b"), 0) }, f, false},
			{"removexattr", func() error { return unix.Removexattr(f, "user.a") }, f, false},
			{"link", func() error { return unix.Link(f, g) }, f, false},
			{"unlink", func() error { return unix.Unlink(g) }, f, false},
			{"rename", func() error { return unix.Rename(f, g) }, g, false},
			{"rename back", func() error { return unix.Rename(g, f) }, f, false},
			{"write", func() error { return writeAt(f, []byte("zz"), 0, 0) }, f, true},
			{"truncate", func() error { return unix.Truncate(f, 1) }, f, true},
			{"utimes", func() error { return unix.UtimesNanoAt(unix.AT_FDCWD, f, []unix.Timespec{{}, {}}, 0) }, f, false},
			{"freeze and write", func() error { r.freeze(); return writeAt(f, []byte("z"), 0, 0) }, f, true},
		} {
			path := f
			if _, err := os.Lstat(f); err != nil {
				path = g
			}
			before := lstat(t, path).Ctim
			must(t, c.do())
			// The kernel stamps writes of the data file by its tick, others are
			// stamped by the clock: a write may come out as of the same time.
			after := lstat(t, c.now).Ctim
			if nanos(after) < nanos(before) || after == before && !c.bytes {
				t.Errorf("%s: ctime %v, was %v", c.what, after, before)
			}
		}
	})
}

func nanos(ts unix.Timespec) int64 { return ts.Nano() }
