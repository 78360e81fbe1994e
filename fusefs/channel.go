package fusefs

import (
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// channel is the descriptor through which a workspace talks to the kernel of its
// own accord. It is one of its own, so that none that somebody else got
// meanwhile is ever taken for it.
type channel struct {
	mu sync.RWMutex
	fd int // guarded by mu; -1 for none
}

// open takes a copy of the descriptor that serves the mount.
func (c *channel) open(fd int) error {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fd = own
	return nil
}

func (c *channel) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd >= 0 {
		unix.Close(c.fd)
	}
	c.fd = -1
}

// use calls fn with the descriptor, or returns EBADF when there is none any
// more.
func (c *channel) use(fn func(fd int) error) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.fd < 0 {
		return unix.EBADF
	}
	return fn(c.fd)
}

// ioctl does a request with an argument, and returns the answer.
func (c *channel) ioctl(request uintptr, arg unsafe.Pointer) (answer int32, err error) {
	err = c.use(func(fd int) error {
		r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
		if errno != 0 {
			return errno
		}
		answer = int32(r)
		return nil
	})
	return answer, err
}

// openChannel takes a copy of the descriptor that serves the mount.
func (w *workspace) openChannel(fd int) {
	if err := w.dev.open(fd); err != nil {
		w.log.Printf("%s: nothing can be left to the kernel: %v", w.spec.ID, err)
	}
}
