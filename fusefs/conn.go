package fusefs

import (
	"encoding/gob"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// The control socket carries gob values, requests one way and answers the
// other: unlike JSON they keep names that are not UTF-8. A mount request is
// accompanied by its /dev/fuse descriptor.

type op uint8

const (
	opMount op = iota + 1
	opUnmount
	opDirty
	opList
	opStat
	opMark
	opFreeze
	opSync
	opStack
	opQuit
	opServing
	opHydrate
	opNotices
	opHold
	opAwaited
	opUsage
	opQuota
)

type request struct {
	ID     uint64
	Op     op
	Mount  string // id
	Spec   MountSpec
	Uring  bool // mount: over io_uring, which the kernel offers
	Paths  []string
	Blobs  []Blob
	Seq    uint64
	Commit string
	NewTop string
	Held   bool // hold: from now on, or no longer
	Limit  int64
}

type response struct {
	ID      uint64 // 0: the server is ready
	Err     *remoteError
	Dirty   Dirty
	Lists   [][]DirtyEntry
	Entries []DirtyEntry
	Frozen  Frozen
	Stack   Stack
	Notices Notices
	Repairs []Repair // of a mount
	Usage   Usage

	Hydrated Hydrated
}

// remoteError carries an error over the socket: its text, its errno, and
// which of our own errors it is.
type remoteError struct {
	Text  string
	Errno syscall.Errno
	Is    string
}

func (e *remoteError) Error() string { return e.Text }

func (e *remoteError) Unwrap() []error {
	var errs []error
	if e.Errno != 0 {
		errs = append(errs, e.Errno)
	}
	for _, known := range knownErrors() {
		if known.Error() == e.Is {
			errs = append(errs, known)
		}
	}
	return errs
}

func toRemote(err error) *remoteError {
	if err == nil {
		return nil
	}
	r := &remoteError{Text: err.Error()}
	errors.As(err, &r.Errno)
	for _, known := range knownErrors() {
		if errors.Is(err, known) {
			r.Is = known.Error()
		}
	}
	return r
}

// conn is one end of the control socket.
type conn struct {
	sock *net.UnixConn
	dec  *gob.Decoder

	mu     sync.Mutex // one message at a time
	enc    *gob.Encoder
	passed *os.File // goes with the bytes being written; guarded by mu

	fds []int // received and not taken yet; only the reader touches it
}

func newConn(f *os.File) (*conn, error) {
	nc, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	sock, ok := nc.(*net.UnixConn)
	if !ok {
		nc.Close()
		return nil, errors.New("control descriptor is not a socket")
	}
	c := &conn{sock: sock}
	c.dec = gob.NewDecoder(reader{c})
	c.enc = gob.NewEncoder(writer{c})
	return c, nil
}

// send writes v; with file, the other end gets a copy of its descriptor.
func (c *conn) send(v any, file *os.File) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passed = file
	return c.enc.Encode(v)
}

// receive reads the next value. Only one goroutine may.
func (c *conn) receive(v any) error { return c.dec.Decode(v) }

// takeFD returns the oldest descriptor that came and was not taken, or -1.
func (c *conn) takeFD() int {
	if len(c.fds) == 0 {
		return -1
	}
	fd := c.fds[0]
	c.fds = c.fds[1:]
	return fd
}

func (c *conn) Close() error { return c.sock.Close() }

type writer struct{ c *conn }

func (w writer) Write(p []byte) (int, error) {
	if w.c.passed == nil {
		return w.c.sock.Write(p)
	}
	rights := unix.UnixRights(int(w.c.passed.Fd()))
	w.c.passed = nil
	n, _, err := w.c.sock.WriteMsgUnix(p, rights, nil)
	if err != nil || n == len(p) {
		return n, err
	}
	rest, err := w.c.sock.Write(p[n:])
	return n + rest, err
}

type reader struct{ c *conn }

func (r reader) Read(p []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4*4))
	n, oobn, _, _, err := r.c.sock.ReadMsgUnix(p, oob)
	if oobn > 0 {
		msgs, perr := unix.ParseSocketControlMessage(oob[:oobn])
		if perr != nil {
			return n, perr
		}
		for i := range msgs {
			fds, perr := unix.ParseUnixRights(&msgs[i])
			if perr != nil {
				return n, perr
			}
			for _, fd := range fds {
				unix.CloseOnExec(fd)
			}
			r.c.fds = append(r.c.fds, fds...)
		}
	}
	if n <= 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), err // -1 with an error, such as that of a peer that was killed
}
