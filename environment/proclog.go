package environment

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

// The output of a background process is kept in a directory of segments, each
// named by the offset of its first byte in the whole output. A segment is a
// sequence of frames: when, which stream, how many bytes, the bytes. The first
// segment stays; of the others the last few do, so that what is kept is bounded
// and the cut shows as a gap between two segments.
const (
	logHeadBytes = halfOutput // on disk, of the first segment
	logTailBytes = 1 << 20    // on disk, of each further segment
	logTails     = halfOutput/logTailBytes + 1

	frameHeader = 8 + 1 + 4 // unix nanoseconds, stream, length
	maxFrame    = 64 << 10
)

// Streams of a frame.
const (
	streamStdout byte = 1
	streamStderr byte = 2
)

// procLog takes what a background process prints. Safe for concurrent use.
type procLog struct {
	dir string

	mu      sync.Mutex
	f       *os.File // nil until the first byte, and after a failure
	size    int64    // bytes of f
	tails   []int64  // offsets of the segments after the first one that are there
	total   int64    // bytes printed so far, kept or not
	changed chan struct{}
	ended   bool
	err     error // why the last write failed
}

// newProcLog begins an empty log in a directory that is not there yet.
func newProcLog(dir string) (*procLog, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &procLog{dir: dir, changed: make(chan struct{})}, nil
}

// stream returns the writer of one stream. It never fails, since a full disk is
// no reason to end the process; what could not be kept shows as a gap.
func (l *procLog) stream(s byte) io.Writer { return &logWriter{l, s} }

type logWriter struct {
	l *procLog
	s byte
}

func (w *logWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), maxFrame)
		w.l.add(w.s, rest[:n])
		rest = rest[n:]
	}
	return len(p), nil
}

func (l *procLog) add(stream byte, p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	frame := make([]byte, 0, frameHeader+len(p))
	frame = binary.BigEndian.AppendUint64(frame, uint64(time.Now().UnixNano()))
	frame = append(frame, stream)
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(p)))
	frame = append(frame, p...)
	l.err = l.put(frame)
	l.total += int64(len(p))
	l.signal()
}

// put appends a frame, in a new segment when the present one is full or may be
// torn.
func (l *procLog) put(frame []byte) error {
	limit := int64(logHeadBytes)
	if len(l.tails) > 0 {
		limit = logTailBytes
	}
	if l.f != nil && l.size+int64(len(frame)) > limit {
		_ = l.f.Close()
		l.f = nil
	}
	if l.f == nil {
		f, err := os.OpenFile(l.segment(l.total), os.O_WRONLY|os.O_CREATE|os.O_EXCL|oNofollow, 0o600)
		if err != nil {
			return err
		}
		l.f, l.size = f, 0
		if l.total > 0 {
			l.tails = append(l.tails, l.total)
		}
		for len(l.tails) > logTails {
			_ = os.Remove(l.segment(l.tails[0]))
			l.tails = l.tails[1:]
		}
	}
	if _, err := l.f.Write(frame); err != nil {
		_ = l.f.Close()
		l.f = nil
		return err
	}
	l.size += int64(len(frame))
	return nil
}

func (l *procLog) segment(off int64) string {
	return filepath.Join(l.dir, fmt.Sprintf("%016x", off))
}

// signal wakes who waits for more; l.mu is held.
func (l *procLog) signal() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// end says that nothing more comes.
func (l *procLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f != nil {
		_ = l.f.Close()
		l.f = nil
	}
	l.ended = true
	l.signal()
}

// more returns a channel that is closed when there is more than now, and whether
// nothing more comes.
func (l *procLog) more() (changed <-chan struct{}, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed, l.ended
}

// logChunk is a piece of what a process printed. One with a Gap stands for bytes
// that are not kept.
type logChunk struct {
	At     time.Time
	Stream byte
	Data   []byte
	Gap    int64
}

// logReader reads a log from its beginning, also while it is written.
type logReader struct {
	dir string
	f   *os.File
	r   *bufio.Reader
	seg int64 // offset of the segment f
	pos int64 // bytes of f that were read
	off int64 // offset in the output
}

func (r *logReader) close() {
	if r.f != nil {
		_ = r.f.Close()
		r.f = nil
	}
}

