package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/runtime/containerd"
)

type doctorCmd struct {
	JSON bool `name:"json" help:"Print one JSON object a line."`
}

// Help is the long text of --help.
func (doctorCmd) Help() string {
	return `Exits with 20 if something is missing that environments cannot do without, and names
the package that has it.`
}

// check is one line of doctor --json.
type check struct {
	// Name is short and stable: git, fuse, containerd, runc, root, overlayfs,
	// cgroup, state, disk, mounts.
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Needed says that environments cannot do without.
	Needed bool   `json:"needed"`
	Detail string `json:"detail,omitempty"`
	// Hint is the remedy when not OK.
	Hint string `json:"hint,omitempty"`
}

// Run checks the host, and the repository if there is one here.
func (c *doctorCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	checks := a.checks(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	missing := 0
	for _, ch := range checks {
		if ch.Needed && !ch.OK {
			missing++
		}
		err := error(nil)
		if c.JSON {
			err = a.jsonLine(ch)
		} else {
			_, err = fmt.Fprintf(a.stdout, "%-8s %-24s %s\n", verdict(ch), ch.Name, ch.Detail)
			if err == nil && !ch.OK && ch.Hint != "" {
				_, err = fmt.Fprintf(a.stdout, "%-8s %-24s   %s\n", "", "", ch.Hint)
			}
		}
		if err != nil {
			return err
		}
	}
	if missing > 0 {
		return environment.Errorf(environment.ExitCapability, "this machine lacks %s that environments need", count(missing, "thing"))
	}
	return nil
}

func verdict(c check) string {
	switch {
	case c.OK:
		return "ok"
	case c.Needed:
		return "missing"
	}
	return "warning"
}

func (a *app) checks(ctx context.Context) []check {
	inRepo := a.open(ctx) == nil
	socket := ""
	if inRepo {
		socket, _ = a.store.Git.Line(ctx, "config", "env.containerd")
	}
	checks := []check{checkGit(ctx), checkFuse()}
	for _, f := range containerd.Check(ctx, socket) {
		checks = append(checks, check{Name: f.Name, OK: f.OK, Needed: true, Detail: f.Detail, Hint: f.Hint})
	}
	checks = append(checks, checkDisk("disk", environment.DataHome()))
	if inRepo {
		checks = append(checks, a.checkState(), checkDisk("disk of the repository", a.repo.CommonDir), a.checkMounts())
	}
	return checks
}

func packages(debian, fedora, alpine, arch string) string {
	return fmt.Sprintf("Debian/Ubuntu: apt install %s; Fedora: dnf install %s; Alpine: apk add %s; Arch: pacman -S %s",
		debian, fedora, alpine, arch)
}

func checkGit(ctx context.Context) check {
	c := check{Name: "git", Needed: true, Hint: packages("git", "git", "git", "git")}
	out, err := exec.CommandContext(ctx, "git", "version").Output()
	if err != nil {
		c.Detail = "not found in PATH"
		return c
	}
	c.Detail = strings.TrimPrefix(strings.TrimSpace(string(out)), "git version ")
	c.OK = gitAtLeast(c.Detail, 2, 36)
	if c.OK {
		c.Hint = ""
	} else {
		c.Detail += ", 2.36 or newer is needed"
	}
	return c
}

// gitAtLeast reads versions such as "2.39.5" or "2.45.1.windows.1".
func gitAtLeast(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	ma, err1 := strconv.Atoi(parts[0])
	mi, err2 := strconv.Atoi(parts[1])
	return err1 == nil && err2 == nil && (ma > major || ma == major && mi >= minor)
}

func checkFuse() check {
	c := check{Name: "fuse", Needed: true, OK: true, Detail: "/dev/fuse can be opened"}
	list, err := os.ReadFile("/proc/filesystems")
	if err == nil && !bytes.Contains(list, []byte("\tfuse\n")) {
		return check{Name: "fuse", Needed: true, Detail: "the running kernel has no FUSE",
			Hint: "modprobe fuse; the module comes with the kernel's packages"}
	}
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		_ = f.Close()
		return c
	}
	c.OK, c.Detail = false, err.Error()
	switch {
	case errors.Is(err, os.ErrNotExist):
		c.Hint = "modprobe fuse; " + packages("fuse3", "fuse3", "fuse3", "fuse3") + "; in a container: --device /dev/fuse"
	case errors.Is(err, os.ErrPermission):
		c.Hint = "run as root; in a container: --device /dev/fuse --cap-add SYS_ADMIN"
	default:
		c.Hint = "modprobe fuse"
	}
	return c
}

func (a *app) checkState() check {
	c := check{Name: "state", Needed: true, OK: true, Detail: a.store.Dir}
	dir := a.store.Dir
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		dir = a.repo.CommonDir
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		c.OK, c.Detail = false, fmt.Sprintf("%s cannot be written: %v", dir, err)
		c.Hint = "run git env as the owner of the repository"
	}
	return c
}

// checkDisk looks at the filesystem that dir is or will be on.
func checkDisk(name, dir string) check {
	const little = 1 << 30
	var st unix.Statfs_t
	for unix.Statfs(dir, &st) != nil && dir != "/" {
		i := strings.LastIndexByte(strings.TrimRight(dir, "/"), '/')
		dir = dir[:max(i, 0)]
		if dir == "" {
			dir = "/"
		}
	}
	free := st.Bavail * uint64(st.Bsize)
	c := check{Name: name, OK: free >= little, Detail: fmt.Sprintf("%.1f GiB free below %s", float64(free)/little, dir)}
	if !c.OK {
		c.Hint = "make room, or set XDG_DATA_HOME to a larger disk"
	}
	return c
}

// checkMounts looks for workspaces whose file server is gone.
func (a *app) checkMounts() check {
	c := check{Name: "mounts", OK: true, Detail: "none is stale"}
	names, err := a.store.Names()
	if err != nil {
		return check{Name: "mounts", Detail: err.Error()}
	}
	var stale []string
	for _, n := range names {
		if st, err := a.store.Load(n); err == nil && st.Workspace != "" && isStale(st.Workspace) {
			stale = append(stale, st.Workspace)
		}
	}
	if len(stale) > 0 {
		c.OK, c.Detail = false, "stale: "+strings.Join(stale, ", ")
		c.Hint = "the next command that uses the environment recovers it"
	}
	return c
}

// isStale asks a directory whether anybody serves it; one that does not answer
// at all is stale too.
func isStale(dir string) bool {
	const patience = 2 * time.Second
	answer := make(chan error, 1)
	go func() {
		var st unix.Stat_t
		answer <- unix.Stat(dir, &st)
	}()
	select {
	case err := <-answer:
		return errors.Is(err, syscall.ENOTCONN) || errors.Is(err, syscall.ECONNABORTED)
	case <-time.After(patience):
		return true
	}
}
