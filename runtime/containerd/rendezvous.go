package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/runtime/initproc"
)

// errNoInit says that a container's first process does not run commands, and that
// nothing was tried.
var errNoInit = errors.New("the first process does not run commands")

// rendezvousPatience is how long the first process may take to come up.
const rendezvousPatience = 10 * time.Second

// rendezvous is our copy of the socket that a container's first process keeps for
// us; see package initproc. It is taken when it is first needed, and again by
// whoever takes charge of a running container.
type rendezvous struct {
	mu   sync.Mutex
	fd   *os.File
	none error // why there is none; said once
}

// get returns the socket, or errNoInit.
func (r *rendezvous) get(ctx context.Context, c *container) (*os.File, error) {
	if !c.supervised() {
		return nil, errNoInit // containerd will tell
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fd != nil {
		return r.fd, nil
	}
	if r.none == nil {
		fd, err := c.takeRendezvous(ctx)
		if err == nil {
			r.fd = fd
			return fd, nil
		}
		if ctx.Err() != nil || !c.fd.alive() {
			return nil, fmt.Errorf("reach the first process of container %s: %w", c.id, err)
		}
		r.none = err
		c.b.warn("container %s: execs go through containerd: %v", c.id, err)
	}
	return nil, errNoInit
}

func (r *rendezvous) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fd != nil {
		_ = r.fd.Close()
		r.fd = nil
	}
	r.none = errors.New("the container is not supervised any more")
}

// takeRendezvous waits for the first process to be ready.
func (c *container) takeRendezvous(ctx context.Context) (*os.File, error) {
	if args := c.process.Args; len(args) != 3 || args[2] != initproc.Serve {
		return nil, errors.New("its first process was not asked to run commands")
	}
	for start := time.Now(); ; {
		fd, err := c.fd.descriptor(initproc.RendezvousFd)
		if err == nil {
			return checkRendezvous(fd)
		}
		if !errors.Is(err, unix.EBADF) || time.Since(start) > rendezvousPatience {
			return nil, fmt.Errorf("take its socket: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
}

// descriptor copies a descriptor of the process.
func (p *pidfd) descriptor(number int) (fd int, err error) {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return -1, err
	}
	if ctlErr := raw.Control(func(own uintptr) { fd, err = unix.PidfdGetfd(int(own), number, 0) }); ctlErr != nil {
		return -1, ctlErr
	}
	return fd, err
}

func checkRendezvous(fd int) (*os.File, error) {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	kind := 0
	if err == nil {
		kind, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	}
	if err != nil || domain != unix.AF_UNIX || kind != unix.SOCK_SEQPACKET {
		_ = unix.Close(fd)
		return nil, errors.New("what its first process keeps is no such socket")
	}
	return os.NewFile(uintptr(fd), "rendezvous"), nil
}

// initArgs is the command line of first processes. They are asked to run commands
// where we may take their socket and nobody inside may.
func (b *Backend) initArgs() []string {
	args := []string{initPath, "init"}
	if b.opts.NoInitExec {
		return args
	}
	if err := mayServe(); err != nil {
		b.warn("execs go through containerd: %v", err)
		return args
	}
	return append(args, initproc.Serve)
}

// mayServe says why first processes cannot run commands here.
func mayServe() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		return fmt.Errorf("read the own capabilities: %w", err)
	}
	if caps[0].Effective&(1<<unix.CAP_SYS_PTRACE) == 0 {
		return errors.New("CAP_SYS_PTRACE is missing: the first process of a container cannot be reached")
	}
	// With 1 a process becomes traceable again when a child of it changes its user.
	if data, err := os.ReadFile("/proc/sys/fs/suid_dumpable"); err != nil || strings.TrimSpace(string(data)) == "1" {
		return errors.New("fs.suid_dumpable is 1: the first process of a container could be traced from inside")
	}
	return nil
}
