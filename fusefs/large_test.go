package fusefs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// segments are the ranges of data of a file, as SEEK_DATA and SEEK_HOLE tell.
func segments(t testing.TB, path string) (all [][2]int64) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	for off := int64(0); ; {
		start, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return all
		}
		must(t, err)
		end, err := unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
		must(t, err)
		all = append(all, [2]int64{start, end})
		off = end
	}
}

// A file that is mostly holes stays so when it is copied up, beyond 4 GiB too.
func TestHolesStay(t *testing.T) {
	const gib = int64(1) << 30
	r := newRig(t, nil)
	path := r.path("f")
	must(t, os.WriteFile(path, []byte("start"), 0o644))
	for _, off := range []int64{1 << 20, 4*gib - 2, 5*gib + 4096, 7 * gib} {
		must(t, writeAt(path, []byte("data"), off, 0))
	}
	must(t, os.Truncate(path, 9*gib+1))
	want, blocks := segments(t, path), lstat(t, path).Blocks
	if len(want) < 4 || blocks > 1000 {
		t.Fatalf("data at %v, %d blocks: no file with holes to begin with", want, blocks)
	}
	check := func(when string) {
		t.Helper()
		if got := segments(t, path); !slices.Equal(got, want) {
			t.Errorf("%s: data at %v, was at %v", when, got, want)
		}
		st := lstat(t, path)
		if st.Size != 9*gib+1 || st.Blocks > blocks+64 {
			t.Errorf("%s: size %d, %d blocks, had %d", when, st.Size, st.Blocks, blocks)
		}
		f, err := os.Open(path)
		must(t, err)
		defer f.Close()
		for off, content := range map[int64]string{
			0: "start\x00", 1<<20 - 1: "\x00data\x00", 4*gib - 2: "data", 5*gib + 4096: "data\x00", 7 * gib: "data", 8 * gib: "\x00", 9 * gib: "\x00",
		} {
			b := make([]byte, len(content))
			if _, err := f.ReadAt(b, off); err != nil || string(b) != content {
				t.Errorf("%s: at %d: %q, %v", when, off, b, err)
			}
		}
		if n, err := f.ReadAt(make([]byte, 1), 9*gib+1); n != 0 {
			t.Errorf("%s: after the end: %d, %v", when, n, err)
		}
	}
	r.freeze()
	check("frozen")
	must(t, writeAt(path, []byte("start"), 0, 0))
	check("copied up")
	r.freeze()
	must(t, os.Truncate(path, 9*gib+1))
	must(t, os.Chmod(path, 0o600))
	r.unmount()
	r.mount()
	check("remounted")
}

// Where a file cannot reach the answer is that of the file system below.
func TestLargestOffsets(t *testing.T) {
	largest := map[string]string{}
	everywhere(t, map[string]string{"f": "content"}, func(t *testing.T, dir string) {
		path := filepath.Join(dir, "f")
		for _, off := range []int64{
			1 << 32, 1<<40 + 1, 1<<44 - 8192, 1<<44 - 4097, 1<<44 - 4096, 1<<44 - 1, 1 << 44, 1<<50 + 7, 1 << 62, math.MaxInt64 - 4096, math.MaxInt64 - 2,
			math.MaxInt64 - 1, math.MaxInt64, -1,
		} {
			for name, do := range map[string]func(fd int) error{
				"write":     func(fd int) error { _, err := unix.Pwrite(fd, []byte("x"), off); return err },
				"truncate":  func(fd int) error { return unix.Ftruncate(fd, off) },
				"fallocate": func(fd int) error { return unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, off, 1) },
				"read": func(fd int) error {
					_, err := unix.Pread(fd, make([]byte, 1), off)
					return err
				},
			} {
				size := int64(-1)
				err := withFile(path, func(fd int) error {
					err := do(fd)
					var st unix.Stat_t
					must(t, unix.Fstat(fd, &st))
					size = st.Size
					must(t, unix.Ftruncate(fd, 7))
					return err
				})
				key, got := fmt.Sprintf("%s at %#x", name, off), fmt.Sprintf("%v, size %d", err, size)
				if want, ok := largest[key]; !ok {
					largest[key] = got
				} else if got != want {
					t.Errorf("%s: %s, in a plain directory %s", key, got, want)
				}
			}
		}
		wantFile(t, path, "content")
	})
}
