package daemon

import (
	"encoding/binary"
	"io"
	"sync"

	"github.com/git-env/git-env/internal/wire"
)

// stdinQueue holds what the client sent of its standard input until the exec
// reads it. The client sends at most wire.StdinWindow bytes ahead of the
// acknowledgements, so that signals behind them on the connection are never held
// up by a command that does not read.
type stdinQueue struct {
	conn *wire.Conn
	mu   sync.Mutex
	cond *sync.Cond
	buf  []byte // guarded by mu
	done bool   // no more will come, guarded by mu
}

func newStdinQueue(conn *wire.Conn) *stdinQueue {
	q := &stdinQueue{conn: conn}
	q.cond = sync.NewCond(&q.mu)
	return q
}

// put appends bytes; false means that the client broke the window.
func (q *stdinQueue) put(p []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.buf)+len(p) > wire.StdinWindow {
		return false
	}
	q.buf = append(q.buf, p...)
	q.cond.Signal()
	return true
}

func (q *stdinQueue) close() {
	q.mu.Lock()
	q.done = true
	q.mu.Unlock()
	q.cond.Broadcast()
}

// Read implements io.Reader; it acknowledges what it hands out.
func (q *stdinQueue) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	q.mu.Lock()
	for len(q.buf) == 0 && !q.done {
		q.cond.Wait()
	}
	n := copy(p, q.buf)
	q.buf = append(q.buf[:0], q.buf[n:]...)
	q.mu.Unlock()
	if n == 0 {
		return 0, io.EOF
	}
	_ = q.conn.Send(wire.StdinAck, binary.BigEndian.AppendUint32(nil, uint32(n)))
	return n, nil
}
