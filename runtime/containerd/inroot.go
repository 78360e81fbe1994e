package containerd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/runtime"
)

// maxUserFile bounds what is read of a container's passwd and group.
const maxUserFile = 4 << 20

func procFd(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// openInside opens a path as the container sees it. Links are resolved inside its
// root, whatever they say, and never through /proc's magic ones.
func (c *container) openInside(name string, flags uint64) (*os.File, error) {
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", c.pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/", Err: err}
	}
	defer unix.Close(root)
	for range 8 { // renames inside may ask for another try
		fd, err := unix.Openat2(root, name, &unix.OpenHow{
			Flags:   flags | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
		})
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: name, Err: err}
		}
		return os.NewFile(uintptr(fd), name), nil
	}
	return nil, &os.PathError{Op: "open", Path: name, Err: unix.EAGAIN}
}

// statInside looks at a path as the container sees it, without opening it.
func (c *container) statInside(name string) (*unix.Stat_t, error) {
	f, err := c.openInside(name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	return &st, nil
}

// lines yields the lines of a regular file inside.
func (c *container) lines(name string, each func(line string)) error {
	f, err := c.openInside(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", name)
	}
	scan := bufio.NewScanner(io.LimitReader(f, maxUserFile))
	for scan.Scan() {
		each(scan.Text())
	}
	return scan.Err()
}

// lookUpUser resolves the image's user ("name", "uid", "user:group") once.
func (c *container) lookUpUser() error {
	id := &c.identity
	id.Do(func() { id.User, id.home, id.err = c.parseUser(c.user) })
	return id.err
}

// userOf resolves a user whom an exec asks for, "" the image's.
func (c *container) userOf(text string) (specs.User, string, error) {
	if text != "" {
		return c.parseUser(text)
	}
	err := c.lookUpUser()
	return c.identity.User, c.identity.home, err
}

func (c *container) parseUser(text string) (user specs.User, home string, err error) {
	name, group, hasGroup := strings.Cut(text, ":")
	home = "/"
	uid, convErr := strconv.ParseUint(name, 10, 31)
	found := convErr == nil
	user.UID = uint32(uid)
	login := name
	_ = c.lines("/etc/passwd", func(line string) { // absent: numbers alone work
		f := strings.Split(line, ":")
		if len(f) < 6 || (f[0] != name && (convErr != nil || f[2] != name)) {
			return
		}
		fileUID, uidErr := strconv.ParseUint(f[2], 10, 31)
		fileGID, gidErr := strconv.ParseUint(f[3], 10, 31)
		if uidErr == nil && gidErr == nil {
			user.UID, user.GID, login, found = uint32(fileUID), uint32(fileGID), f[0], true
			if f[5] != "" {
				home = f[5]
			}
		}
	})
	if !found {
		return user, "", fmt.Errorf("user %q is not in its /etc/passwd", name)
	}
	gid, gidErr := strconv.ParseUint(group, 10, 31)
	found = !hasGroup || gidErr == nil
	if hasGroup && gidErr == nil {
		user.GID = uint32(gid)
	}
	_ = c.lines("/etc/group", func(line string) {
		f := strings.Split(line, ":")
		if len(f) < 4 {
			return
		}
		n, err := strconv.ParseUint(f[2], 10, 31)
		if err != nil {
			return
		}
		if hasGroup {
			if f[0] == group {
				user.GID, found = uint32(n), true
			}
			return // an explicit group is the only one
		}
		for member := range strings.SplitSeq(f[3], ",") {
			if member == login && uint32(n) != user.GID {
				user.AdditionalGids = append(user.AdditionalGids, uint32(n))
			}
		}
	})
	if !found {
		return user, "", fmt.Errorf("group %q is not in its /etc/group", group)
	}
	// The primary group too: a process may drop to another and must not lose it.
	user.AdditionalGids = append([]uint32{user.GID}, user.AdditionalGids...)
	return user, home, nil
}

// capabilitiesOf takes away from an ordinary user what root has.
func capabilitiesOf(user specs.User, root *specs.LinuxCapabilities) *specs.LinuxCapabilities {
	if user.UID == 0 || root == nil {
		return root
	}
	return &specs.LinuxCapabilities{Bounding: root.Bounding}
}

// explain turns the runtime's failure to start a command into what a caller can
// act on. The texts of runtimes vary; when one matches nothing, we look ourselves.
func (c *container) explain(err error, config *specs.Process) error {
	if errdefs.IsUnavailable(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("start command: %w", err)
	}
	if !c.fd.alive() {
		return &runtime.Error{Kind: runtime.ErrNotFound, Message: "container " + c.id + " is not running", Err: err}
	}
	name, text := config.Args[0], err.Error()
	fail := func(kind error, format string, a ...any) error {
		return &runtime.Error{Kind: kind, Message: fmt.Sprintf(format, a...), Err: err}
	}
	switch st, statErr := c.statInside(config.Cwd); {
	case strings.Contains(text, "chdir to cwd"), strings.Contains(text, "getcwd"), !path.IsAbs(config.Cwd),
		statErr != nil && errors.Is(statErr, os.ErrNotExist):
		if statErr == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return fail(runtime.ErrBadCwd, "working directory %s: not a directory", config.Cwd)
		}
		if statErr == nil {
			return fail(runtime.ErrBadCwd, "working directory %s: permission denied", config.Cwd)
		}
		return fail(runtime.ErrBadCwd, "working directory %s: no such directory", config.Cwd)
	case statErr == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fail(runtime.ErrBadCwd, "working directory %s: not a directory", config.Cwd)
	}
	switch {
	case strings.Contains(text, "executable file not found"):
		return fail(runtime.ErrCommandNotFound, "%s: command not found", name)
	case strings.Contains(text, "exec format error"):
		return fail(runtime.ErrNotExecutable, "%s: cannot execute: exec format error", name)
	case strings.Contains(text, "is a directory"):
		return fail(runtime.ErrNotExecutable, "%s: is a directory", name)
	case strings.Contains(text, "permission denied"):
		return fail(runtime.ErrNotExecutable, "%s: permission denied", name)
	case strings.Contains(text, "argument list too long"):
		return fail(runtime.ErrNotExecutable, "%s: argument list too long", name)
	}
	return c.explainByLooking(name, config, err)
}

func (c *container) explainByLooking(name string, config *specs.Process, err error) error {
	fail := func(kind error, text string) error {
		return &runtime.Error{Kind: kind, Message: name + ": " + text, Err: err}
	}
	if strings.Contains(name, "/") {
		if !path.IsAbs(name) {
			name = path.Join(config.Cwd, name)
		}
		st, statErr := c.statInside(name)
		switch {
		case errors.Is(statErr, os.ErrNotExist), errors.Is(statErr, syscall.ENOTDIR):
			return fail(runtime.ErrCommandNotFound, "no such file or directory")
		case statErr == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
			return fail(runtime.ErrNotExecutable, "is a directory")
		case statErr == nil && st.Mode&0o111 == 0:
			return fail(runtime.ErrNotExecutable, "permission denied")
		case statErr == nil && strings.Contains(err.Error(), "no such file"):
			// The file is there: its interpreter is not. Shells say 126 or 127.
			return fail(runtime.ErrNotExecutable, "its interpreter does not exist")
		}
	}
	return fmt.Errorf("start command: %s", oneLine(err.Error()))
}
