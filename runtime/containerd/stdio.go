package containerd

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/runtime"
)

const (
	// lingering is how long output is still taken after a process has ended while
	// children hold its pipes.
	lingering = 100 * time.Millisecond
	// inFlight is more than the pipes between a process and us can hold: what was
	// written before the end is among the next so many bytes.
	inFlight = 512 << 10
)

// stdio is our ends of the pipes of an exec, or of its terminal. Pipes have names
// when the shim is to open them: ours are opened before it opens its own, so that
// neither side waits; the names are removed as soon as both have them open.
type stdio struct {
	stdin, stdout, stderr string // paths, "" when not connected or nameless
	in                    *os.File
	out                   []*outStream
	input                 io.Reader
}

// outStream copies one output pipe.
type outStream struct {
	f       *os.File
	w       io.Writer
	drained chan struct{} // closed when all that counts has been written to w
	done    chan struct{} // closed at the end of the pipe
	once    sync.Once

	head  []byte // the first bytes; not to be read before drained is closed
	total int64  // likewise
}

// maxHead is how much of an output is looked at for the runtime's own words.
const maxHead = 4096

// newStdio makes the pipes in dir, with id in their names.
func newStdio(dir, id string, streams runtime.IO, tty bool) (_ *stdio, err error) {
	s := &stdio{input: streams.Stdin}
	defer func() {
		if err != nil {
			s.unlink()
			s.close()
		}
	}()
	base := filepath.Join(dir, id)
	open := func(path string, w io.Writer) error {
		f, err := openFifo(path, os.O_RDONLY)
		if err != nil {
			return err
		}
		if w == nil {
			w = io.Discard
		}
		s.out = append(s.out, &outStream{f: f, w: w, drained: make(chan struct{}), done: make(chan struct{})})
		return nil
	}
	s.stdout = base + ".out"
	if err := open(s.stdout, streams.Stdout); err != nil {
		return nil, err
	}
	if !tty {
		s.stderr = base + ".err"
		if err := open(s.stderr, streams.Stderr); err != nil {
			return nil, err
		}
	}
	if streams.Stdin != nil || tty {
		s.stdin = base + ".in"
		// For both directions: opening for writing alone waits for a reader.
		if s.in, err = openFifo(s.stdin, os.O_RDWR); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func openFifo(path string, flag int) (*os.File, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, &os.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	return os.OpenFile(path, flag|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
}

// start begins to copy. The shim has opened its ends: a read can tell a pipe that
// nobody writes to any more from one that nobody has opened yet. closeInput is
// called once the input has ended.
func (s *stdio) start(closeInput func()) error {
	s.unlink()
	for _, o := range s.out {
		go o.copy()
	}
	if s.in == nil {
		return nil
	}
	if s.input == nil {
		return nil // a terminal without input: stays open and silent
	}
	if s.stdin != "" {
		// Writing to a process that has gone must fail, so our own read end goes.
		w, err := reopenForWriting(s.in)
		if err != nil {
			return err
		}
		s.in = w
	}
	w := s.in
	go func() {
		_, _ = io.Copy(fileWriter{w}, s.input)
		_ = w.Close()
		closeInput()
	}()
	return nil
}

// fileWriter hides the file's ReadFrom, which would splice from a file that may
// be a terminal and then cannot be woken.
type fileWriter struct{ f *os.File }

func (w fileWriter) Write(p []byte) (int, error) { return w.f.Write(p) }

// reopenForWriting turns a handle for both directions into one for writing.
func reopenForWriting(f *os.File) (*os.File, error) {
	defer f.Close()
	return os.OpenFile(procFd(f), os.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
}

func (s *stdio) unlink() {
	for _, path := range []string{s.stdin, s.stdout, s.stderr} {
		if path != "" {
			_ = os.Remove(path)
		}
	}
}

// close drops our ends; copying stops.
func (s *stdio) close() {
	if s.in != nil {
		_ = s.in.Close()
	}
	for _, o := range s.out {
		_ = o.f.Close()
	}
}

// settle waits until the output of an ended process has been written out.
func (s *stdio) settle() {
	timer := time.NewTimer(lingering)
	defer timer.Stop()
	for _, o := range s.out {
		select {
		case <-o.drained:
			continue
		default:
		}
		select {
		case <-o.drained:
		case <-timer.C:
			timer.Reset(0) // for the next stream, too
			_ = o.f.SetReadDeadline(time.Unix(1, 0))
			<-o.drained // as fast as the reader of our output takes it
		}
	}
	if s.in != nil {
		_ = s.in.Close() // ends a copy that waits for room in the pipe
	}
}

// wait blocks until every pipe has ended or was closed.
func (s *stdio) wait() {
	for _, o := range s.out {
		<-o.done
	}
}

// copy writes out everything until the pipe ends. When settle sets a deadline it
// takes what is in the pipe, and throws away what comes later.
func (o *outStream) copy() {
	defer close(o.done)
	defer o.f.Close()
	defer o.markDrained()
	buf := make([]byte, 32<<10)
	broken := false // our writer failed: keep the process going all the same
	for {
		n, err := o.f.Read(buf)
		if n > 0 {
			o.note(buf[:n])
		}
		if n > 0 && !broken {
			_, werr := o.w.Write(buf[:n])
			broken = werr != nil
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return
		}
	}
	o.takeRest(buf, broken)
	o.markDrained()
	_ = o.f.SetReadDeadline(time.Time{})
	_, _ = io.Copy(io.Discard, struct{ io.Reader }{o.f})
}

// takeRest writes out what is in the pipe now.
func (o *outStream) takeRest(buf []byte, broken bool) {
	raw, err := o.f.SyscallConn()
	if err != nil {
		return
	}
	for taken := 0; taken < inFlight; {
		n := 0
		if err := raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), buf) }); err != nil || n <= 0 {
			return
		}
		taken += n
		o.note(buf[:n])
		if !broken {
			_, werr := o.w.Write(buf[:n])
			broken = werr != nil
		}
	}
}

func (o *outStream) note(p []byte) {
	o.total += int64(len(p))
	if room := maxHead - len(o.head); room > 0 {
		o.head = append(o.head, p[:min(room, len(p))]...)
	}
}

// words is the whole output of all streams when it is short, else "".
func (s *stdio) words() string {
	var all []byte
	for _, o := range s.out {
		if o.total > int64(len(o.head)) {
			return ""
		}
		all = append(all, o.head...)
	}
	return string(all)
}

func (o *outStream) markDrained() { o.once.Do(func() { close(o.drained) }) }
