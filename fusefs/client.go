package fusefs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
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
	// BlobCache bounds the materialised blobs in bytes; 0 for any number. What is
	// open stays beyond it.
	BlobCache int64
	// NodeLimit is from how many nodes in memory on a mount forgets what it can
	// read again; 0 for a number that suits most.
	NodeLimit int
	// Uring lets mounts use FUSE over io_uring, where a request costs no
	// change of processors. With privilege it switches that on in the kernel;
	// where the kernel does not have it, it changes nothing.
	Uring bool
	// Watchdog is how long the server may take to answer before a process of
	// its own takes it to be stuck, aborts its connections and ends it; 0 for
	// none. That process leaves a line for people in the file Notices.
	Watchdog time.Duration
	Notices  string
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
	log  *log.Logger

	uring atomic.Bool // new mounts use io_uring
	dog   *dog        // nil for none

	mu      sync.Mutex
	nextID  uint64                     // guarded by mu
	pending map[uint64]chan<- response // guarded by mu; nil when the server is dead
	mounts  map[string]*mounted        // guarded by mu
}

// mounted is a mount this process made.
type mounted struct {
	dir     string
	control *os.File // of its connection; nil when it could not be opened
	dev     *os.File // guarded by Client.mu; nil until it is mounted
	repairs []Repair // guarded by Client.mu
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
	asks, answers, err := healthPair()
	if err != nil {
		conn.Close()
		return nil, err
	}
	defer answers.Close()
	cmd := exec.Command(o.Exe, "fusefs", "--git-dir", o.GitDir, "--blobs", o.BlobDir, "--layers", o.LayerDir,
		"--blob-cache", strconv.FormatInt(o.BlobCache, 10), "--nodes", strconv.Itoa(o.NodeLimit))
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{theirs, answers}
	if o.Log != nil {
		cmd.Stdout, cmd.Stderr = o.Log, o.Log
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		conn.Close()
		asks.Close()
		return nil, fmt.Errorf("starting the file server: %w", err)
	}
	theirs.Close()
	c := &Client{
		conn: conn, cmd: cmd, done: make(chan struct{}),
		pending: map[uint64]chan<- response{}, mounts: map[string]*mounted{},
		log: clientLog(o.Log),
	}
	c.uring.Store(o.Uring && c.offerUring())
	if o.Watchdog > 0 {
		c.dog, err = newDog(o, cmd.Process.Pid, asks, c.log)
	}
	if c.dog == nil {
		asks.Close()
	}
	if err != nil {
		c.log.Printf("no watchdog: %v", err)
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

// healthPair makes the socket over which the watchdog asks the server.
func healthPair() (asks, answers *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "health"), os.NewFile(uintptr(fds[1]), "health"), nil
}

func clientLog(f *os.File) *log.Logger {
	if f == nil {
		return log.New(io.Discard, "", 0)
	}
	return log.New(f, "fusefs client: ", log.LstdFlags|log.Lmicroseconds|log.Lmsgprefix)
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
	c.dog.close()
	for _, ch := range pending {
		close(ch)
	}
	close(c.done)
}

// abort detaches the mount and fails everybody who waits for it. It cannot
// report an error to anybody; the next Mount at the directory would.
func (m *mounted) abort() {
	_ = AbortStale(m.dir)
	m.release()
}

// release closes the descriptors.
func (m *mounted) release() {
	m.dev.Close()
	if m.control != nil {
		m.control.Close()
	}
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
