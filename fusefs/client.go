package fusefs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ServerOptions say how to start a file server.
type ServerOptions struct {
	// Exe is the program that has the hidden command fusefs.
	Exe string
	// GitDir is the repository whose trees are served.
	GitDir string
	// BlobDir and LayerDir are made when they do not exist.
	BlobDir  string
	LayerDir string
	// Log gets the server's messages; nil for none.
	Log *os.File
}

// Client is the daemon's side of a file server. It owns the mounts and their
// /dev/fuse descriptors. It is safe for concurrent use; calls on a dead
// server fail with ErrServerDead.
type Client struct {
	conn *conn
	cmd  *exec.Cmd
	done chan struct{} // closed when the server is dead and its mounts are gone

	mu      sync.Mutex
	nextID  uint64                     // guarded by mu
	pending map[uint64]chan<- response // guarded by mu; nil when the server is dead
	mounts  map[string]*mounted        // guarded by mu
}

// mounted is a mount this process made.
type mounted struct {
	dir string
	dev *os.File // guarded by Client.mu; nil until it is mounted
}

// StartServer starts a file server and waits until it is ready. The server
// lives until Close, or until this process is gone.
func StartServer(ctx context.Context, o ServerOptions) (*Client, error) {
	for _, dir := range []string{o.BlobDir, o.LayerDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control")
	defer ours.Close()
	defer theirs.Close()
	conn, err := newConn(ours)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(o.Exe, "fusefs", "--git-dir", o.GitDir, "--blobs", o.BlobDir, "--layers", o.LayerDir)
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{theirs}
	if o.Log != nil {
		cmd.Stdout, cmd.Stderr = o.Log, o.Log
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("starting the file server: %w", err)
	}
	theirs.Close()
	c := &Client{
		conn: conn, cmd: cmd, done: make(chan struct{}),
		pending: map[uint64]chan<- response{}, mounts: map[string]*mounted{},
	}
	ready := make(chan response, 1)
	c.pending[0] = ready
	go c.receive()
	select {
	case <-ready:
		return c, nil
	case <-c.done:
		return nil, fmt.Errorf("starting the file server: %w", ErrServerDead)
	case <-ctx.Done():
		c.kill()
		return nil, ctx.Err()
	}
}

// Done is closed when the server is dead, its mounts are detached and nobody
// waits for them any more.
func (c *Client) Done() <-chan struct{} { return c.done }

// Pid returns the process id of the server.
func (c *Client) Pid() int { return c.cmd.Process.Pid }

// receive hands out answers until the server is gone, then cleans up.
func (c *Client) receive() {
	for {
		var resp response
		if err := c.conn.receive(&resp); err != nil {
			break
		}
		c.mu.Lock()
		ch := c.pending[resp.ID]
		delete(c.pending, resp.ID)
		c.mu.Unlock()
		if ch != nil {
			ch <- resp
		}
	}
	c.mu.Lock()
	pending := c.pending
	var live []*mounted
	for _, m := range c.mounts {
		if m.dev != nil {
			live = append(live, m)
		}
	}
	c.pending, c.mounts = nil, nil
	c.mu.Unlock()
	// Without its socket the server would leave anyway; dead is simpler.
	c.cmd.Process.Kill()
	c.conn.Close()
	for _, m := range live {
		m.abort()
	}
	c.cmd.Wait()
	for _, ch := range pending {
		close(ch)
	}
	close(c.done)
}

// abort detaches the mount and fails everybody who waits for it. It cannot
// report an error to anybody; the next Mount at the directory would.
func (m *mounted) abort() {
	_ = AbortStale(m.dir)
	m.dev.Close()
}

func (c *Client) kill() {
	c.cmd.Process.Kill()
	<-c.done
}

// call sends a request and waits for the answer. When ctx ends first the
// request is carried out nevertheless and its answer dropped.
func (c *Client) call(ctx context.Context, req *request, file *os.File) (response, error) {
	ch := make(chan response, 1)
	c.mu.Lock()
	if c.pending == nil {
		c.mu.Unlock()
		return response{}, ErrServerDead
	}
	c.nextID++
	req.ID = c.nextID
	c.pending[req.ID] = ch
	c.mu.Unlock()
	if err := c.conn.send(req, file); err != nil {
		<-c.done // a socket that cannot be written is closed
		return response{}, ErrServerDead
	}
	select {
	case resp, ok := <-ch:
		switch {
		case !ok:
			return response{}, ErrServerDead
		case resp.Err != nil:
			return resp, resp.Err
		}
		return resp, nil
	case <-ctx.Done():
		return response{}, ctx.Err()
	}
}

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
	if _, err := c.call(ctx, &request{Op: opMount, Mount: spec.ID, Spec: spec}, dev); err != nil {
		m.abort()
		if ctx.Err() != nil {
			// The server may yet finish: what it has then is a dead mount.
			go c.call(context.WithoutCancel(ctx), &request{Op: opUnmount, Mount: spec.ID}, nil)
		}
		return err
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
	entry, err := findMount(m.dir)
	if err != nil {
		return err
	}
	if err := unmountFuse(m.dir); err != nil {
		return err
	}
	_, err = c.call(ctx, &request{Op: opUnmount, Mount: id}, nil)
	if errors.Is(err, syscall.EBUSY) && entry != nil {
		// Somebody in another mount namespace has it.
		if aerr := abortConnection(entry.minor); aerr != nil {
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
	m.dev.Close()
	return nil
}

// Dirty returns, for each directory asked for ("" is the root), its names
// that changed since the last mark. A path that is no directory has none.
func (c *Client) Dirty(ctx context.Context, id string, dirs []string) (Dirty, error) {
	resp, err := c.call(ctx, &request{Op: opDirty, Mount: id, Paths: dirs}, nil)
	resp.Dirty.Entries = padded(resp.Dirty.Entries, len(dirs))
	return resp.Dirty, err
}

// List returns all entries of each directory asked for, as they are now.
func (c *Client) List(ctx context.Context, id string, dirs []string) ([][]DirtyEntry, error) {
	resp, err := c.call(ctx, &request{Op: opList, Mount: id, Paths: dirs}, nil)
	return padded(resp.Lists, len(dirs)), err
}

// padded makes up for empty lists that the encoding leaves out.
func padded(lists [][]DirtyEntry, n int) [][]DirtyEntry {
	for len(lists) < n {
		lists = append(lists, nil)
	}
	return lists
}

// Stat describes each path as it is now. The Name of an entry is its path.
// Symbolic links are not followed.
func (c *Client) Stat(ctx context.Context, id string, paths []string) ([]DirtyEntry, error) {
	resp, err := c.call(ctx, &request{Op: opStat, Mount: id, Paths: paths}, nil)
	return resp.Entries, err
}

// Mark says that everything that was dirty at seq, a number Dirty returned,
// is part of commit now. It is durable when it returns.
func (c *Client) Mark(ctx context.Context, id string, seq uint64, commit string) error {
	_, err := c.call(ctx, &request{Op: opMark, Mount: id, Seq: seq, Commit: commit}, nil)
	return err
}

// Freeze seals the top layer, puts the empty layer newTop on it and returns
// the id of the sealed one, in constant time. Open files and mappings go on.
// The caller should have noted the new stack durably before: a mount with a
// last layer that does not exist yet makes it.
func (c *Client) Freeze(ctx context.Context, id, newTop string) (sealed string, err error) {
	resp, err := c.call(ctx, &request{Op: opFreeze, Mount: id, NewTop: newTop}, nil)
	return resp.Sealed, err
}

// Sync makes durable what was written before the call.
func (c *Client) Sync(ctx context.Context, id string) error {
	_, err := c.call(ctx, &request{Op: opSync, Mount: id}, nil)
	return err
}

// Close unmounts everything and ends the server. It waits a few seconds at
// most. Closing a client of a dead server does nothing.
func (c *Client) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var errs []error
	for _, id := range c.ids() {
		if err := c.Unmount(ctx, id); err != nil && !errors.Is(err, ErrServerDead) {
			errs = append(errs, err)
		}
	}
	_, err := c.call(ctx, &request{Op: opQuit}, nil)
	if err != nil && !errors.Is(err, ErrServerDead) {
		errs = append(errs, err)
	}
	c.kill()
	return errors.Join(errs...)
}

func (c *Client) ids() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []string
	for id := range c.mounts {
		ids = append(ids, id)
	}
	return ids
}
