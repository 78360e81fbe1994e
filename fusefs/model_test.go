package fusefs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// modelSeeds are what TestModel runs with; those that found a bug stay.
// GITENV_TEST_SEED=<n> runs another one, GITENV_TEST_OPS=<n> as many operations.
var modelSeeds = []uint64{1, 2, 3}

const (
	modelMax = 300 << 10 // longest file
	modelOp  = 70 << 10  // longest operation
)

// TestModel does random operations on the bytes of two files of each kind and
// keeps an account of what must be in them. On the way the workspace is
// frozen, forked and remounted, and in the end each frozen state is looked at
// again.
func TestModel(t *testing.T) {
	seeds, ops := modelSeeds, 700
	if testing.Short() {
		seeds, ops = seeds[:1], 400
	}
	if s := os.Getenv("GITENV_TEST_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		must(t, err)
		seeds = []uint64{n}
	}
	if s := os.Getenv("GITENV_TEST_OPS"); s != "" {
		n, err := strconv.Atoi(s)
		must(t, err)
		ops = n
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			content := rand.New(rand.NewPCG(seed, 1))
			a, b := make([]byte, 150001), make([]byte, 8192)
			for i := range a {
				a[i] = byte(content.Uint32())
			}
			files := map[string]string{"a": string(a), "b": string(b)}
			r := newKinds(t, files)
			m := &modeler{Rand: rand.New(rand.NewPCG(seed, 2)), t: t, r: r}
			for _, kind := range kinds {
				m.files = append(m.files,
					&modelFile{path: r.path(kind + "/a"), want: bytes.Clone(a)},
					&modelFile{path: r.path(kind + "/b"), want: bytes.Clone(b)})
			}
			m.run(ops)
		})
	}
}

type modeler struct {
	*rand.Rand
	t      *testing.T
	r      *rig
	files  []*modelFile
	log    []string
	frozen []frozenState
}

// modelFile is a file, what must be in it, and an open descriptor and mapping.
type modelFile struct {
	path string
	want []byte
	f    *os.File
}

// frozenState is what the files were when layers were frozen.
type frozenState struct {
	layers []string
	want   map[string][]byte
}

func (m *modeler) run(ops int) {
	defer func() {
		if m.t.Failed() {
			m.t.Logf("last operations:\n%s", strings.Join(m.log[max(0, len(m.log)-40):], "\n"))
		}
	}()
	for _, f := range m.files {
		m.open(f)
	}
	for i := range ops {
		m.step(i)
		if i%50 == 49 {
			for _, f := range m.files {
				m.check(f)
			}
		}
	}
	m.remount()
	for _, f := range m.files {
		m.check(f)
		f.f.Close()
	}
	m.r.unmount()
	for _, s := range m.frozen {
		m.checkFrozen(s)
	}
	m.r.mount()
}

func (m *modeler) say(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf("%d: ", len(m.log))+fmt.Sprintf(format, args...))
}

func (m *modeler) fatal(f *modelFile, format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("%s: "+format, append([]any{f.name(m)}, args...)...)
}

func (f *modelFile) name(m *modeler) string {
	rel, _ := filepath.Rel(m.r.spec.Dir, f.path)
	return rel
}

func (m *modeler) open(f *modelFile) {
	if f.f != nil {
		f.f.Close()
	}
	var err error
	f.f, err = os.OpenFile(f.path, os.O_RDWR, 0)
	must(m.t, err)
}

// span is a random range; with some chance at page boundaries, or past the end.
func (m *modeler) span(limit int) (off, n int) {
	off, n = m.IntN(max(limit, 1)), m.IntN(modelOp)
	if m.IntN(4) == 0 {
		off, n = off&^4095, (n+4095)&^4095
	}
	return off, min(n, modelMax-off)
}

func (m *modeler) step(i int) {
	f := m.files[m.IntN(len(m.files))]
	switch op := m.IntN(100); {
	case op < 20:
		m.read(f)
	case op < 40:
		m.write(f)
	case op < 46:
		m.append(f)
	case op < 54:
		m.truncate(f)
	case op < 62:
		m.mapped(f, false)
	case op < 72:
		m.mapped(f, true)
	case op < 82:
		m.allocate(f)
	case op < 88:
		m.copyRange(f)
	case op < 91:
		m.seek(f)
	case op < 94:
		m.say("open %s", f.name(m))
		m.open(f)
	case op < 96:
		m.say("fsync %s", f.name(m))
		must(m.t, f.f.Sync())
	case op < 97:
		m.rename(f)
	case op < 99:
		m.freeze(i)
	case op < 100 && m.IntN(4) == 0:
		m.remount()
	}
}

