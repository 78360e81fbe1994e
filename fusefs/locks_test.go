package fusefs

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// lockWays are the ways to lock a file; each returns EAGAIN when it is locked.
var lockWays = map[string]func(fd int, typ int16) error{
	"flock": func(fd int, typ int16) error {
		how := map[int16]int{unix.F_RDLCK: unix.LOCK_SH, unix.F_WRLCK: unix.LOCK_EX, unix.F_UNLCK: unix.LOCK_UN}[typ]
		return unix.Flock(fd, how|unix.LOCK_NB)
	},
	"posix": func(fd int, typ int16) error {
		return unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: typ, Start: 2, Len: 5})
	},
	"ofd": func(fd int, typ int16) error {
		return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: typ, Start: 2, Len: 5})
	},
}

// lockHelper is a process that locks a file in a way and says so, until its
// input ends. Its arguments are the way, the type and the file.
func lockHelper(args []string) int {
	f, err := os.OpenFile(args[2], os.O_RDWR, 0)
	if err == nil {
		err = lockWays[args[0]](int(f.Fd()), map[string]int16{"read": unix.F_RDLCK, "write": unix.F_WRLCK}[args[1]])
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("locked")
	bufio.NewReader(os.Stdin).ReadByte()
	return 0
}

// Locks hold between processes that see the workspace in mount namespaces of
// their own, as the host and a container do.
func TestLocksAcrossNamespaces(t *testing.T) {
	exe, err := os.Executable()
	must(t, err)
	eachKind(t, map[string]string{"f": "0123456789"}, func(t *testing.T, r *rig, dir string) {
		path := filepath.Join(dir, "f")
		for way, lock := range lockWays {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			must(t, err)
			release := holdLock(t, exe, way, "write", path)
			if err := lock(int(f.Fd()), unix.F_WRLCK); !errors.Is(err, unix.EAGAIN) {
				t.Errorf("%s: locked by another process, and: %v", way, err)
			}
			if way != "flock" {
				l := &unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: 100}
				must(t, unix.FcntlFlock(f.Fd(), unix.F_GETLK, l))
				if l.Type != unix.F_WRLCK || l.Start != 2 || l.Len != 5 {
					t.Errorf("%s: the lock shows as %+v", way, l)
				}
			}
			// A copy-up does not let go of it.
			must(t, writeAtFile(f, []byte("x"), 0))
			if err := lock(int(f.Fd()), unix.F_RDLCK); !errors.Is(err, unix.EAGAIN) {
				t.Errorf("%s: after a write: %v", way, err)
			}
			release()
			must(t, lock(int(f.Fd()), unix.F_WRLCK))
			must(t, lock(int(f.Fd()), unix.F_UNLCK))
			release = holdLock(t, exe, way, "read", path)
			must(t, lock(int(f.Fd()), unix.F_RDLCK))
			if err := lock(int(f.Fd()), unix.F_WRLCK); !errors.Is(err, unix.EAGAIN) {
				t.Errorf("%s: shared, and locked for writing: %v", way, err)
			}
			release()
			f.Close()
		}
	})
}

// holdLock has a process in a mount namespace of its own lock path.
func holdLock(t testing.TB, exe, way, typ, path string) (release func()) {
	t.Helper()
	cmd := exec.Command(exe, "lock", way, typ, path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "locked\n" {
		t.Fatalf("%s %s: %q %v", way, typ, line, err)
	}
	return func() {
		in.Close()
		must(t, cmd.Wait())
	}
}
