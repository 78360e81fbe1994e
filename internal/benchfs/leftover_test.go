package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// abandoned makes a directory as a run that was killed leaves it.
func abandoned(t *testing.T, parent string) string {
	t.Helper()
	dir, lock, err := makeWork(parent)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "file"), nil, 0o644), lock.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

func TestRemoveLeftovers(t *testing.T) {
	parent := t.TempDir()
	live, lock, err := makeWork(parent)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	left := abandoned(t, parent)

	// A process of the killed run that still runs, as its environment tells.
	cmd := exec.Command("sleep", "1000")
	cmd.Env = []string{"HOME=" + left + "/home", "PATH=" + os.Getenv("PATH")}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	// What is not ours to remove: without a lock, open to others, behind a
	// link, with a link for a lock, of another name.
	bare := filepath.Join(parent, "benchfs-bare")
	open := abandoned(t, parent)
	elsewhere := abandoned(t, t.TempDir())
	link := filepath.Join(parent, "benchfs-link")
	linked := filepath.Join(parent, "benchfs-linked")
	other := filepath.Join(parent, "other")
	err = errors.Join(os.Mkdir(bare, 0o700), os.Chmod(open, 0o777), os.Symlink(elsewhere, link), os.Mkdir(other, 0o700),
		os.WriteFile(filepath.Join(other, lockName), nil, 0o600), os.Mkdir(linked, 0o700),
		os.Symlink(filepath.Join(elsewhere, lockName), filepath.Join(linked, lockName)))
	if err != nil {
		t.Fatal(err)
	}

	if err := new(bench).removeLeftovers(t.Context(), parent); err != nil {
		t.Fatal(err)
	}
	if exists(left) {
		t.Errorf("%s is still there", left)
	}
	var exit *exec.ExitError
	if err := <-ended; !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("process of the killed run: %v", err)
	}
	for _, dir := range []string{live, bare, open, elsewhere, link, linked, other} {
		if !exists(dir) {
			t.Errorf("%s was removed", dir)
		}
	}
	if f := takeLock(live); f != nil {
		t.Errorf("the lock of %s could be taken", live)
	}
}

// The lock must not outlive the run in a process that it started.
func TestLockIsNotInherited(t *testing.T) {
	dir, lock, err := makeWork(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	lock.Close()
	f := takeLock(dir)
	if f == nil {
		t.Fatal("a child holds the lock")
	}
	f.Close()
}

func TestWatchParent(t *testing.T) {
	parent := make(chan int, 1)
	parent <- 5
	now := func() int { p := <-parent; parent <- p; return p }
	gone := make(chan bool)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go watchParent(ctx, 5, now, time.Millisecond, func() { close(gone) })
	time.Sleep(20 * time.Millisecond)
	select {
	case <-gone:
		t.Fatal("the parent is there")
	default:
	}
	<-parent
	parent <- 1
	<-gone
}

func TestSignalsEndTheRun(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		ctx, stop := endings(t.Context())
		if err := syscall.Kill(os.Getpid(), sig); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		if got := context.Cause(ctx).Error(); got != sig.String() {
			t.Errorf("cause %q, want %q", got, sig)
		}
		stop()
	}
}

func TestMountsBelow(t *testing.T) {
	all, err := mountsBelow("/proc")
	if err != nil || len(all) == 0 || all[0] != "/proc" {
		t.Errorf("mounts below /proc: %q, %v", all, err)
	}
	if none, err := mountsBelow(t.TempDir()); err != nil || len(none) > 0 {
		t.Errorf("mounts below a new directory: %q, %v", none, err)
	}
}
