package fusefs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Mount mounts a workspace. When it returns nil the mount is in use-able
// state. A dead mount of ours in the way is removed; the directory is made
// when it does not exist.
func (c *Client) Mount(ctx context.Context, spec MountSpec) error {
	if !filepath.IsAbs(spec.Dir) {
		return fmt.Errorf("mount point %s is not absolute", spec.Dir)
	}
	spec.Dir = filepath.Clean(spec.Dir)
	m := &mounted{dir: spec.Dir}
	if err := c.claim(spec.ID, m); err != nil {
		return err
	}
	err := c.mount(ctx, spec, m)
	if err != nil {
		c.mu.Lock()
		delete(c.mounts, spec.ID)
		c.mu.Unlock()
		return fmt.Errorf("mounting %s: %w", spec.Dir, err)
	}
	return nil
}

// claim enters a mount that is about to be made.
func (c *Client) claim(id string, m *mounted) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending == nil {
		return ErrServerDead
	}
	for other, o := range c.mounts {
		if other == id || o.dir == m.dir {
			return fmt.Errorf("%w: %s at %s", ErrMounted, other, o.dir)
		}
	}
	c.mounts[id] = m
	return nil
}

func (c *Client) mount(ctx context.Context, spec MountSpec, m *mounted) error {
	uring := c.uring.Load()
	err := c.tryMount(ctx, spec, m, uring)
	if !uring || !errors.Is(err, errNoUring) {
		return err
	}
	c.uring.Store(false)
	c.log.Printf("%v: mounting over the device from now on", err)
	return c.tryMount(ctx, spec, m, false)
}

func (c *Client) tryMount(ctx context.Context, spec MountSpec, m *mounted, uring bool) error {
	if err := AbortStale(spec.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(spec.Dir, 0o755); err != nil {
		return err
	}
	dev, err := mountFuse(spec.Dir, spec.ReadOnly)
	if err != nil {
		return err
	}
	c.mu.Lock()
	m.dev = dev
	dead := c.pending == nil
	c.mu.Unlock()
	if dead {
		m.abort() // receive did not see it
		return ErrServerDead
	}
	resp, err := c.call(ctx, &request{Op: opMount, Mount: spec.ID, Spec: spec, Uring: uring}, dev)
	if err != nil {
		m.abort()
		if ctx.Err() != nil {
			// The server may yet finish: what it has then is a dead mount.
			go c.call(context.WithoutCancel(ctx), &request{Op: opUnmount, Mount: spec.ID}, nil)
		}
		return err
	}
	c.mu.Lock()
	m.repairs = resp.Repairs
	c.mu.Unlock()
	c.guard(spec.ID, m)
	return nil
}

// guard opens what ends the connection of a fresh mount, whoever has it, and
// gives it to the watchdog.
func (c *Client) guard(id string, m *mounted) {
	entry, err := findMount(m.dir)
	if err != nil || entry == nil {
		c.log.Printf("%s: not in the mount table: %v", m.dir, err)
		return
	}
	control, err := openConnection(entry.minor)
	if err != nil {
		c.log.Printf("%s: nobody watches it: %v", m.dir, err)
		return
	}
	c.mu.Lock()
	m.control = control
	c.mu.Unlock()
	c.dog.add(order{ID: id, Dir: m.dir, Minor: entry.minor}, control)
}

// Repairs tells what was found damaged, and not told before, when the workspace
// was mounted.
func (c *Client) Repairs(id string) []Repair {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.mounts[id]; m != nil {
		return m.repairs
	}
	return nil
}

// Unmount takes a workspace away, also from those who still use it.
func (c *Client) Unmount(ctx context.Context, id string) error {
	c.mu.Lock()
	m := c.mounts[id]
	dead, there := c.pending == nil, m != nil && m.dev != nil
	c.mu.Unlock()
	switch {
	case dead:
		return ErrServerDead
	case !there:
		return fmt.Errorf("%w: %s", ErrNotMounted, id)
	}
	if err := unmountFuse(m.dir); err != nil {
		return err
	}
	_, err := c.call(ctx, &request{Op: opUnmount, Mount: id}, nil)
	if errors.Is(err, syscall.EBUSY) && m.control != nil {
		// Somebody in another mount namespace has it, or in none.
		if aerr := abortControl(m.control); aerr != nil {
			return fmt.Errorf("%w; aborting: %w", err, aerr)
		}
		_, err = c.call(ctx, &request{Op: opUnmount, Mount: id}, nil)
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	delete(c.mounts, id)
	c.mu.Unlock()
	c.dog.remove(id)
	m.release()
	return nil
}

// offerUring makes the kernel offer FUSE over io_uring to new connections, and
// reports whether it does.
func (c *Client) offerUring() bool {
	const path = "/sys/module/fuse/parameters/enable_uring"
	on, err := os.ReadFile(path)
	switch {
	case err != nil:
		return false // the kernel does not have it
	case bytes.HasPrefix(on, []byte("Y")):
		return true
	}
	if err := os.WriteFile(path, []byte("Y"), 0); err != nil {
		c.log.Printf("FUSE over io_uring stays off: %v", err)
		return false
	}
	c.log.Printf("switched FUSE over io_uring on: %s", path)
	return true
}
