package fusefs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const shortWatch = 500 * time.Millisecond

// watchedRig is a rig whose file server has a watchdog.
func watchedRig(t *testing.T, files map[string]string) *rig {
	t.Helper()
	r := newRig(t, files)
	must(t, r.c.Close())
	r.watchdog = shortWatch
	r.start()
	r.mount()
	return r
}

// watchdogPid waits until a watchdog runs that is not the one named.
func (r *rig) watchdogPid(not int) int {
	r.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		r.c.dog.mu.Lock()
		pid := r.c.dog.pid
		r.c.dog.mu.Unlock()
		if pid != 0 && pid != not {
			return pid
		}
		if time.Now().After(deadline) {
			r.t.Fatal("no watchdog")
		}
	}
}

// freed waits for the end of something that must not hang.
func freed[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(30 * time.Second):
		t.Fatalf("%s hangs", what)
		panic("unreachable")
	}
}

// A file server that does not answer is ended, and everybody who waits for it
// gets an error. ps works all the while.
func TestWatchdogEndsStuckServer(t *testing.T) {
	r := watchedRig(t, map[string]string{"f": "x"})
	r.watchdogPid(0)
	must(t, os.WriteFile(r.path("written"), []byte("w"), 0o644))
	suspend(t, r.c.Pid())
	users := make(chan error, 8)
	for i := range cap(users) {
		go func() { users <- os.WriteFile(r.path(fmt.Sprint("new", i)), nil, 0o644) }()
	}
	ps := make(chan error, 1)
	go func() { ps <- exec.Command("ps", "auxww").Run() }()
	if err := freed(t, "ps", ps); err != nil {
		t.Error(err)
	}
	freed(t, "the client", r.c.Done())
	for range cap(users) {
		if err := freed(t, "a user of the mount", users); err == nil {
			t.Error("a stopped file server answers")
		}
	}
	if m, err := findMount(r.spec.Dir); m != nil || err != nil {
		t.Errorf("the mount is still there: %v", err)
	}
	if said, err := os.ReadFile(filepath.Join(r.dir, "notices")); err != nil || !strings.Contains(string(said), "stuck") {
		t.Errorf("said %q, %v", said, err)
	}
	r.start()
	r.mount()
	wantFile(t, r.path("written"), "w")
}

// It acts without the daemon too, and when that is stopped.
func TestWatchdogWithoutDaemon(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		t.Run(sig.String(), func(t *testing.T) {
			r := newRig(t, map[string]string{"f": "x"})
			r.unmount()
			exe, err := os.Executable()
			must(t, err)
			spec, err := json.Marshal(r.spec)
			must(t, err)
			daemon := exec.Command(exe, "daemon", r.dir, string(spec))
			out, err := daemon.StdoutPipe()
			must(t, err)
			must(t, daemon.Start())
			var server, watchdog int
			if _, err := fmt.Fscan(out, &server, &watchdog); err != nil {
				t.Fatal(err)
			}
			suspend(t, server)
			used := make(chan error, 1)
			go func() { used <- os.WriteFile(r.path("new"), nil, 0o644) }()
			if sig == syscall.SIGSTOP {
				suspend(t, daemon.Process.Pid)
			} else {
				must(t, daemon.Process.Kill())
			}
			if err := freed(t, "a user of the mount", used); err == nil {
				t.Error("a stopped file server answers")
			}
			if sig == syscall.SIGSTOP {
				must(t, daemon.Process.Kill())
			}
			daemon.Wait()
			for deadline := time.Now().Add(20 * time.Second); running(server) || running(watchdog); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("running: file server %v, watchdog %v", running(server), running(watchdog))
				}
			}
			if m, err := findMount(r.spec.Dir); err != nil || m != nil && sig == syscall.SIGKILL {
				t.Errorf("mount %v, %v", m, err)
			}
			r.mount()
			wantFile(t, r.path("f"), "x")
		})
	}
}

// A file server that waits for a slow git with every place it has is busy, not
// stuck.
func TestWatchdogSparesBusyServer(t *testing.T) {
	files := map[string]string{}
	for i := range 200 {
		files[fmt.Sprintf("d%d/f", i)] = fmt.Sprint(i)
	}
	r := watchedRig(t, files)
	r.watchdogPid(0)
	pid := r.c.Pid()
	gits := children(t, pid)
	if len(gits) == 0 {
		t.Fatal("the file server runs no git")
	}
	for _, git := range gits {
		suspend(t, git)
	}
	readers := make(chan error, len(files))
	for name, content := range files {
		go func() {
			data, err := os.ReadFile(r.path(name))
			if err == nil && string(data) != content {
				err = fmt.Errorf("%s is %q", name, data)
			}
			readers <- err
		}()
	}
	time.Sleep(6 * shortWatch) // gives it the time to be wrong; less only shows less
	for _, git := range append(gits, children(t, pid)...) {
		must(t, syscall.Kill(git, syscall.SIGCONT))
	}
	for range files {
		if err := freed(t, "a reader", readers); err != nil {
			t.Error(err)
		}
	}
	if r.c.Pid() != pid || !running(pid) {
		t.Error("the file server was ended")
	}
}

func children(t *testing.T, pid int) []int {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	must(t, err)
	var all []int
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		must(t, err)
		for _, f := range strings.Fields(string(data)) {
			n, err := strconv.Atoi(f)
			must(t, err)
			all = append(all, n)
		}
	}
	return all
}

// A watchdog that died is replaced.
func TestWatchdogIsReplaced(t *testing.T) {
	r := watchedRig(t, map[string]string{"f": "x"})
	first := r.watchdogPid(0)
	must(t, syscall.Kill(first, syscall.SIGKILL))
	second := r.watchdogPid(first)
	suspend(t, r.c.Pid())
	used := make(chan error, 1)
	go func() { used <- os.WriteFile(r.path("new"), nil, 0o644) }()
	if err := freed(t, "a user of the mount", used); err == nil {
		t.Error("a stopped file server answers")
	}
	freed(t, "the client", r.c.Done())
	if running(second) {
		t.Error("the watchdog is left")
	}
	r.start()
	r.mount()
}

// Neither the file server nor a process that it starts has anything of a mount
// open, mapped, or for its directory: it would wait for itself.
func TestServerStaysOutOfMounts(t *testing.T) {
	r := watchedRig(t, map[string]string{"f": "x", "big": strings.Repeat("b", 1<<20), "d/e": "y"})
	wantFile(t, r.path("d/e"), "y")
	wantFile(t, r.path("big"), strings.Repeat("b", 1<<20))
	must(t, os.WriteFile(r.path("f"), []byte("new"), 0o644))
	must(t, os.WriteFile(r.path("new"), []byte("new"), 0o755))
	r.dirtyFiles()
	pids := append(children(t, r.c.Pid()), r.c.Pid(), r.watchdogPid(0))
	if len(pids) < 3 {
		t.Fatal("the file server runs no git")
	}
	for _, pid := range pids {
		proc := fmt.Sprintf("/proc/%d", pid)
		fds, err := filepath.Glob(proc + "/fd/*")
		must(t, err)
		for _, fd := range append(fds, proc+"/exe", proc+"/root", proc+"/cwd") {
			if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to+"/", r.spec.Dir+"/") {
				t.Errorf("%s is %s", fd, to)
			}
		}
		maps, err := os.ReadFile(proc + "/maps")
		must(t, err)
		if strings.Contains(string(maps), r.spec.Dir+"/") {
			t.Errorf("process %d maps something of the mount:\n%s", pid, maps)
		}
	}
}