// next returns the next piece, io.EOF when there is none yet.
func (r *logReader) next() (logChunk, error) {
	for {
		if r.f == nil {
			gap, err := r.open()
			if err != nil {
				return logChunk{}, err
			}
			if gap > 0 {
				return logChunk{Gap: gap}, nil
			}
		}
		if c, ok := r.frame(); ok {
			return c, nil
		}
		after, err := r.after(r.seg + 1)
		if err != nil {
			return logChunk{}, err
		}
		if after < 0 {
			return logChunk{}, io.EOF
		}
		// Once more: it may have been completed just before the next one was begun.
		if c, ok := r.frame(); ok {
			return c, nil
		}
		r.close()
	}
}

// open opens the segment that goes on where the last one ended, and tells how
// much is missing before it.
func (r *logReader) open() (gap int64, err error) {
	for {
		seg, err := r.after(r.off)
		if err != nil {
			return 0, err
		}
		if seg < 0 {
			return 0, io.EOF
		}
		f, err := os.OpenFile(filepath.Join(r.dir, fmt.Sprintf("%016x", seg)), os.O_RDONLY|oNofollow, 0)
		if errors.Is(err, os.ErrNotExist) {
			continue // it has just been dropped
		}
		if err != nil {
			return 0, err
		}
		gap = seg - r.off
		r.f, r.seg, r.off, r.pos = f, seg, seg, 0
		r.r = bufio.NewReaderSize(f, maxFrame)
		return gap, nil
	}
}

// after finds the first segment at an offset or behind it; -1 when there is none.
func (r *logReader) after(off int64) (int64, error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return -1, err
	}
	for _, e := range entries { // sorted by name, which is by offset
		n, err := strconv.ParseInt(e.Name(), 16, 64)
		if err == nil && n >= off {
			return n, nil
		}
	}
	return -1, nil
}

// frame reads one frame; false when there is no whole one.
func (r *logReader) frame() (logChunk, bool) {
	var head [frameHeader]byte
	if _, err := io.ReadFull(r.r, head[:]); err != nil {
		r.rewind()
		return logChunk{}, false
	}
	n := binary.BigEndian.Uint32(head[9:])
	if n > maxFrame {
		r.rewind()
		return logChunk{}, false
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(r.r, data); err != nil {
		r.rewind()
		return logChunk{}, false
	}
	r.pos += frameHeader + int64(n)
	r.off += int64(n)
	return logChunk{At: time.Unix(0, int64(binary.BigEndian.Uint64(head[:]))), Stream: head[8], Data: data}, true
}

// rewind goes back to the end of the last whole frame.
func (r *logReader) rewind() {
	_, _ = r.f.Seek(r.pos, io.SeekStart)
	r.r.Reset(r.f)
}

// recorderOf is what a record shows of a log: its first and its last bytes.
func recorderOf(dir string) (*recorder, error) {
	out := &recorder{}
	r := &logReader{dir: dir}
	defer r.close()
	for {
		c, err := r.next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		if c.Gap > 0 {
			out.skip(c.Gap)
			continue
		}
		out.add(c.Data)
	}
}

// logView says which part of a log is wanted.
type logView struct {
	lines int       // of the last ones; negative for all
	since time.Time // what came before is not
}

// tell writes what is there now of a log, as far as it is wanted; warn hears of
// gaps. Afterwards the reader stands at the end.
func (r *logReader) tell(v logView, stdout, stderr io.Writer, warn func(string)) error {
	var kept []logChunk
	for {
		c, err := r.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if c.Gap == 0 && c.At.Before(v.since) {
			continue
		}
		if v.lines < 0 {
			if err := c.write(stdout, stderr, warn); err != nil {
				return err
			}
			continue
		}
		kept = append(kept, c)
	}
	for _, c := range lastLines(kept, v.lines) {
		if err := c.write(stdout, stderr, warn); err != nil {
			return err
		}
	}
	return nil
}

func (c *logChunk) write(stdout, stderr io.Writer, warn func(string)) error {
	switch {
	case c.Gap > 0:
		warn(fmt.Sprintf("%d bytes of its output are not kept", c.Gap))
		return nil
	case c.Stream == streamStderr:
		_, err := stderr.Write(c.Data)
		return err
	}
	_, err := stdout.Write(c.Data)
	return err
}

// lastLines cuts a list of pieces down to the last n lines.
func lastLines(chunks []logChunk, n int) []logChunk {
	if n <= 0 {
		return nil
	}
	found := 0
	for i, c := range slices.Backward(chunks) {
		for j := len(c.Data) - 1; j >= 0; j-- {
			if c.Data[j] != '\n' {
				if found == 0 {
					found = 1 // a last line without its end
				}
				continue
			}
			if found++; found > n {
				out := slices.Clone(chunks[i:])
				out[0].Data = c.Data[j+1:]
				return out
			}
		}
	}
	return chunks
}
