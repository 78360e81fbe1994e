package fusefs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const uringSwitch = "/sys/module/fuse/parameters/enable_uring"

// usesUring reports whether the file server has rings.
func (r *rig) usesUring() bool { return r.descriptors("anon_inode:[io_uring]") > 0 }

// descriptors counts the open files of the file server, those called kind or,
// with "", all.
func (r *rig) descriptors(kind string) int {
	dir := fmt.Sprintf("/proc/%d/fd", r.c.Pid())
	fds, err := os.ReadDir(dir)
	must(r.t, err)
	n := 0
	for _, fd := range fds {
		if link, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && (kind == "" || link == kind) {
			n++
		}
	}
	return n
}

// status returns a number from what the kernel says about the file server.
func (r *rig) status(field string) (n int) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.c.Pid()))
	must(r.t, err)
	_, rest, _ := strings.Cut(string(data), "\n"+field+":")
	fmt.Sscan(rest, &n)
	return n
}

func (r *rig) maps() int {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", r.c.Pid()))
	must(r.t, err)
	return bytes.Count(data, []byte("\n"))
}

// stopServer stops the file server, so that whoever asks it waits.
func (r *rig) stopServer() {
	r.t.Helper()
	must(r.t, syscall.Kill(r.c.Pid(), syscall.SIGSTOP))
	for state := byte(0); state != 'T'; {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.c.Pid()))
		must(r.t, err)
		state = stat[bytes.LastIndexByte(stat, ')')+2]
	}
}

// Every kind of waiting ends when the server is killed: for a request that
// the server has, for one that is queued, of one process or of many.
func TestKilledWithManyWaiting(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x", "d/f": "y"})
	f, err := os.OpenFile(r.path("new"), os.O_CREATE|os.O_RDWR, 0o644)
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(1<<20))
	ops := map[string]func(i int) error{
		"read":    func(i int) error { _, err := f.ReadAt(make([]byte, 10), int64(i)*8192); return err },
		"write":   func(i int) error { _, err := f.WriteAt([]byte("x"), int64(i)*8192); return err },
		"stat":    func(i int) error { _, err := os.Lstat(r.path(fmt.Sprint("absent", i))); return err },
		"create":  func(i int) error { return os.WriteFile(r.path(fmt.Sprint("made", i)), nil, 0o644) },
		"readdir": func(int) error { _, err := os.ReadDir(r.path("d")); return err },
		"fsync":   func(int) error { return f.Sync() },
	}
	var wg sync.WaitGroup
	var busy, stop atomic.Bool
	wg.Go(func() { // so that the server is stopped with requests in hand
		for i := 0; !stop.Load(); i++ {
			if _, err := os.Lstat(r.path(fmt.Sprint("other", i))); err != nil && !errors.Is(err, os.ErrNotExist) {
				return
			}
			busy.Store(true)
		}
	})
	for !busy.Load() {
		time.Sleep(time.Millisecond)
	}
	r.stopServer()
	for what, op := range ops {
		for i := range 12 {
			wg.Go(func() {
				// What the kernel had answered itself is fine.
				if err := op(i); err == nil && (what == "stat" || what == "create") {
					t.Errorf("%s works without a server", what)
				}
			})
		}
	}
	time.Sleep(50 * time.Millisecond) // lets them get stuck; without it the test only shows less
	must(t, syscall.Kill(r.c.Pid(), syscall.SIGKILL))
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	for what, ch := range map[string]<-chan struct{}{"the client": r.c.Done(), "a process": ended} {
		select {
		case <-ch:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s hangs", what)
		}
	}
	stop.Store(true)
	r.start()
	r.mount()
	wantFile(t, r.path("d/f"), "y")
}

// Mounts come and go without leaving anything in the server, and do not need
// threads of their own.
func TestManyMounts(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	ctx := context.Background()
	const n = 20
	round := func() (threads int) {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				spec := r.spec
				spec.ID, spec.Dir, spec.Layers = fmt.Sprint("m", i), fmt.Sprint(r.spec.Dir, i), []string{fmt.Sprint("l-m", i)}
				if err := r.c.Mount(ctx, spec); err != nil {
					t.Error(err)
					return
				}
				wantFile(t, filepath.Join(spec.Dir, "f"), "x")
				must(t, os.WriteFile(filepath.Join(spec.Dir, "g"), bytes.Repeat([]byte("y"), 1<<20), 0o644))
			})
		}
		wg.Wait()
		threads = r.status("Threads")
		for i := range n {
			if err := r.c.Unmount(ctx, fmt.Sprint("m", i)); err != nil {
				t.Error(err)
			}
		}
		return threads
	}
	round()
	fds, maps := r.descriptors(""), r.maps()
	var threads int
	for range 3 {
		threads = round()
	}
	if now := r.descriptors(""); now > fds+2 {
		t.Errorf("%d descriptors, then %d", fds, now)
	}
	if r.usesUring() {
		if now := r.maps(); now > maps+10 {
			t.Errorf("%d mappings, then %d", maps, now)
		}
		if threads > n+10 {
			t.Errorf("%d threads for %d mounts", threads, n)
		}
	}
}

