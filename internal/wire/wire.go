package wire

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Protocol is the version of the framing and of every message; both ends must
// agree on it and on the program's version.
const Protocol = 1

// MaxFrame bounds a frame's payload in bytes, so that a broken peer cannot make
// the other side allocate without limit.
const MaxFrame = 4 << 20

// StdinWindow is how many bytes of stdin a client may send ahead of the
// acknowledgements.
const StdinWindow = 1 << 20

// Type says what a frame carries.
type Type byte

// Frame types. Hello goes first both ways; then one Request, then the others.
const (
	Hello    Type = 'h'
	Request  Type = 'q'
	Result   Type = 'r'
	Failure  Type = 'e'
	Progress Type = 'p'
	Warning  Type = 'w'
	Stdin    Type = 'i'
	StdinEOF Type = 'z'
	StdinAck Type = 'a' // big-endian uint32: bytes of stdin that were taken
	Stdout   Type = 'o'
	Stderr   Type = 'x'
	Signal   Type = 's'
	Resize   Type = 'g'
	Ask      Type = 'k' // the daemon asks its client for secrets
	Answer   Type = 'y'
)

// HelloMsg opens a connection.
type HelloMsg struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"`
	Pid      int    `json:"pid"`
}

// RequestMsg is a call.
type RequestMsg struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

// FailureMsg is an error with its exit code and remedy.
type FailureMsg struct {
	Code int    `json:"code"`
	Msg  string `json:"msg"`
	Hint string `json:"hint,omitempty"`
}

// ProgressMsg reports how far long work is; Total 0 means unknown.
type ProgressMsg struct {
	Phase string `json:"phase"`
	Done  int64  `json:"done"`
	Total int64  `json:"total"`
	Text  string `json:"text,omitempty"`
}

// ResizeMsg is a terminal's size in cells.
type ResizeMsg struct {
	Width  uint16 `json:"width"`
	Height uint16 `json:"height"`
}

// ErrTooLarge is returned for a frame beyond MaxFrame.
var ErrTooLarge = errors.New("frame too large")

// Conn frames a connection. Send is safe for concurrent use; Recv is for one
// reader.
type Conn struct {
	c  net.Conn
	r  *bufio.Reader
	mu sync.Mutex // guards writes
	w  []byte     // reused frame buffer, guarded by mu
	// broken is why no frame can be written any more: the last one may be there
	// in part. Guarded by mu.
	broken error

	patience atomic.Int64 // of a write, a time.Duration; 0 is for ever
}

// New wraps a connection.
func New(c net.Conn) *Conn {
	return &Conn{c: c, r: bufio.NewReaderSize(c, 64<<10)}
}

// Close closes the connection.
func (c *Conn) Close() error { return c.c.Close() }

// CloseWrite tells the peer that nothing more comes.
func (c *Conn) CloseWrite() error {
	if u, ok := c.c.(*net.UnixConn); ok {
		return u.CloseWrite()
	}
	return nil
}

// Hurry bounds from now on how long a write waits for the peer to read, the one
// under way included; the connection cannot be written after one that took
// longer.
func (c *Conn) Hurry(d time.Duration) {
	c.patience.Store(int64(d))
	_ = c.c.SetWriteDeadline(time.Now().Add(d))
}

// Send writes one frame.
func (c *Conn) Send(t Type, payload []byte) error {
	if len(payload) > MaxFrame {
		return ErrTooLarge
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return c.broken
	}
	if d := c.patience.Load(); d > 0 {
		_ = c.c.SetWriteDeadline(time.Now().Add(time.Duration(d)))
	}
	c.w = append(c.w[:0], byte(t))
	c.w = binary.BigEndian.AppendUint32(c.w, uint32(len(payload)))
	c.w = append(c.w, payload...)
	_, err := c.c.Write(c.w)
	c.broken = err
	return err
}

// SendJSON writes one frame with a JSON payload.
func (c *Conn) SendJSON(t Type, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.Send(t, data)
}

// Recv reads one frame; the payload is the caller's to keep.
func (c *Conn) Recv() (Type, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(c.r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > MaxFrame {
		return 0, nil, ErrTooLarge
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(c.r, payload); err != nil {
		return 0, nil, fmt.Errorf("connection broke inside a frame: %w", err)
	}
	return Type(head[0]), payload, nil
}

// Writer returns an io.Writer that sends what is written as frames of type t.
func (c *Conn) Writer(t Type) io.Writer { return frameWriter{c, t} }

type frameWriter struct {
	c *Conn
	t Type
}

func (w frameWriter) Write(p []byte) (int, error) {
	total := 0
	for len(p) > 0 {
		n := min(len(p), 256<<10)
		if err := w.c.Send(w.t, p[:n]); err != nil {
			return total, err
		}
		total += n
		p = p[n:]
	}
	return total, nil
}
