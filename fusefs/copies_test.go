package fusefs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// copyWays copy the content of in, whose size is n, to out.
var copyWays = map[string]func(out, in *os.File, n int) error{
	"sendfile": func(out, in *os.File, n int) error {
		return repeat(n, func(left int) (int, error) { return unix.Sendfile(int(out.Fd()), int(in.Fd()), nil, left) })
	},
	"copy_file_range": func(out, in *os.File, n int) error {
		return repeat(n, func(left int) (int, error) {
			return unix.CopyFileRange(int(in.Fd()), nil, int(out.Fd()), nil, left, 0)
		})
	},
	"splice": func(out, in *os.File, n int) error {
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			return err
		}
		defer unix.Close(pipe[0])
		defer unix.Close(pipe[1])
		return repeat(n, func(left int) (int, error) {
			got, err := unix.Splice(int(in.Fd()), nil, pipe[1], nil, min(left, 60000), unix.SPLICE_F_MOVE)
			if err != nil || got == 0 {
				return int(got), err
			}
			return int(got), repeat(int(got), func(left int) (int, error) {
				n, err := unix.Splice(pipe[0], nil, int(out.Fd()), nil, left, unix.SPLICE_F_MOVE)
				return int(n), err
			})
		})
	},
}

func repeat(n int, step func(left int) (int, error)) error {
	for n > 0 {
		got, err := step(n)
		if err != nil {
			return err
		}
		if got <= 0 {
			return fmt.Errorf("ended %d bytes early", n)
		}
		n -= got
	}
	return nil
}

// Content goes from each kind of file to each other, and to and from other file
// systems, without passing through the program that copies.
func TestCopiesInTheKernel(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef\n"), 20000)
	files := map[string]string{"from": string(content)}
	for name := range copyWays {
		for _, kind := range append([]string{"same", "memory"}, kinds...) {
			files[name+"-"+kind] = "what was there"
		}
	}
	r := newKinds(t, files)
	dirs := map[string]string{"same": t.TempDir()} // the file system below
	memory, err := os.MkdirTemp("/dev/shm", "git-env-test-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(memory) })
	dirs["memory"] = memory
	for _, dir := range dirs {
		writeFiles(t, dir, files)
	}
	for _, kind := range kinds {
		dirs[kind] = r.path(kind)
	}
	inside := func(kind string) bool { return kind != "same" && kind != "memory" }
	for from, fromDir := range dirs {
		for to, toDir := range dirs {
			if !inside(from) && !inside(to) {
				continue
			}
			for name, do := range copyWays {
				in, err := os.Open(filepath.Join(fromDir, "from"))
				must(t, err)
				out, err := os.OpenFile(filepath.Join(toDir, name+"-"+from), os.O_RDWR, 0)
				must(t, err)
				err = do(out, in, len(content))
				if inside(from) != inside(to) && name == "copy_file_range" {
					if !errors.Is(err, unix.EXDEV) {
						t.Errorf("%s from %s to %s: %v, want EXDEV", name, from, to, err)
					}
				} else if err != nil {
					t.Errorf("%s from %s to %s: %v", name, from, to, err)
				} else {
					got, err := os.ReadFile(out.Name())
					if err != nil || !bytes.Equal(got, content) {
						t.Errorf("%s from %s to %s: %d bytes, %v, not those of the source", name, from, to, len(got), err)
					}
				}
				in.Close()
				out.Close()
			}
		}
	}
}

// aligned returns n bytes at an address that O_DIRECT takes.
func aligned(n int) []byte {
	b := make([]byte, n+4096)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & 4095
	return b[skip:][:n]
}

// What goes past the cache of the kernel and what goes through it is the same
// content.
func TestDirectAndSynchronous(t *testing.T) {
	old := bytes.Repeat([]byte("old."), 4096)
	everywhere(t, map[string]string{"f": string(old)}, func(t *testing.T, dir string) {
		path := filepath.Join(dir, "f")
		cached, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		defer cached.Close()
		want := bytes.Clone(old)
		check := func(when string) {
			t.Helper()
			for how, flags := range map[string]int{"cached": 0, "directly": unix.O_DIRECT} {
				f, err := os.OpenFile(path, os.O_RDONLY|flags, 0)
				must(t, err)
				got := aligned(len(want))
				if n, err := f.ReadAt(got, 0); n != len(want) || !bytes.Equal(got, want) {
					t.Errorf("%s, read %s: %d bytes, %v, not what was written", when, how, n, err)
				}
				f.Close()
			}
		}
		check("at first")
		for i, flags := range []int{unix.O_DIRECT, unix.O_SYNC, unix.O_DSYNC, unix.O_DIRECT | unix.O_SYNC, 0} {
			f, err := os.OpenFile(path, os.O_RDWR|flags, 0)
			must(t, err)
			block := aligned(4096)
			copy(block, bytes.Repeat([]byte{byte('a' + i)}, len(block)))
			off := i % 3 * 4096
			n, err := f.WriteAt(block, int64(off))
			if n != len(block) || err != nil {
				t.Errorf("flags %#x: %d, %v", flags, n, err)
			}
			copy(want[off:], block)
			check(fmt.Sprintf("flags %#x", flags))
			must(t, f.Sync())
			_, err = cached.WriteAt([]byte("through the cache"), int64(off+100))
			must(t, err)
			copy(want[off+100:], "through the cache")
			check(fmt.Sprintf("flags %#x, then cached", flags))
			f.Close()
		}
	})
}

// A small file of the tree is copied from memory: whole, in part, from its end on,
// into another and into itself.
func TestCopyRangeOfSmallBlob(t *testing.T) {
	r := newRig(t, map[string]string{"a": "0123456789", "b": "other content"})
	in, err := os.OpenFile(r.path("a"), os.O_RDWR, 0)
	must(t, err)
	defer in.Close()
	out, err := os.Create(r.path("new"))
	must(t, err)
	defer out.Close()
	into := func(dst *os.File, from, to int64, length, want int) {
		t.Helper()
		n, err := unix.CopyFileRange(int(in.Fd()), &from, int(dst.Fd()), &to, length, 0)
		if err != nil || n != want {
			t.Errorf("%d bytes from %d: %d, %v", length, from, n, err)
		}
	}
	into(out, 0, 0, 1<<20, 10)
	into(out, 4, 20, 3, 3)
	into(out, 10, 0, 5, 0)
	b, err := os.OpenFile(r.path("b"), os.O_RDWR, 0)
	must(t, err)
	defer b.Close()
	into(b, 0, 2, 4, 4)
	if kept, err := filepath.Glob(filepath.Join(r.dir, "blobs", "*", "*")); err != nil || len(kept) > 0 {
		t.Errorf("cache files were made: %q, %v", kept, err)
	}
	into(in, 0, 5, 5, 5)
	for name, want := range map[string]string{
		"new": "0123456789\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00456", "b": "ot0123content", "a": "0123401234",
	} {
		if got, err := os.ReadFile(r.path(name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