// A server that cannot have what the daemon thinks it can says so, and the
// mount is made without.
func TestUringRefused(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	if _, err := os.Stat(uringSwitch); err != nil || !overUring() {
		if r.usesUring() {
			t.Error("rings although there are none, or none are wanted")
		}
		return
	}
	if !r.usesUring() || !r.c.uring.Load() {
		t.Fatal("no rings")
	}
	r.unmount()
	must(t, os.WriteFile(uringSwitch, []byte("N"), 0))
	defer func() { must(t, os.WriteFile(uringSwitch, []byte("Y"), 0)) }()
	r.mount()
	wantFile(t, r.path("f"), "x")
	must(t, os.WriteFile(r.path("g"), []byte("y"), 0o644))
	if r.c.uring.Load() {
		t.Error("it tries again for each mount")
	}
}

// A file that does not come from git does not keep others waiting that ask
// from the same processor.
func TestSlowObjectKeepsNobodyWaiting(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x", "e/g": "y", "d/f": "z"})
	wantFile(t, r.path("e/g"), "y")
	must(t, os.WriteFile(r.path("new"), []byte("new"), 0o644))
	for _, pid := range r.gits() {
		must(t, syscall.Kill(pid, syscall.SIGSTOP))
		defer syscall.Kill(pid, syscall.SIGCONT)
	}
	cpus, err := possibleCPUs()
	must(t, err)
	waiting := make(chan error, 2)
	onCPU(0, func() {
		_, err := os.ReadFile(r.path("f"))
		waiting <- err
	})
	onCPU(cpus-1, func() {
		_, err := os.ReadDir(r.path("d"))
		waiting <- err
	})
	time.Sleep(20 * time.Millisecond) // lets them get there; without it the test only shows less
	others := make(chan error, cpus)
	for cpu := range cpus {
		onCPU(cpu, func() {
			name := r.path(fmt.Sprint("other", cpu))
			err := os.WriteFile(name, []byte("x"), 0o644)
			others <- errors.Join(err, os.Rename(name, r.path("new")), os.Remove(r.path("new")), os.WriteFile(r.path("new"), nil, 0o644))
		})
	}
	for range cpus {
		select {
		case <-others: // they are in each other's way: errors are fine
		case err := <-waiting:
			t.Fatalf("not slow at all: %v", err)
		case <-time.After(10 * time.Second):
			t.Error("a slow object keeps others waiting")
			return
		}
	}
	for _, pid := range r.gits() {
		must(t, syscall.Kill(pid, syscall.SIGCONT))
	}
	for range 2 {
		must(t, <-waiting)
	}
}

// onCPU runs fn on a thread of its own that stays on a processor, if that may
// be used.
func onCPU(cpu int, fn func()) {
	go func() {
		runtime.LockOSThread()
		var set unix.CPUSet
		set.Set(cpu)
		_ = unix.SchedSetaffinity(0, &set)
		fn()
	}()
}

// gits returns the processes of git that the file server has started.
func (r *rig) gits() []int {
	var pids []int
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", r.c.Pid()))
	must(r.t, err)
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for _, field := range strings.Fields(string(data)) {
			pid, err := strconv.Atoi(field)
			must(r.t, err)
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		r.t.Fatal("the file server has no process of git")
	}
	return pids
}

// TestOverDevice runs all tests again, over the classic transport.
func TestOverDevice(t *testing.T) {
	needFuse(t)
	if _, err := os.Stat(uringSwitch); err != nil || os.Getenv("GITENV_TEST_URING") != "" {
		return // the tests are over one transport only
	}
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe, "-test.short", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), "GITENV_TEST_URING=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("over /dev/fuse: %v\n%s", err, out)
	}
}

func TestCountCPUs(t *testing.T) {
	for list, want := range map[string]int{"0": 1, "0-1": 2, "0-3,8-11": 8, "0,2": 2, "": 0, "3-1": 0, "x": 0} {
		n, err := countCPUs(list)
		if n != want || (err != nil) != (want == 0) {
			t.Errorf("%q: %d, %v", list, n, err)
		}
	}
}
