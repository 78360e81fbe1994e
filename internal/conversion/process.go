package conversion

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"github.com/git-env/git-env/internal/gitcmd"
)

// idleTime is how long a process that converts is kept without use.
const idleTime = time.Minute

// waitDelay is how long the last words of a process that has ended are waited for.
const waitDelay = 200 * time.Millisecond

// process is a git that answers on its standard output what it is asked on its
// standard input.
type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr *said
	cancel context.CancelFunc

	mu     sync.Mutex
	reaped bool // guarded by mu
}

func start(g *gitcmd.Git, stderr *said, args ...string) (*process, error) {
	// It outlives the request that happens to start it.
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{cmd: g.Command(ctx, args...), stderr: stderr, cancel: cancel}
	p.cmd.Stderr = stderr
	// A group of its own, to end its filters with it. One that leaves the group
	// may hold on to the pipe.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = waitDelay
	in, err := p.cmd.StdinPipe()
	if err == nil {
		p.in = in
		var out io.ReadCloser
		if out, err = p.cmd.StdoutPipe(); err == nil {
			p.out = bufio.NewReaderSize(out, 64<<10)
			err = p.cmd.Start()
		}
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("git %s: %w", args[0], err)
	}
	return p, nil
}

// kill ends the process, and the filters it has started.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped { // else the number may be another's
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	}
}

// close ends the process and reaps it.
func (p *process) close() {
	p.in.Close()
	p.kill()
	p.mu.Lock()
	p.reaped = true
	p.mu.Unlock()
	p.cmd.Wait()
	p.cancel()
}

// checker is a git check-attr.
type checker struct{ *process }

func startChecker(g *gitcmd.Git) (*checker, error) {
	p, err := start(g, &said{}, append([]string{"check-attr", "-z", "--stdin"}, names()...)...)
	if err != nil {
		return nil, err
	}
	return &checker{p}, nil
}

// ask returns what git says about paths, in their order.
func (c *checker) ask(ctx context.Context, paths []string) ([]values, error) {
	stop := context.AfterFunc(ctx, c.kill)
	defer stop()
	sent := make(chan error, 1)
	go func() {
		// Beside the reading: neither pipe holds everything.
		_, err := io.WriteString(c.in, strings.Join(paths, "\x00")+"\x00")
		sent <- err
	}()
	found := make([]values, len(paths))
	for i := range found {
		for j := range found[i] {
			for field := range 3 {
				s, err := c.out.ReadString(0)
				if err != nil {
					c.kill() // so that the writer gives up too
					<-sent
					return nil, err
				}
				if field == 2 {
					found[i][j] = strings.TrimSuffix(s, "\x00")
				}
			}
		}
	}
	return found, <-sent
}

// converter is a git cat-file that converts.
type converter struct {
	*process
	idle *time.Timer
}

// deadError says that a process was not there to be asked.
type deadError struct{ err error }

func (e *deadError) Error() string { return e.err.Error() }

func (t *Tree) acquire(ctx context.Context) (*converter, error) {
	var c *converter
	select {
	case c = <-t.slots:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if c != nil {
		c.idle.Stop()
		return c, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	err := errClosed
	if !t.closed {
		var p *process
		// Only the type: the size that git gives is the one before the conversion.
		if p, err = start(t.git, &said{log: t.log}, "cat-file", "-z", "--batch=%(objecttype)", "--filters"); err == nil {
			c = &converter{process: p}
			t.live[c] = struct{}{}
			return c, nil
		}
	}
	t.slots <- nil
	return nil, err
}

func (t *Tree) release(c *converter) {
	c.idle = time.AfterFunc(idleTime, func() { t.retire(c) })
	t.slots <- c
}

// retire ends a process unless it is in use.
func (t *Tree) retire(old *converter) {
	for range processes {
		select {
		case c := <-t.slots:
			if c == old {
				t.discard(c)
				return
			}
			t.slots <- c
		default:
			return
		}
	}
}

// discard ends a process that was acquired.
func (t *Tree) discard(c *converter) {
	t.mu.Lock()
	delete(t.live, c)
	t.mu.Unlock()
	c.close()
	t.slots <- nil
}

// convert does one exchange. After an error the process is of no more use.
func (c *converter) convert(ctx context.Context, id, path string, w io.Writer) (int64, error) {
	stop := context.AfterFunc(ctx, c.kill)
	defer stop()
	c.stderr.begin(path)
	var nonce [16]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return 0, err
	}
	// The answer does not say how long it is. It is followed by that to a name
	// which cannot be in it, because nobody knows it yet.
	end := "!" + hex.EncodeToString(nonce[:])
	if _, err := io.WriteString(c.in, id+" "+path+"\x00"+end+"\x00"); err != nil {
		return 0, &deadError{err}
	}
	kind, err := c.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if kind != "blob\n" {
		return 0, fmt.Errorf("object %s: git says '%s'", id, strings.TrimSpace(kind))
	}
	return copyUntil(w, c.out, []byte("\n"+end+" missing\n"))
}

// copyUntil copies r to w up to end, which is the last that r gives for now, and
// returns the number of bytes before it.
func copyUntil(w io.Writer, r io.Reader, end []byte) (int64, error) {
	var total int64
	buf := make([]byte, 256<<10)
	have := 0
	for {
		n, err := r.Read(buf[have:])
		have += n
		if bytes.HasSuffix(buf[:have], end) {
			m, err := w.Write(buf[:have-len(end)])
			return total + int64(m), err
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return total, err
		}
		if out := have - len(end) + 1; out > 0 {
			m, err := w.Write(buf[:out])
			total += int64(m)
			if err != nil {
				return total, err
			}
			have = copy(buf, buf[out:have])
		}
	}
}

// said keeps the last that git wrote to its standard error, and logs it. It is
// safe for concurrent use.
type said struct {
	log *log.Logger // nil for none

	mu   sync.Mutex
	path string
	text []byte
}

const maxSaid = 4096

func (s *said) begin(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.path, s.text = path, nil
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, b...)
	if over := len(s.text) - maxSaid; over > 0 {
		s.text = append([]byte{}, s.text[over:]...)
	}
	if s.log != nil {
		s.log.Printf("converting %q: %s", s.path, printable(string(b)))
	}
	return len(b), nil
}

// last is the line that says why git ended.
func (s *said) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := ""
	for line := range strings.Lines(string(s.text)) {
		line = strings.TrimSpace(line)
		if fatal, ok := strings.CutPrefix(line, "fatal: "); ok {
			return fatal
		}
		if line != "" {
			last = strings.TrimPrefix(line, "error: ")
		}
	}
	return last
}

// explain makes an error of what git said, or else of what happened to it.
func explain(err error, said string) error {
	if said == "" {
		return err
	}
	return errors.New(printable(said))
}

// printable makes one harmless line of what git said: paths come from a tree.
func printable(s string) string {
	s = strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ")
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
