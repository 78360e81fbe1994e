package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/runtime"
)

// pidfd is a stable handle of a process: it never means another one, however
// pids are reused.
type pidfd struct{ f *os.File }

func openPidfd(pid int) (*pidfd, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	return &pidfd{f: os.NewFile(uintptr(fd), "pidfd")}, nil
}

func (p *pidfd) close() { _ = p.f.Close() }

// alive reports whether the process has not ended.
func (p *pidfd) alive() bool {
	ended := true
	raw, err := p.f.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) { ended = readable(int(fd)) })
	return !ended
}

// wait returns true when the process has ended, false when the handle was closed
// before. It costs no thread.
func (p *pidfd) wait() bool {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return false
	}
	return raw.Read(func(fd uintptr) bool { return readable(int(fd)) }) == nil
}

// waitFor waits for the end at most for a time.
func (p *pidfd) waitFor(limit time.Duration) {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { awaitPidfd(context.Background(), int(fd), limit) })
}

func (p *pidfd) signal(sig syscall.Signal) error {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	var sigErr error
	if err := raw.Control(func(fd uintptr) { sigErr = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); err != nil {
		return err
	}
	if errors.Is(sigErr, unix.ESRCH) {
		return nil
	}
	return sigErr
}

// signalGroup signals the whole process group that the process leads, as a
// terminal does with its foreground job: a shell which waits for a child would
// otherwise sit on the signal until the child ends by itself. The runtime makes
// every exec the leader of a session.
func (p *pidfd) signalGroup(pid int, sig syscall.Signal) error {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	var sigErr error
	if err := raw.Control(func(fd uintptr) {
		sigErr = unix.PidfdSendSignal(int(fd), sig, nil, pidfdSignalProcessGroup)
		if errors.Is(sigErr, unix.EINVAL) { // before Linux 6.9
			if sigErr = unix.PidfdSendSignal(int(fd), 0, nil, 0); sigErr == nil {
				sigErr = unix.Kill(-pid, sig)
			}
		}
	}); err != nil {
		return err
	}
	if errors.Is(sigErr, unix.ESRCH) {
		return p.signal(sig) // it leads no group
	}
	return sigErr
}

// pidfdSignalProcessGroup is PIDFD_SIGNAL_PROCESS_GROUP of linux/pidfd.h.
const pidfdSignalProcessGroup = 1 << 2

// status asks the kernel how a process ended that somebody else has reaped
// (Linux 6.15). ok is false when it does not know, or not yet.
func (p *pidfd) status() (ws syscall.WaitStatus, ok bool) {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return 0, false
	}
	_ = raw.Control(func(fd uintptr) { ws, ok = exitStatus(int(fd)) })
	return ws, ok
}

func exitStatus(fd int) (syscall.WaitStatus, bool) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	if err := unix.IoctlPidfdInfo(fd, &info); err != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return 0, false
	}
	return syscall.WaitStatus(info.Exit_code), true
}

func readable(fd int) bool {
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n > 0
	}
}

// awaitPidfd waits for the end of a process, at most for a time.
func awaitPidfd(ctx context.Context, fd int, limit time.Duration) bool {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline) && ctx.Err() == nil; {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, 100); err == nil && n > 0 {
			return true
		}
	}
	return false
}

// exitFrom makes an Exit of a code as shells and shims report it; ws is the
// kernel's word when known. Without it a code above 128 is taken for a signal:
// that is what it nearly always is.
func exitFrom(code int, ws syscall.WaitStatus, known bool) runtime.Exit {
	exit := runtime.Exit{Code: code}
	switch {
	case known && ws.Signaled():
		exit.Code = 128 + int(ws.Signal())
		exit.Signal = signalName(ws.Signal())
	case known:
		exit.Code = ws.ExitStatus()
	case code > 128 && code <= 128+64:
		exit.Signal = signalName(syscall.Signal(code - 128))
	}
	return exit
}

func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); len(name) > 3 {
		return name[3:]
	}
	return fmt.Sprintf("%d", int(sig))
}