func (m *modeler) read(f *modelFile) {
	off, n := m.span(len(f.want) + 10)
	m.say("read %s %d+%d", f.name(m), off, n)
	buf := make([]byte, n)
	got, err := unix.Pread(int(f.f.Fd()), buf, int64(off))
	must(m.t, err)
	m.compare(f, "read", off, buf[:got], n)
}

func (m *modeler) compare(f *modelFile, what string, off int, got []byte, n int) {
	m.t.Helper()
	want := f.want[min(off, len(f.want)):min(off+n, len(f.want))]
	if len(got) != len(want) {
		m.fatal(f, "%s at %d: %d bytes, want %d", what, off, len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			m.fatal(f, "%s at %d+%d: byte %d is %#x, want %#x", what, off, n, off+i, got[i], want[i])
		}
	}
}

func (m *modeler) fill(n int) []byte {
	b := make([]byte, n)
	c := m.Uint32()
	for i := range b {
		b[i] = byte(c>>8) + byte(i)*byte(c|1)
	}
	return b
}

// put is what a write of b at off does.
func (f *modelFile) put(off int, b []byte) {
	f.grow(off + len(b))
	copy(f.want[off:], b)
}

func (f *modelFile) grow(size int) {
	if size > len(f.want) {
		f.want = append(f.want, make([]byte, size-len(f.want))...)
	}
}

func (m *modeler) write(f *modelFile) {
	off, n := m.span(min(len(f.want)+20000, modelMax))
	if n <= 0 {
		return
	}
	b := m.fill(n)
	m.say("write %s %d+%d", f.name(m), off, n)
	_, err := f.f.WriteAt(b, int64(off))
	must(m.t, err)
	f.put(off, b)
}

func (m *modeler) append(f *modelFile) {
	if len(f.want) > modelMax-modelOp {
		return
	}
	b := m.fill(m.IntN(5000))
	m.say("append %s %d", f.name(m), len(b))
	a, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND, 0)
	must(m.t, err)
	defer a.Close()
	_, err = a.Write(b)
	must(m.t, err)
	f.put(len(f.want), b)
}

func (m *modeler) truncate(f *modelFile) {
	size := m.IntN(modelMax)
	if m.IntN(3) == 0 {
		size = min(size, len(f.want))
	}
	m.say("truncate %s %d to %d", f.name(m), len(f.want), size)
	if m.IntN(2) == 0 {
		must(m.t, unix.Truncate(f.path, int64(size)))
	} else {
		must(m.t, f.f.Truncate(int64(size)))
	}
	f.grow(size)
	f.want = f.want[:size:size]
}

// mapped reads or writes through a mapping of its own.
func (m *modeler) mapped(f *modelFile, write bool) {
	if len(f.want) == 0 {
		return
	}
	off, n := m.span(len(f.want))
	n = min(n, len(f.want)-off)
	if n <= 0 {
		return
	}
	m.say("map %s %d+%d write %t", f.name(m), off, n, write)
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	start := off &^ 4095
	mem, err := unix.Mmap(int(f.f.Fd()), int64(start), off-start+n, prot, unix.MAP_SHARED)
	must(m.t, err)
	if write {
		b := m.fill(n)
		copy(mem[off-start:], b)
		copy(f.want[off:], b)
		if m.IntN(3) == 0 {
			m.read(f) // sees it at once
		}
		if m.IntN(2) == 0 {
			must(m.t, unix.Msync(mem, unix.MS_SYNC))
		}
	}
	m.compare(f, "mapping", off, mem[off-start:], n)
	must(m.t, unix.Munmap(mem))
}

func (m *modeler) allocate(f *modelFile) {
	modes := []uint32{
		0, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE,
		unix.FALLOC_FL_ZERO_RANGE, unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE,
	}
	mode := modes[m.IntN(len(modes))]
	off, n := m.span(len(f.want) + 100)
	if n <= 0 {
		return
	}
	m.say("fallocate %s %#x %d+%d", f.name(m), mode, off, n)
	err := unix.Fallocate(int(f.f.Fd()), mode, int64(off), int64(n))
	if errors.Is(err, unix.EOPNOTSUPP) {
		return // nor can the file system below
	}
	must(m.t, err)
	if mode&unix.FALLOC_FL_KEEP_SIZE == 0 {
		f.grow(off + n)
	}
	if mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) != 0 {
		clear(f.want[min(off, len(f.want)):min(off+n, len(f.want))])
	}
}

