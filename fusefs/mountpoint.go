package fusefs

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// fsType is the type our mounts have in the mount table. The kernel shows it
// after "fuse.".
const fsType = "fuse.git-env"

// maxIO is the largest read or write the kernel sends.
const maxIO = 1 << 20

// mountFuse opens /dev/fuse and mounts it at dir. Nothing can be done in dir
// before the other side of the descriptor answers.
func mountFuse(dir string, readOnly bool) (*os.File, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/fuse", Err: err}
	}
	opts := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,default_permissions,allow_other,max_read=%d",
		fd, os.Geteuid(), os.Getegid(), maxIO)
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if readOnly {
		flags |= unix.MS_RDONLY
	}
	if err := unix.Mount("git-env", dir, fsType, flags, opts); err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "mount", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// AbortStale detaches whatever of ours is mounted at dir and aborts its
// connection, so that everybody who waits for an answer gets an error. It
// does nothing when there is no such mount, and never touches another one.
func AbortStale(dir string) error {
	const most = 16 // mounts on top of each other
	for range most {
		m, err := findMount(dir)
		if err != nil || m == nil {
			return err
		}
		if err := abort(dir); err != nil {
			return err
		}
	}
	return &os.PathError{Op: "umount", Path: dir, Err: unix.EBUSY}
}

// Mounted says whether a mount of ours is at dir, by the mount table: nobody who
// holds a mount may ask the mount itself.
func Mounted(dir string) (bool, error) {
	m, err := findMount(dir)
	return m != nil, err
}

func abort(dir string) error {
	err := unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "umount", Path: dir, Err: err}
	}
	return nil
}

// unmountFuse takes the mount at dir away. Who still uses it loses it after a
// moment: their connection is aborted.
func unmountFuse(dir string) error {
	for deadline := time.Now().Add(100 * time.Millisecond); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
		if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return abort(dir)
		}
	}
}

// mountEntry is a line of the mount table.
type mountEntry struct {
	minor string // of the device, which is the number of the connection
	dir   string
}

// findMount returns the topmost mount of ours at dir, or nil. It reads the
// mount table, since a stat of a dead mount fails and of a hung one hangs.
func findMount(dir string) (*mountEntry, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var found *mountEntry
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 7 || unescape(fields[4]) != dir {
			continue
		}
		found = nil
		for i := 6; i+1 < len(fields); i++ {
			if fields[i] == "-" && fields[i+1] == fsType {
				_, minor, _ := strings.Cut(fields[2], ":")
				found = &mountEntry{minor: minor, dir: dir}
			}
		}
	}
	return found, lines.Err()
}

// unescape undoes the kernel's octal escapes of white space and backslashes.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | s[i+3] - '0')
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
