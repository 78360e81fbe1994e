package fusefs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Two names of any kinds are exchanged in one step, or given only where there
// is none.
func TestExchangeAndNoReplace(t *testing.T) {
	files := map[string]string{}
	for _, kind := range kinds {
		files["f-"+kind], files["l-"+kind], files["d-"+kind+"/f"], files["n-"+kind] = "content", "->f", "in d", "to move"
	}
	r := newKinds(t, files)
	for _, a := range kinds {
		for _, b := range kinds {
			p := func(kind, what, other string) string { return r.path(kind + "/" + what + "-" + other) }
			for _, pair := range [][2]string{
				{p(a, "f", b), p(b, "l", a)}, {p(a, "f", b), p(b, "d", a)}, {p(a, "d", b), p(b, "l", a)}, {p(a, "f", b), p(b, "f", a)},
			} {
				x, y := lstat(t, pair[0]).Ino, lstat(t, pair[1]).Ino
				must(t, unix.Renameat2(unix.AT_FDCWD, pair[0], unix.AT_FDCWD, pair[1], unix.RENAME_EXCHANGE))
				if x2, y2 := lstat(t, pair[0]).Ino, lstat(t, pair[1]).Ino; x2 != y || y2 != x {
					t.Errorf("%s, %s: inodes %d, %d became %d, %d", pair[0], pair[1], x, y, x2, y2)
				}
				must(t, unix.Renameat2(unix.AT_FDCWD, pair[1], unix.AT_FDCWD, pair[0], unix.RENAME_EXCHANGE))
				if err := unix.Renameat2(unix.AT_FDCWD, pair[0], unix.AT_FDCWD, pair[1]+"-none", unix.RENAME_EXCHANGE); err != unix.ENOENT {
					t.Errorf("%s exchanged with nothing: %v", pair[0], err)
				}
				if pair[0] == pair[1] {
					continue
				}
				if err := unix.Renameat2(unix.AT_FDCWD, pair[0], unix.AT_FDCWD, pair[1], unix.RENAME_NOREPLACE); err != unix.EEXIST {
					t.Errorf("%s to %s, which is there: %v", pair[0], pair[1], err)
				}
			}
			// To a new name, and to one that was removed.
			from, to := p(a, "n", b), p(b, "moved", a)
			must(t, unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE))
			must(t, unix.Renameat2(unix.AT_FDCWD, to, unix.AT_FDCWD, from, unix.RENAME_NOREPLACE))
			wantFile(t, from, "to move")
		}
	}
	for _, kind := range kinds {
		dir := r.path(kind + "/d-lower")
		if err := unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, dir+"/f", unix.RENAME_EXCHANGE); err != unix.EINVAL {
			t.Errorf("%s exchanged with what is in it: %v", dir, err)
		}
		must(t, unix.Renameat2(unix.AT_FDCWD, r.path(kind+"/f-up"), unix.AT_FDCWD, r.path(kind+"/d-up"), unix.RENAME_EXCHANGE))
	}
	before := snapshot(t, r.spec.Dir)
	r.freeze()
	r.unmount()
	r.mount()
	same(t, "remount", snapshot(t, r.spec.Dir), before, exact)
	for _, kind := range kinds {
		wantFile(t, r.path(kind+"/d-up"), "content")
		wantFile(t, r.path(kind+"/f-up/f"), "in d")
	}
}

// A file without a name gets one in a directory of any kind, also another one
// than it was made in, and only where there is none.
func TestTmpfileEverywhere(t *testing.T) {
	r := newKinds(t, map[string]string{"there": "x", "d/f": "y"})
	big := strings.Repeat("0123456789", 20000)
	for _, from := range kinds {
		for _, to := range kinds {
			fd, err := unix.Open(r.path(from+"/d"), unix.O_TMPFILE|unix.O_RDWR, 0o640)
			must(t, err)
			f := os.NewFile(uintptr(fd), "tmp")
			_, err = f.WriteString(big)
			must(t, err)
			must(t, f.Chmod(0o604))
			must(t, f.Chown(5, 6))
			if from == to {
				r.freeze() // its bytes are in another layer than its name
			}
			proc := fmt.Sprintf("/proc/self/fd/%d", fd)
			link := func(name string) error {
				return unix.Linkat(unix.AT_FDCWD, proc, unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
			}
			if err := link(r.path(to + "/there")); err != unix.EEXIST {
				t.Errorf("from %s to %s: over what is there: %v", from, to, err)
			}
			name := r.path(to + "/d/from-" + from)
			must(t, link(name))
			must(t, unix.Linkat(fd, "", unix.AT_FDCWD, name+"-2", unix.AT_EMPTY_PATH))
			_, err = f.WriteAt([]byte("more"), int64(len(big)))
			must(t, err)
			f.Close()
			// One that is to have no name gets none.
			fd, err = unix.Open(r.path(from), unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL, 0o640)
			must(t, err)
			err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, name+"-3", unix.AT_SYMLINK_FOLLOW)
			if !errors.Is(err, unix.ENOENT) {
				t.Errorf("from %s: naming what was opened with O_EXCL: %v", from, err)
			}
			unix.Close(fd)
		}
	}
	check := func() {
		t.Helper()
		for _, from := range kinds {
			for _, to := range kinds {
				name := r.path(filepath.Join(to, "d", "from-"+from))
				for _, path := range []string{name, name + "-2"} {
					if st := lstat(t, path); st.Mode != 0o100604 || st.Uid != 5 || st.Gid != 6 || st.Nlink != 2 {
						t.Errorf("%s: %+v", path, st)
					}
					wantFile(t, path, big+"more")
				}
			}
		}
	}
	check()
	r.unmount()
	r.mount()
	check()
}
