package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLeaksAreSeen shows that the harness cannot miss what a script leaves: it
// leaves one of each kind on purpose.
func TestLeaksAreSeen(t *testing.T) {
	if os.Getuid() != 0 {
		if required() {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
	dir, err := os.MkdirTemp("/tmp", "ge-")
	if err != nil {
		t.Fatal(err)
	}
	s := &site{dir: dir, work: t.TempDir()}
	defer func() {
		if err := s.clean(); err != nil {
			t.Error(err)
		}
	}()
	if l := s.leaks(0); len(l) > 0 {
		t.Fatalf("leaks before anything was started: %q", l)
	}

	byEnv := exec.Command("sleep", "1000")
	byEnv.Env = []string{"HOME=" + filepath.Join(dir, "home")}
	point := filepath.Join(dir, "run", "a b")
	bundle := filepath.Join(dir, "run", "git-env", "containerd", "state", "io.containerd.runtime.v2.task", "ns", "box")
	for _, d := range []string{point, bundle} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("none", point, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	// It sees the mount in a namespace of its own and nothing else of the site.
	byMount := exec.Command("unshare", "-m", "sleep", "1000")
	byMount.Env = []string{"PATH=" + os.Getenv("PATH")}
	for _, cmd := range []*exec.Cmd{byEnv, byMount} {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait()
		defer cmd.Process.Kill()
	}

	deadline := time.Now().Add(10 * time.Second)
	for len(s.processes()) < 2 && time.Now().Before(deadline) {
		// Until unshare has made its namespace there is nothing to see.
		waitExit(byEnv.Process.Pid, 10*time.Millisecond)
	}
	all := strings.Join(s.leaks(0), "\n")
	for _, want := range []string{"process ", "mount " + point, "container box"} {
		if !strings.Contains(all, want) {
			t.Errorf("leaks do not name %q:\n%s", want, all)
		}
	}
	if n := len(s.processes()); n != 2 {
		t.Errorf("%d processes seen, want 2:\n%s", n, all)
	}
	if err := s.clean(); err != nil {
		t.Error(err)
	}
	if m := s.mounts(); len(m) > 0 {
		t.Errorf("still mounted: %q", m)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there", dir)
	}
}

func TestRoles(t *testing.T) {
	for want, args := range map[string][]string{
		"daemon":     {"git-env", "daemon", "serve", "/r/.git"},
		"fusefs":     {"/usr/local/bin/git-env", "fusefs"},
		"watchdog":   {"/usr/local/bin/git-env", "watchdog", "--after", "30s"},
		"containerd": {"/usr/bin/containerd", "--config", "x"},
		"shim":       {"/usr/bin/containerd-shim-runc-v2", "-id", "x"},
		"":           {"git-env", "daemon", "status"},
	} {
		if got := (process{args: args}).role(); got != want {
			t.Errorf("role of %q = %q, want %q", args, got, want)
		}
	}
}

func TestUnescape(t *testing.T) {
	if got := unescape(`/a\040b\134c`); got != `/a b\c` {
		t.Error(got)
	}
}

func TestUnknownCapabilityIsRefused(t *testing.T) {
	if _, err := condition("fsue"); err == nil {
		t.Error("a misspelt condition passed")
	}
	if names := []string{"root", "fuse", "containerd"}; slices.ContainsFunc(names, func(n string) bool {
		_, err := lacks(n)
		return err != nil
	}) {
		t.Error("a known capability was refused")
	}
}
