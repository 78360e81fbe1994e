package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/git-env/git-env/runtime"
	"github.com/git-env/git-env/runtime/network"
)

// container is a running container. There is one object per container and
// Backend; it lives until the container ends or the Backend is closed.
type container struct {
	b       *Backend
	id      string
	pid     int
	network *network.Network // nil on the host's
	fd      *pidfd
	shim    *pidfd // of its supervisor; nil when there was none any more
	cgroup  cgroup
	limits  limitFiles
	process specs.Process // what execs start from
	cwd     string
	user    string

	isolation runtime.Isolation // "" when whoever started it did not say

	rendezvous rendezvous // with the first process

	done  chan runtime.Exit // yields one, then closed
	ended chan struct{}     // closed when the container has ended

	// freezing is held shared while an exec is being started, exclusively while
	// the container stands still: the runtime refuses to enter a frozen one.
	freezing sync.RWMutex
	paused   bool // by Pause; guarded by freezing

	mu    sync.Mutex
	execs map[string]*process // running ones; guarded by mu

	identity struct {
		sync.Once
		specs.User
		home string
		err  error
	}
}

var _ runtime.Container = (*container)(nil)

// newContainer takes charge of a running container's first process.
func newContainer(b *Backend, id string, pid int, spec *specs.Spec, labels map[string]string, net *network.Network) (_ *container, err error) {
	defer func() {
		if err != nil && net != nil {
			_ = net.Close()
		}
	}()
	fd, err := openPidfd(pid)
	if err != nil {
		return nil, err
	}
	group, err := cgroupOf(pid)
	if err != nil {
		fd.close()
		return nil, err
	}
	c := &container{
		b: b, id: id, pid: pid, network: net, fd: fd, shim: shimOf(pid), cgroup: group, limits: limitFilesOf(pid),
		process: *spec.Process, cwd: labels[labelCwd], user: labels[labelUser],
		isolation: runtime.Isolation(labels[labelIsolation]),
		done:      make(chan runtime.Exit, 1), ended: make(chan struct{}),
		execs: make(map[string]*process),
	}
	b.running.Store(id, c)
	go c.watch()
	return c, nil
}

// watch waits for the end without asking the runtime, so that it does not matter
// whether containerd lives.
func (c *container) watch() {
	ended := c.fd.wait()
	if c.network != nil {
		_ = c.network.Close()
	}
	c.b.running.CompareAndDelete(c.id, c)
	defer close(c.done)
	if !ended {
		return // the Backend was closed
	}
	exit := runtime.Exit{Code: 137, Signal: "KILL"}
	for range 50 { // the status is there once the shim has reaped it
		if ws, ok := c.fd.status(); ok {
			exit = exitFrom(0, ws, true)
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	close(c.ended)
	c.done <- exit
	c.closeHandles()
}

// release gives up the container without ending it.
func (c *container) release() {
	c.mu.Lock()
	execs := make([]*process, 0, len(c.execs))
	for _, p := range c.execs {
		execs = append(execs, p)
	}
	c.mu.Unlock()
	for _, p := range execs {
		p.abandon()
	}
	c.closeHandles()
}

func (c *container) closeHandles() {
	c.rendezvous.close()
	c.fd.close()
	if c.shim != nil {
		c.shim.close()
	}
}

// shimOf returns a handle of the shim that supervises a container's first process,
// nil when it has ended: the process has another parent then.
func shimOf(pid int) *pidfd {
	parent := parentOf(pid)
	fd, err := openPidfd(parent)
	if err != nil {
		return nil
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", parent))
	if err != nil || !strings.HasPrefix(string(name), "containerd-shim") || parentOf(pid) != parent {
		fd.close()
		return nil
	}
	return fd
}

// supervised reports whether its shim lives. When that has died, containerd is
// about to kill the container.
func (c *container) supervised() bool { return c.shim != nil && c.shim.alive() }

// ID implements runtime.Container.
func (c *container) ID() string { return c.id }

// Pid implements runtime.Container.
func (c *container) Pid() int { return c.pid }

// Isolation implements runtime.Container.
func (c *container) Isolation() runtime.Isolation { return c.isolation }

// Done implements runtime.Container.
func (c *container) Done() <-chan runtime.Exit { return c.done }

// Running implements runtime.Container.
func (c *container) Running(context.Context) bool {
	select {
	case <-c.ended:
		return false
	default:
		return c.fd.alive()
	}
}

// Pause implements runtime.Container.
func (c *container) Pause(ctx context.Context) error {
	c.freezing.Lock()
	defer c.freezing.Unlock()
	if c.paused {
		return nil
	}
	if err := c.cgroup.freeze(ctx); err != nil {
		return fmt.Errorf("pause container %s: %w", c.id, err)
	}
	c.paused = true
	return nil
}

// Resume implements runtime.Container.
func (c *container) Resume(context.Context) error {
	c.freezing.Lock()
	defer c.freezing.Unlock()
	if err := c.cgroup.thaw(); err != nil {
		return fmt.Errorf("resume container %s: %w", c.id, err)
	}
	c.paused = false
	return nil
}

// frozen runs do while every process of the container stands still.
func (c *container) frozen(ctx context.Context, do func() error) (err error) {
	c.freezing.Lock()
	defer c.freezing.Unlock()
	if c.paused {
		return do()
	}
	if err := c.cgroup.freeze(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.cgroup.thaw()) }()
	return do()
}

func (c *container) addExec(p *process) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.execs[p.id]; ok {
		return fmt.Errorf("exec %s is running already", p.id)
	}
	c.execs[p.id] = p
	return nil
}

func (c *container) dropExec(p *process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.execs[p.id] == p {
		delete(c.execs, p.id)
	}
}
