package initproc

import (
	"errors"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// children reaps everything that ends, and tells who started a command how it
// ended. A command may end before its start has been noted.
type children struct {
	mu       sync.Mutex
	starting int                               // commands that are being started
	commands map[int]chan<- syscall.WaitStatus // by pid
	early    map[int]syscall.WaitStatus        // ended while something was being started
}

// begin announces a start; it must be followed by started or failed.
func (c *children) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.starting++
}

func (c *children) failed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
}

// started notes a command; how it ends is sent to the channel, which has room.
func (c *children) started(pid, pidfd int, end chan<- syscall.WaitStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.settle()
	// A status under this pid is another process's unless this one is gone.
	if ws, ok := c.early[pid]; ok && errors.Is(unix.PidfdSendSignal(pidfd, 0, nil, 0), unix.ESRCH) {
		end <- ws
		return
	}
	if c.commands == nil {
		c.commands = make(map[int]chan<- syscall.WaitStatus)
	}
	c.commands[pid] = end
}

// settle ends a start; mu is held.
func (c *children) settle() {
	if c.starting--; c.starting == 0 {
		c.early = nil
	}
}

// reap collects every child that has ended; signals coalesce, so one SIGCHLD may
// stand for many.
func (c *children) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if end, ok := c.commands[pid]; ok {
			delete(c.commands, pid)
			end <- ws
			continue
		}
		if c.starting > 0 {
			if c.early == nil {
				c.early = make(map[int]syscall.WaitStatus)
			}
			c.early[pid] = ws
		}
	}
}
