package fusefs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newIORig(t *testing.T, files map[string]string) *rig {
	t.Helper()
	r := newRig(t, files)
	r.unmount()
	r.spec.Profile = ProfileIO
	r.mount()
	return r
}

func eventually(t testing.TB, fn func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !fn(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not happen")
		}
	}
}

func readAllOf(t *testing.T, f *os.File) string {
	t.Helper()
	data, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<40))
	must(t, err)
	return string(data)
}

// What is written without the server is there, has the right size and time,
// and is dirty as long as it may be written and once more after that.
func TestPassthroughWritesAreDirty(t *testing.T) {
	r := newIORig(t, map[string]string{"lower": "from the tree", "d/x": "x"})
	f, err := os.OpenFile(r.path("lower"), os.O_RDWR, 0)
	must(t, err)
	for range 3 {
		d, err := r.c.Dirty(context.Background(), "m", []string{""})
		must(t, err)
		if len(d.Entries[0]) != 1 || d.Entries[0][0].Name != "lower" {
			t.Fatalf("dirty while open: %+v", d.Entries[0])
		}
		must(t, r.c.Mark(context.Background(), "m", d.Seq, "c"))
		_, err = f.WriteAt([]byte("FROM"), 0)
		must(t, err)
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	_, err = f.WriteAt(big, 13)
	must(t, err)
	if fi, err := os.Stat(r.path("lower")); err != nil || fi.Size() != int64(len(big))+13 {
		t.Errorf("size %v, %v", fi.Size(), err)
	}
	must(t, f.Close())
	d, err := r.c.Dirty(context.Background(), "m", []string{""})
	must(t, err)
	if len(d.Entries[0]) != 1 {
		t.Fatalf("dirty after closing: %+v", d.Entries[0])
	}
	must(t, r.c.Mark(context.Background(), "m", d.Seq, "c"))
	got, err := os.ReadFile(d.Entries[0][0].Data)
	must(t, err)
	if string(got) != "FROM the tree"+string(big) {
		t.Error("the data file is not what was written")
	}
	eventually(t, func() bool { // the kernel tells of a close when it comes to it
		d, err := r.c.Dirty(context.Background(), "m", []string{""})
		must(t, err)
		must(t, r.c.Mark(context.Background(), "m", d.Seq, "c"))
		return len(d.Entries[0]) == 0
	})
}

// A descriptor that is open for reading keeps what it had when the file is
// copied up, as on overlayfs; every later one sees what is written.
func TestPassthroughAcrossCopyUp(t *testing.T) {
	r := newIORig(t, map[string]string{"f": "old content"})
	before, err := os.Open(r.path("f"))
	must(t, err)
	defer before.Close()
	if got := readAllOf(t, before); got != "old content" {
		t.Fatalf("read %q", got)
	}
	w, err := os.OpenFile(r.path("f"), os.O_RDWR, 0)
	must(t, err)
	defer w.Close()
	_, err = w.WriteAt([]byte("NEW"), 0)
	must(t, err)
	during, err := os.Open(r.path("f"))
	must(t, err)
	defer during.Close()
	for what, f := range map[string]*os.File{"the writer": w, "a later reader": during} {
		if got := readAllOf(t, f); got != "NEW content" {
			t.Errorf("%s reads %q", what, got)
		}
	}
	must(t, before.Close())
	must(t, during.Close())
	must(t, w.Close())
	if got, err := os.ReadFile(r.path("f")); err != nil || string(got) != "NEW content" {
		t.Errorf("afterwards: %q, %v", got, err)
	}
	must(t, os.WriteFile(r.path("f"), []byte("short"), 0o644)) // O_TRUNC comes with the open
	if got, err := os.ReadFile(r.path("f")); err != nil || string(got) != "short" {
		t.Errorf("after truncation: %q, %v", got, err)
	}
}

// Nothing is frozen while something writes behind the server's back; then it
// is, and the frozen layer stays as it is.
func TestPassthroughAndFreeze(t *testing.T) {
	r := newIORig(t, map[string]string{"f": "tree"})
	w, err := os.OpenFile(r.path("f"), os.O_RDWR, 0)
	must(t, err)
	if _, err := r.c.Freeze(context.Background(), "m", "l2"); !errors.Is(err, ErrOpenForWriting) {
		t.Fatalf("freeze while open for writing: %v", err)
	}
	m, err := unix.Mmap(int(w.Fd()), 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	must(t, w.Close())
	time.Sleep(100 * time.Millisecond) // the kernel tells of a close when it comes to it
	if _, err := r.c.Freeze(context.Background(), "m", "l2"); !errors.Is(err, ErrOpenForWriting) {
		t.Fatalf("freeze while mapped: %v", err)
	}
	copy(m, "MMAP")
	must(t, unix.Munmap(m))
	reader, err := os.Open(r.path("f"))
	must(t, err)
	defer reader.Close()
	// The kernel closes what was mapped when it comes to it.
	eventually(t, func() bool {
		_, err := r.c.Freeze(context.Background(), "m", "l2")
		return err == nil
	})
	must(t, os.WriteFile(r.path("f"), []byte("after"), 0o644))
	if got := readAllOf(t, reader); got != "MMAP" {
		t.Errorf("the reader of the frozen layer sees %q", got)
	}
	if got, err := os.ReadFile(r.path("f")); err != nil || string(got) != "after" {
		t.Errorf("%q, %v", got, err)
	}
}

// Who writes loses the bits that lend privilege, in this profile too.
func TestPassthroughAndPrivilege(t *testing.T) {
	r := newIORig(t, map[string]string{"f": "tree"})
	must(t, os.Chmod(r.path("f"), 0o755|os.ModeSetuid))
	fd, err := unix.Open(r.path("f"), unix.O_RDWR, 0)
	must(t, err)
	defer unix.Close(fd)
	_, err = unix.Pwrite(fd, []byte("xx"), 0)
	must(t, err)
	if got, err := os.ReadFile(r.path("f")); err != nil || string(got) != "xxee" {
		t.Errorf("%q, %v", got, err)
	}
}
