package fusefs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestHold checks that whoever looks up the mount's .git waits while it is held,
// each time anew, and that nothing else does.
func TestHold(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	look := func() <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := os.ReadFile(r.path(".git"))
			done <- err
		}()
		return done
	}
	if err := <-look(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := r.c.Hold(t.Context(), "m", true); err != nil {
			t.Fatal(err)
		}
		done := look()
		if _, err := os.Lstat(r.path("f")); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(r.path("new")); err == nil {
			t.Error("there is a file new")
		}
		writeFiles(t, r.spec.Dir, map[string]string{"f": "y"})
		select {
		case err := <-done:
			t.Fatalf("nobody waited: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		if err := r.c.Hold(t.Context(), "m", false); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// TestHeldMount starts with the file held, and takes it away from those who wait.
func TestHeldMount(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	r.unmount()
	r.spec.Held = true
	r.mount()
	done := make(chan error, 1)
	go func() {
		_, err := os.Lstat(r.path(".git"))
		done <- err
	}()
	if _, err := os.ReadFile(r.path("f")); err != nil {
		t.Error(err)
	}
	select {
	case err := <-done:
		t.Fatalf("nobody waited: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	if err := r.c.Hold(t.Context(), "m", false); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestHoldUnderMount: who comes to a file that is mounted over the mount's .git
// waits as well, as git inside a container does.
func TestHoldUnderMount(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	other := filepath.Join(r.dir, "other")
	writeFiles(t, r.dir, map[string]string{"other": "gitdir: /elsewhere\n"})
	if err := unix.Mount(other, r.path(".git"), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(r.path(".git"), unix.MNT_DETACH)
	for range 3 {
		if err := r.c.Hold(t.Context(), "m", true); err != nil {
			t.Fatal(err)
		}
		done := make(chan string, 1)
		go func() {
			data, err := os.ReadFile(r.path(".git"))
			done <- fmt.Sprint(string(data), err)
		}()
		select {
		case got := <-done:
			t.Fatalf("nobody waited: %s", got)
		case <-time.After(20 * time.Millisecond):
		}
		if err := r.c.Hold(t.Context(), "m", false); err != nil {
			t.Fatal(err)
		}
		if got := <-done; got != "gitdir: /elsewhere\n<nil>" {
			t.Errorf("read %q", got)
		}
	}
}