// copyRange copies within a file or from another one.
func (m *modeler) copyRange(f *modelFile) {
	src := f
	if m.IntN(2) == 0 {
		src = m.files[m.IntN(len(m.files))]
	}
	from, n := m.span(len(src.want))
	to := m.IntN(modelMax)
	n = min(n, len(src.want)-from, modelMax-to)
	if src == f && from < to+n && to < from+n || n <= 0 {
		return
	}
	m.say("copy %s %d+%d to %s %d", src.name(m), from, n, f.name(m), to)
	a, b := int64(from), int64(to)
	done := 0
	for done < n {
		got, err := unix.CopyFileRange(int(src.f.Fd()), &a, int(f.f.Fd()), &b, n-done, 0)
		must(m.t, err)
		if got == 0 {
			m.fatal(f, "copy_file_range stops at %d of %d", done, n)
		}
		done += got
	}
	f.put(to, bytes.Clone(src.want[from:from+n]))
}

// seek checks that what SEEK_DATA passes over is zero.
func (m *modeler) seek(f *modelFile) {
	off := m.IntN(len(f.want) + 10)
	m.say("seek %s %d", f.name(m), off)
	at, err := unix.Seek(int(f.f.Fd()), int64(off), unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		at = int64(len(f.want))
	case err != nil:
		m.fatal(f, "SEEK_DATA: %v", err)
	}
	for i := off; i < min(int(at), len(f.want)); i++ {
		if f.want[i] != 0 {
			m.fatal(f, "SEEK_DATA at %d is %d, passing over byte %d", off, at, i)
		}
	}
	hole, err := unix.Seek(int(f.f.Fd()), int64(off), unix.SEEK_HOLE)
	if off >= len(f.want) {
		if !errors.Is(err, unix.ENXIO) {
			m.fatal(f, "SEEK_HOLE past the end: %d %v", hole, err)
		}
	} else if err != nil || hole < int64(off) || hole > int64(len(f.want)) {
		m.fatal(f, "SEEK_HOLE at %d of %d: %d %v", off, len(f.want), hole, err)
	}
}

// rename gives the file another name while it is open.
func (m *modeler) rename(f *modelFile) {
	to := f.path + "x"
	if len(filepath.Base(to)) > 20 {
		to = filepath.Join(filepath.Dir(f.path), filepath.Base(f.path)[:1])
	}
	m.say("rename %s to %s", f.name(m), filepath.Base(to))
	must(m.t, os.Rename(f.path, to))
	f.path = to
}

func (m *modeler) freeze(i int) {
	m.say("freeze")
	// A mapping's bytes are the kernel's until they are written back.
	for _, f := range m.files {
		must(m.t, f.f.Sync())
	}
	s := frozenState{want: map[string][]byte{}}
	for _, f := range m.files {
		s.want[f.name(m)] = bytes.Clone(f.want)
	}
	s.layers = append(s.layers, m.r.spec.Layers...)
	m.r.freeze()
	m.frozen = append(m.frozen, s)
	if i%7 == 0 {
		m.checkFrozen(s)
	}
}

// checkFrozen looks at a frozen state from a fork.
func (m *modeler) checkFrozen(s frozenState) {
	spec := m.r.spec
	spec.ID, spec.Dir, spec.Layers, spec.ReadOnly = "frozen", filepath.Join(m.r.dir, "frozen"), s.layers, true
	must(m.t, m.r.c.Mount(context.Background(), spec))
	defer func() { must(m.t, m.r.c.Unmount(context.Background(), "frozen")) }()
	for name, want := range s.want {
		got, err := os.ReadFile(filepath.Join(spec.Dir, name))
		must(m.t, err)
		if !bytes.Equal(got, want) {
			m.t.Fatalf("%s changed in a frozen layer (%v)", name, s.layers)
		}
	}
}

func (m *modeler) remount() {
	m.say("remount")
	for _, f := range m.files {
		must(m.t, f.f.Close())
		f.f = nil
	}
	m.r.unmount()
	m.r.mount()
	for _, f := range m.files {
		m.open(f)
	}
}

// check compares the whole file, as a reader, a mapping and stat see it.
func (m *modeler) check(f *modelFile) {
	m.t.Helper()
	got, err := os.ReadFile(f.path)
	must(m.t, err)
	m.compare(f, "file", 0, got, modelMax)
	if size := lstat(m.t, f.path).Size; size != int64(len(f.want)) {
		m.fatal(f, "size %d, want %d", size, len(f.want))
	}
	if len(f.want) == 0 {
		return
	}
	mem, err := unix.Mmap(int(f.f.Fd()), 0, (len(f.want)+4095)&^4095, unix.PROT_READ, unix.MAP_SHARED)
	must(m.t, err)
	m.compare(f, "mapping", 0, mem[:len(f.want)], modelMax)
	for i, c := range mem[len(f.want):] {
		if c != 0 {
			m.fatal(f, "the mapping has %#x %d bytes behind the end", c, i)
		}
	}
	must(m.t, unix.Munmap(mem))
}
