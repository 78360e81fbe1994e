package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// leaks reports what the script's site still holds once its daemons were told to
// leave. Processes have until grace is over to end by themselves.
func (s *site) leaks(grace time.Duration) []string {
	var out []string
	for _, p := range s.await(grace) {
		out = append(out, "process "+p.String())
	}
	for _, m := range s.mounts() {
		out = append(out, "mount "+m)
	}
	// A container is gone when its bundle is; an environment that is only
	// suspended has none.
	bundles, _ := filepath.Glob(filepath.Join(s.dir, "run", "git-env", "containerd", "state", "io.containerd.runtime.v2.task", "*", "*"))
	for _, b := range bundles {
		out = append(out, "container "+filepath.Base(b))
	}
	return out
}

// await waits for the site's processes to end and returns those that did not.
func (s *site) await(grace time.Duration) []process {
	deadline := time.Now().Add(grace)
	for {
		left := s.processes()
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		waitExit(left[0].pid, time.Until(deadline))
	}
}

// waitExit returns when the process has ended or d is over.
func waitExit(pid int, d time.Duration) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has ended
	}
	defer unix.Close(fd)
	end := time.Now().Add(d)
	for {
		left := max(time.Until(end), 0)
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// process is one that belongs to a site.
type process struct {
	pid  int
	args []string
}

func (p process) String() string { return fmt.Sprintf("%d %q", p.pid, p.args) }

// role names the parts of git env that scripts kill and ask for.
func (p process) role() string {
	if len(p.args) == 0 {
		return ""
	}
	switch base := filepath.Base(p.args[0]); {
	case base == "containerd":
		return "containerd"
	case strings.HasPrefix(base, "containerd-shim"):
		return "shim"
	case base == "git-env" && len(p.args) > 2 && p.args[1] == "daemon" && p.args[2] == "serve":
		return "daemon"
	case base == "git-env" && len(p.args) > 1 && p.args[1] == "fusefs":
		return "fusefs"
	case base == "git-env" && len(p.args) > 1 && p.args[1] == "watchdog":
		return "watchdog"
	}
	return ""
}

// processes lists what runs on the site's behalf: a process that has the site in
// its environment or arguments, or that lives in a mount namespace made of it.
func (s *site) processes() []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	self, _ := os.Readlink("/proc/self/ns/mnt")
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		proc := filepath.Join("/proc", e.Name())
		cmdline, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
		if len(cmdline) == 0 {
			continue // a kernel thread or a zombie
		}
		environ, _ := os.ReadFile(filepath.Join(proc, "environ"))
		ours := s.named(environ) || s.named(cmdline)
		if ns, err := os.Readlink(filepath.Join(proc, "ns", "mnt")); !ours && err == nil && ns != self {
			mounts, _ := os.ReadFile(filepath.Join(proc, "mountinfo"))
			ours = s.named(mounts)
		}
		if ours {
			args := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
			out = append(out, process{pid, args})
		}
	}
	return out
}

// named tells whether text mentions the site's directory.
func (s *site) named(text []byte) bool { return bytes.Contains(text, []byte(s.dir+"/")) }

// mounts lists the mount points below the site and $WORK, deepest first.
func (s *site) mounts() []string {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		point := unescape(f[4])
		if strings.HasPrefix(point, s.dir+"/") || strings.HasPrefix(point, s.work+"/") {
			out = append(out, point)
		}
	}
	slices.Reverse(out)
	return out
}

// unescape undoes mountinfo's \040 and the like.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// clean removes by force what is left of a site, and the site.
func (s *site) clean() error {
	for _, p := range s.processes() {
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
		waitExit(p.pid, 2*time.Second)
	}
	for range 10 { // mounts may lie on top of one another
		left := s.mounts()
		if len(left) == 0 {
			return os.RemoveAll(s.dir)
		}
		for _, m := range left {
			// FORCE aborts a FUSE connection that nobody serves any more.
			if err := unix.Unmount(m, unix.MNT_FORCE); err != nil {
				_ = unix.Unmount(m, unix.MNT_DETACH)
			}
		}
	}
	return fmt.Errorf("still mounted: %q", s.mounts())
}
