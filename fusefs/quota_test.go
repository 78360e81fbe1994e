package fusefs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func quotaRig(t *testing.T, limit int64) *rig {
	t.Helper()
	r := newRig(t, map[string]string{"big": string(bytes.Repeat([]byte("lower\n"), 50_000)), "small": "s\n", "d/x": "x\n"})
	r.unmount()
	r.spec.Quota = limit
	r.mount()
	return r
}

func (r *rig) usage() Usage {
	r.t.Helper()
	u, err := r.c.Usage(context.Background(), r.spec.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	return u
}

// onDisk is what the layers really take, the logs of sealed ones aside.
func (r *rig) onDisk() int64 {
	r.t.Helper()
	var sum int64
	err := filepath.WalkDir(filepath.Join(r.dir, "layers"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		switch {
		case filepath.Base(filepath.Dir(filepath.Dir(path))) == "data":
			sum += fi.Sys().(*syscall.Stat_t).Blocks * 512
		case d.Name() == "log" && filepath.Base(filepath.Dir(path)) == r.spec.Layers[len(r.spec.Layers)-1]:
			sum += fi.Size()
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return sum
}

// checkUse checks the account against the disk.
func (r *rig) checkUse(what string) {
	r.t.Helper()
	if u, disk := r.usage(), r.onDisk(); u.Used != disk {
		r.t.Errorf("%s: %d bytes are counted, %d are there", what, u.Used, disk)
	}
}

// fillUp writes until there is no room and returns how many bytes fitted.
func (r *rig) fillUp(name string, chunk int) int {
	r.t.Helper()
	f, err := os.Create(r.path(name))
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	total := 0
	for {
		n, err := unix.Write(int(f.Fd()), bytes.Repeat([]byte("q"), chunk))
		total += max(n, 0)
		if errors.Is(err, unix.ENOSPC) {
			return total
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

func TestQuotaWrites(t *testing.T) {
	const limit = 1 << 20
	r := quotaRig(t, limit)
	total := r.fillUp("f", 100_000)
	if total > limit || total < limit-3*4096 {
		t.Errorf("%d bytes fitted into %d", total, limit)
	}
	fi, err := os.Stat(r.path("f"))
	if err != nil || fi.Size() != int64(total) {
		t.Errorf("size %v %v, wrote %d", fi.Size(), err, total)
	}
	r.checkUse("full")
	n, err := r.c.Notices(context.Background(), r.spec.ID)
	if err != nil || n.Full == 0 {
		t.Errorf("notices %+v %v", n, err)
	}

	// What is there can be written over, and what is to go can be removed.
	f, err := os.OpenFile(r.path("f"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(bytes.Repeat([]byte("r"), 300_000), 1000); err != nil {
		t.Errorf("writing over: %v", err)
	}
	if _, err := f.WriteAt([]byte("x"), limit*2); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("writing past a hole: %v", err)
	}
	if err := os.Remove(r.path("d/x")); err != nil {
		t.Errorf("removing of the tree: %v", err)
	}
	if err := os.Remove(r.path("d")); err != nil {
		t.Errorf("rmdir: %v", err)
	}
	d, err := r.c.Dirty(context.Background(), r.spec.ID, []string{""})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.c.Mark(context.Background(), r.spec.ID, d.Seq, "c"); err != nil {
		t.Errorf("mark: %v", err)
	}
	if _, err := f.WriteAt([]byte("dirty again"), 0); err != nil {
		t.Errorf("writing over after a mark: %v", err)
	}
	// A copy needs room.
	if err := appendTo(r.path("big"), "more"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("copy up: %v", err)
	}
	if data, err := os.ReadFile(r.path("big")); err != nil || len(data) != 300_000 {
		t.Errorf("big has %d bytes, %v", len(data), err)
	}
	// A hole takes none, and gives back what was there.
	if err := f.Truncate(limit * 100); err != nil {
		t.Errorf("extending: %v", err)
	}
	if err := unix.Fallocate(int(f.Fd()), 0, limit*3, limit); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("allocating: %v", err)
	}
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, limit/2); err != nil {
		t.Errorf("punching: %v", err)
	}
	r.checkUse("punched")
	if err := appendTo(r.path("big"), "more"); err != nil {
		t.Errorf("copy up with room: %v", err)
	}
	if err := os.Truncate(r.path("f"), 0); err != nil {
		t.Error(err)
	}
	f.Close()
	r.checkUse("emptied")
	if err := os.Remove(r.path("f")); err != nil {
		t.Error(err)
	}
	if got := r.fillUp("g", 64<<10); got < limit/2 {
		t.Errorf("only %d bytes fitted after removing", got)
	}
	// Removing frees at once.
	for range 20 {
		if err := os.Remove(r.path("g")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(r.path("g"), make([]byte, limit/2), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}

// Allocated blocks take what is written to them.
func TestQuotaAllocatedAhead(t *testing.T) {
	const limit = 1 << 20
	r := quotaRig(t, limit)
	f, err := os.Create(r.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, limit/2); err != nil {
		t.Fatal(err)
	}
	r.fillUp("g", 64<<10)
	if _, err := f.WriteAt(make([]byte, limit/2), 0); err != nil {
		t.Errorf("into what was allocated: %v", err)
	}
	if _, err := f.WriteAt(make([]byte, 8192), limit/2); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("beyond it: %v", err)
	}
	r.checkUse("full")
}

func TestQuotaCopyFileRange(t *testing.T) {
	const limit = 256 << 10
	r := quotaRig(t, limit)
	src, err := os.Open(r.path("big")) // 300,000 bytes
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := os.Create(r.path("copy"))
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	total := 0
	for {
		n, err := unix.CopyFileRange(int(src.Fd()), nil, int(dst.Fd()), nil, 1<<20, 0)
		total += max(n, 0)
		if errors.Is(err, unix.ENOSPC) {
			break
		}
		if err != nil || n == 0 {
			t.Fatalf("copied %d, %v", total, err)
		}
	}
	if total > limit || total < limit-3*4096 {
		t.Errorf("%d bytes fitted", total)
	}
	r.checkUse("full")
}

// Names and attributes take room in the log.
func TestQuotaNames(t *testing.T) {
	const limit = 64 << 10
	r := quotaRig(t, limit)
	made := 0
	var err error
	for ; made < 10_000 && err == nil; made++ {
		err = os.Mkdir(r.path(fmt.Sprintf("d%d", made)), 0o755)
	}
	if !errors.Is(err, unix.ENOSPC) || made < 300 {
		t.Fatalf("made %d: %v", made, err)
	}
	if err := unix.Setxattr(r.path("small"), "user.x", make([]byte, 60_000), 0); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("setxattr: %v", err)
	}
	if err := os.Symlink("x", r.path("link")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("symlink: %v", err)
	}
	if u := r.usage(); u.Used > limit {
		t.Errorf("%d bytes are used", u.Used)
	}
	if err := os.Remove(r.path("d0")); err != nil {
		t.Errorf("rmdir: %v", err)
	}
	// A fork starts a new log.
	r.freeze()
	if err := os.Mkdir(r.path("again"), 0o755); err != nil {
		t.Errorf("mkdir after a freeze: %v", err)
	}
	r.checkUse("frozen")
}

// However many write at once, the disk never has more than the limit and what one
// request brings.
func TestQuotaExactUnderConcurrency(t *testing.T) {
	const limit, writers, chunk = 2 << 20, 12, 40_000
	r := quotaRig(t, limit)
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			full := 0
			for j := 0; full < 3; j++ {
				name := r.path(fmt.Sprintf("f%d", (i+j)%7)) // several write to the same file
				f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o644)
				if err == nil {
					_, err = unix.Pwrite(int(f.Fd()), make([]byte, chunk), int64((i+1)*j*12_345))
					f.Close()
				}
				switch {
				case errors.Is(err, unix.ENOSPC):
					full++
					if full == 2 {
						os.Remove(name)
					}
				case err != nil && !errors.Is(err, os.ErrNotExist):
					t.Errorf("writer %d: %v", i, err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for more := 0; ; {
			// What is removed from one file and written to another while the files
			// are looked at, one by one, counts twice: but not each time.
			got := r.onDisk()
			if more++; got <= limit+chunk+4096 {
				more = 0
			}
			if more == 5 {
				t.Errorf("%d bytes are on the disk", got)
			}
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	wg.Wait()
	close(done)
	<-watched
	before := r.usage()
	// The file system may have allocated blocks of its own for a file since.
	if own := r.onDisk() - before.Used; own < 0 || own > 7*4096 {
		t.Errorf("%d bytes are counted, %d more are there", before.Used, own)
	}
	r.unmount()
	r.mount()
	r.checkUse("remounted")
	after := r.usage()
	if grown := after.Used - before.Used; grown < 0 || grown > 7*4096 {
		t.Errorf("%+v after a remount, %+v before", after, before)
	}
	off, err := OfflineUsage(filepath.Join(r.dir, "layers"), r.spec.Layers)
	if err != nil || off != after.Used {
		t.Errorf("offline %d, %v; mounted %d", off, err, after.Used)
	}
}

// Pages written through a mapping arrive late: what does not fit is lost with an
// error to whoever syncs, and never takes more room than there is.
func TestQuotaMappings(t *testing.T) {
	const limit = 256 << 10
	r := quotaRig(t, limit)
	f, err := os.Create(r.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(4 * limit); err != nil {
		t.Fatal(err)
	}
	m, err := unix.Mmap(int(f.Fd()), 0, 4*limit, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	for i := range m {
		m[i] = 'm'
	}
	if err := unix.Msync(m, unix.MS_SYNC); err == nil {
		err = f.Sync()
		t.Errorf("msync of more than there is room for: %v", err)
	}
	unix.Munmap(m)
	if u := r.usage(); u.Used > limit {
		t.Errorf("%d bytes are used", u.Used)
	}
	r.checkUse("mapped")
}

// What was frozen counts while the workspace has it.
func TestQuotaFrozen(t *testing.T) {
	const limit = 1 << 20
	r := quotaRig(t, limit)
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(r.path(name), make([]byte, 300_000), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r.freeze()
	r.checkUse("frozen")
	before := r.usage().Used
	if err := appendTo(r.path("a"), "x"); err != nil { // copied up: counts once
		t.Fatal(err)
	}
	if grown := r.usage().Used - before; grown < 0 || grown > 8192 {
		t.Errorf("copying up took %d bytes", grown)
	}
	if err := os.Remove(r.path("b")); err != nil {
		t.Fatal(err)
	}
	// The kernel forgets the file a moment later.
	for deadline := time.Now().Add(30 * time.Second); before-r.usage().Used < 290_000; {
		if time.Now().After(deadline) {
			t.Fatalf("removing freed %d bytes", before-r.usage().Used)
		}
	}
	used := r.usage()
	r.unmount()
	r.mount()
	if got := r.usage(); got != used {
		t.Errorf("%+v after a remount, %+v before", got, used)
	}
	if got := r.fillUp("c", 50_000); got < 600_000 {
		t.Errorf("%d bytes fitted", got)
	}
}

func TestQuotaStatfs(t *testing.T) {
	const limit = 8 << 20
	r := quotaRig(t, limit)
	if err := os.WriteFile(r.path("f"), make([]byte, 3<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(r.spec.Dir, &s); err != nil {
		t.Fatal(err)
	}
	size := int64(s.Blocks) * s.Frsize
	used := int64(s.Blocks-s.Bfree) * s.Frsize
	if size < limit-2*s.Frsize || size > limit+2*s.Frsize {
		t.Errorf("size %d", size)
	}
	if u := r.usage().Used; used < u || used > u+s.Frsize {
		t.Errorf("used %d, counted %d", used, u)
	}
	if s.Bavail != s.Bfree && int64(s.Bavail)*s.Frsize > limit {
		t.Errorf("available %d", s.Bavail)
	}
	if s.Files == 0 || s.Ffree == 0 {
		t.Errorf("files %d, free %d", s.Files, s.Ffree)
	}
	// Without a quota it is the file system's word.
	r.unmount()
	r.spec.Quota = 0
	r.mount()
	var below unix.Statfs_t
	if err := errors.Join(unix.Statfs(r.spec.Dir, &s), unix.Statfs(filepath.Join(r.dir, "layers"), &below)); err != nil {
		t.Fatal(err)
	}
	if s.Blocks != below.Blocks || s.Files != below.Files || s.Frsize != below.Frsize {
		t.Errorf("%+v, below %+v", s, below)
	}
}
