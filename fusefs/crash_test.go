package fusefs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// When the file server is killed the mount goes away, whoever waits gets an
// error, and a new server shows everything that was written.
func TestServerKilled(t *testing.T) {
	r := newRig(t, map[string]string{"d/f": "x", "big": "b"})
	must(t, os.WriteFile(r.path("new"), []byte("new"), 0o644))
	must(t, os.Rename(r.path("d"), r.path("e")))
	must(t, os.WriteFile(r.path("e/f"), []byte("changed"), 0o755))
	before := snapshot(t, r.spec.Dir)
	stopped := make(chan error, 1)
	f, err := os.OpenFile(r.path("new"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	suspend(t, r.c.Pid())
	go func() {
		_, err := f.WriteAt([]byte("x"), 100)
		stopped <- err
	}()
	asked := make(chan error, 1)
	go func() {
		_, err := r.c.Dirty(context.Background(), "m", []string{""}) // the server never reads it
		asked <- err
	}()
	time.Sleep(50 * time.Millisecond) // lets the write get stuck; without it the test only shows less
	must(t, syscall.Kill(r.c.Pid(), syscall.SIGKILL))
	select {
	case <-r.c.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the client does not notice")
	}
	select {
	case err := <-stopped:
		if err == nil {
			t.Error("a write to a dead server works")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("a process hangs on the dead mount")
	}
	if err := <-asked; !errors.Is(err, ErrServerDead) {
		t.Errorf("call under way: %v", err)
	}
	if m, err := findMount(r.spec.Dir); m != nil || err != nil {
		t.Fatalf("the mount is still there: %v", err)
	}
	if _, err := r.c.Dirty(context.Background(), "m", []string{""}); !errors.Is(err, ErrServerDead) {
		t.Errorf("call on a dead server: %v", err)
	}
	r.start()
	r.mount()
	same(t, "after the kill", snapshot(t, r.spec.Dir), before, exact)
}

// suspend stops a process with all its threads.
func suspend(t *testing.T, pid int) {
	t.Helper()
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	for state := byte(0); state != 'T'; {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		must(t, err)
		state = stat[bytes.LastIndexByte(stat, ')')+2]
	}
}

// A mount that nobody serves, as after a crash of everything, is no obstacle.
func TestStaleMount(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	r.unmount()
	dev, err := mountFuse(r.spec.Dir, false)
	must(t, err)
	dev.Close()
	if _, err := os.Stat(r.path("f")); err == nil {
		t.Fatal("a stale mount answers")
	}
	r.mount()
	wantFile(t, r.path("f"), "x")
}

func TestMountErrors(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	ctx := context.Background()
	other := r.spec
	other.ID = "other"
	if err := r.c.Mount(ctx, other); !errors.Is(err, ErrMounted) {
		t.Errorf("second mount at a directory: %v", err)
	}
	other.Dir = filepath.Join(r.dir, "other")
	other.Tree = "0123456789012345678901234567890123456789"
	if err := r.c.Mount(ctx, other); err == nil {
		t.Error("mounting a tree that does not exist works")
	}
	if m, err := findMount(other.Dir); m != nil || err != nil {
		t.Errorf("a failed mount is left: %v", err)
	}
	if _, err := r.c.Dirty(ctx, "other", []string{""}); !errors.Is(err, ErrNotMounted) {
		t.Errorf("unknown mount: %v", err)
	}
}

// A full disk fails the operation and nothing else.
func TestNoSpace(t *testing.T) {
	needFuse(t)
	small := t.TempDir()
	must(t, unix.Mount("tmpfs", small, "tmpfs", 0, "size=2m"))
	t.Cleanup(func() {
		if err := unix.Unmount(small, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r := newRig(t, map[string]string{"f": "x", "d/g": "y"})
	r.unmount()
	must(t, os.RemoveAll(filepath.Join(r.dir, "layers")))
	must(t, os.Mkdir(filepath.Join(small, "layers"), 0o700))
	must(t, os.Symlink(filepath.Join(small, "layers"), filepath.Join(r.dir, "layers")))
	r.mount()
	full := errors.New("not full yet")
	chunk := bytes.Repeat([]byte("z"), 60000)
	for i := 0; i < 100; i++ {
		if err := os.WriteFile(r.path(fmt.Sprintf("fill%d", i)), chunk, 0o644); err != nil {
			full = err
			break
		}
	}
	if !errors.Is(full, unix.ENOSPC) {
		t.Fatalf("filling: %v", full)
	}
	var err error
	for i := 0; i < 100000 && err == nil; i++ {
		err = os.Mkdir(r.path(fmt.Sprintf("d/%0200d", i)), 0o755)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the log: %v", err)
	}
	before := snapshot(t, r.spec.Dir)
	r.unmount()
	r.mount()
	same(t, "remount when full", snapshot(t, r.spec.Dir), before, exact)
	must(t, os.Remove(r.path("fill0")))
}

// When the daemon is killed its file server takes the mounts away and leaves.
func TestDaemonKilled(t *testing.T) {
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
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(r.path("new"))
	must(t, err)
	defer f.Close()
	must(t, daemon.Process.Kill())
	daemon.Wait()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		m, err := findMount(r.spec.Dir)
		must(t, err)
		if m == nil && !running(pid) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("mount %v, server running: %v", m, running(pid))
		}
	}
	if _, err := f.Write([]byte("x")); err == nil {
		t.Error("a write to a mount that is gone works")
	}
	r.mount()
	wantFile(t, r.path("new"), "")
}

// running is false for a zombie too: who has to reap it may take his time.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && stat[bytes.LastIndexByte(stat, ')')+2] != 'Z'
}

// fakeDaemon mounts what it is told, says the process id of its file server
// and waits to be killed.
func fakeDaemon(args []string) int {
	var spec MountSpec
	exe, err := os.Executable()
	if err == nil {
		err = json.Unmarshal([]byte(args[1]), &spec)
	}
	var c *Client
	if err == nil {
		c, err = StartServer(context.Background(), ServerOptions{
			Exe: exe, GitDir: filepath.Join(args[0], "repo/.git"),
			BlobDir: filepath.Join(args[0], "blobs"), LayerDir: filepath.Join(args[0], "layers"),
			Uring: overUring(), Watchdog: 500 * time.Millisecond, Notices: filepath.Join(args[0], "notices"),
		})
	}
	if err == nil {
		err = c.Mount(context.Background(), spec)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	pid := 0
	for ; pid == 0; time.Sleep(time.Millisecond) {
		c.dog.mu.Lock()
		pid = c.dog.pid
		c.dog.mu.Unlock()
	}
	fmt.Println(c.Pid(), pid)
	select {}
}
