package fusefs

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mapping is a file with a shared mapping.
type mapping struct {
	f *os.File
	m []byte
}

func newMapping(t *testing.T, path string, size int) *mapping {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	must(t, err)
	must(t, f.Truncate(int64(size)))
	m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	return &mapping{f, m}
}

func (m *mapping) close(t *testing.T) {
	t.Helper()
	must(t, unix.Munmap(m.m))
	must(t, m.f.Close())
}

// fork mounts the sealed layers of r beside it and calls fn with the place.
func (r *rig) fork(sealed []string, top string, fn func(dir string)) {
	r.t.Helper()
	fork := r.spec
	fork.ID, fork.Dir = "fork-"+top, filepath.Join(r.dir, "fork-"+top)
	fork.Layers = append(append([]string{}, sealed...), top)
	must(r.t, r.c.Mount(context.Background(), fork))
	fn(fork.Dir)
	must(r.t, r.c.Unmount(context.Background(), fork.ID))
}

func (r *rig) freezeOn(top string) Frozen {
	r.t.Helper()
	f, err := r.c.Freeze(context.Background(), r.spec.ID, top)
	must(r.t, err)
	r.spec.Layers = append(append([]string{}, r.spec.Layers...), top)
	return f
}

// What was stored into a shared mapping before Flush is in the frozen layer,
// what comes later is not, and the mapping goes on.
func TestFlushMapping(t *testing.T) {
	r := newRig(t, nil)
	const size = 4 << 20
	m := newMapping(t, r.path("mapped"), size)
	for round := range 5 {
		fill := byte('a' + round)
		for i := range m.m {
			m.m[i] = fill
		}
		done, err := r.c.Flush(context.Background(), "m", time.Minute)
		must(t, err)
		if !done {
			t.Fatal("given up")
		}
		sealed := r.spec.Layers
		r.freezeOn(fmt.Sprint("top", round))
		copy(m.m[size/2:], "after the freeze")
		r.fork(sealed, fmt.Sprint("f", round), func(dir string) {
			data, err := os.ReadFile(filepath.Join(dir, "mapped"))
			must(t, err)
			if len(data) != size || bytes.Count(data, []byte{fill}) != size {
				t.Errorf("round %d: %d bytes of %d are those of before", round, bytes.Count(data, []byte{fill}), size)
			}
		})
		got := make([]byte, 5)
		_, err = m.f.ReadAt(got, size/2)
		must(t, err)
		if string(got) != "after" {
			t.Errorf("round %d: the mapping's file has %q", round, got)
		}
	}
	m.close(t)
}

// While processes write through mappings and descriptors, every fork is a
// point in time: a writer that stores n in one file before it stores n in the
// next one is never seen to have done the second alone.
func TestFreezePointInTime(t *testing.T) {
	r := newRig(t, nil)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		first, err := os.Create(r.path("first"))
		must(t, err)
		defer first.Close()
		second, err := os.Create(r.path("second"))
		must(t, err)
		defer second.Close()
		var b [8]byte
		for n := uint64(1); !stop.Load(); n++ {
			binary.BigEndian.PutUint64(b[:], n)
			for _, f := range []*os.File{first, second} {
				if _, err := f.WriteAt(b[:], 0); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	m := newMapping(t, r.path("mapped"), 1<<20)
	defer wg.Wait()
	defer stop.Store(true)
	wg.Go(func() {
		for n := uint64(1); !stop.Load(); n++ {
			for off := 0; off < len(m.m); off += 4096 {
				binary.BigEndian.PutUint64(m.m[off:], n)
			}
		}
	})
	layers := filepath.Join(r.dir, "layers")
	was := map[string]map[string][]byte{}
	var last uint64
	for i := range 8 {
		_, err := r.c.Flush(context.Background(), "m", 5*time.Second)
		must(t, err)
		sealed := r.spec.Layers
		f := r.freezeOn(fmt.Sprint("top", i))
		if f.Pause <= 0 {
			t.Errorf("pause %v", f.Pause)
		}
		was[f.Sealed] = readDir(t, filepath.Join(layers, f.Sealed, "data"))
		r.fork(sealed, fmt.Sprint("f", i), func(dir string) {
			first, second := number(t, filepath.Join(dir, "first")), number(t, filepath.Join(dir, "second"))
			if first != second && first != second+1 {
				t.Errorf("fork %d: first is %d, second %d", i, first, second)
			}
			if first < last {
				t.Errorf("fork %d: %d after %d", i, first, last)
			}
			last = first
		})
	}
	stop.Store(true)
	wg.Wait()
	for id, files := range was {
		for path, data := range readDir(t, filepath.Join(layers, id, "data")) {
			if !bytes.Equal(files[path], data) {
				t.Errorf("%s of layer %s changed after the freeze", path, id)
			}
		}
	}
	want := append([]byte{}, m.m...)
	m.close(t)
	r.unmount()
	r.mount()
	got, err := os.ReadFile(r.path("mapped"))
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Error("what was stored in the mapping last is not there")
	}
}

// number is 0 for a file that is not there or empty yet.
func number(t *testing.T, path string) uint64 {
	t.Helper()
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return 0
	}
	must(t, err)
	if len(data) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(data)
}

// A file without a name gets one after a freeze, with what was written before.
func TestTmpfileOverFreeze(t *testing.T) {
	r := newRig(t, nil)
	fd, err := unix.Open(r.spec.Dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
	must(t, err)
	f := os.NewFile(uintptr(fd), "tmpfile")
	_, err = f.WriteString("before")
	must(t, err)
	sealed := r.spec.Layers
	r.freezeOn("top")
	must(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, r.path("named"), unix.AT_SYMLINK_FOLLOW))
	_, err = f.WriteString(" and after")
	must(t, err)
	must(t, f.Close())
	r.fork(sealed, "f", func(dir string) {
		if _, err := os.Lstat(filepath.Join(dir, "named")); !os.IsNotExist(err) {
			t.Errorf("in the fork: %v", err)
		}
	})
	r.unmount()
	r.mount()
	wantFile(t, r.path("named"), "before and after")
}

func TestStack(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	logs := func() []int64 {
		s, err := r.c.Stack(context.Background(), "m")
		must(t, err)
		return s.Logs
	}
	if l := logs(); len(l) != 1 || l[0] != 0 {
		t.Errorf("a new one: %v", l)
	}
	must(t, os.WriteFile(r.path("g"), nil, 0o644))
	r.freezeOn("top")
	if l := logs(); len(l) != 2 || l[0] == 0 || l[1] != 0 {
		t.Errorf("after a freeze: %v", l)
	}
}
