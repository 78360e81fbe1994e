package objects

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"

	"github.com/git-env/git-env/internal/gitcmd"
)

// proc is one git cat-file process. It answers one request at a time.
type proc struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr *lastLines
	cancel context.CancelFunc
}

// info is the answer about one object.
type info struct {
	id   string
	kind Kind
	size int64
}

func startProc(g *gitcmd.Git) (*proc, error) {
	// The process outlives the request that happens to start it.
	ctx, cancel := context.WithCancel(context.Background())
	cmd := g.Command(ctx, "cat-file", "--batch-command", "--buffer")
	p := &proc{cmd: cmd, stderr: &lastLines{}, cancel: cancel}
	cmd.Stderr = p.stderr
	in, err := cmd.StdinPipe()
	if err == nil {
		p.in = in
		var out io.ReadCloser
		if out, err = cmd.StdoutPipe(); err == nil {
			p.out = bufio.NewReaderSize(out, 64<<10)
			err = cmd.Start()
		}
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("git cat-file: %w", err)
	}
	return p, nil
}

// kill ends the process whatever it is doing.
func (p *proc) kill() {
	p.cmd.Process.Kill()
}

// close ends the process and reaps it. What it said last is in stderr then.
func (p *proc) close() {
	p.in.Close()
	p.kill()
	p.cmd.Wait()
	p.cancel()
}

// send asks for objects, all at once.
func (p *proc) send(verb string, revs ...string) error {
	var b bytes.Buffer
	for _, r := range revs {
		b.WriteString(verb)
		b.WriteByte(' ')
		b.WriteString(r)
		b.WriteByte('\n')
	}
	b.WriteString("flush\n")
	_, err := p.in.Write(b.Bytes())
	return err
}

// answer reads the line about one object. ErrNotFound leaves the process
// usable, any other error does not.
func (p *proc) answer(rev string) (info, error) {
	line, err := p.out.ReadString('\n')
	if err != nil {
		return info{}, err
	}
	line = strings.TrimSuffix(line, "\n")
	f := strings.Split(line, " ")
	if len(f) == 3 && isID(f[0]) && line != rev+" missing" && line != rev+" ambiguous" {
		size, err := strconv.ParseInt(f[2], 10, 64)
		if err == nil {
			return info{id: f[0], kind: Kind(f[1]), size: size}, nil
		}
	}
	return info{}, fmt.Errorf("%w: %s", ErrNotFound, rev)
}

// body copies an object's content, left being what of it git has yet to give:
// a receiver that fails has not taken all that was read for it.
func (p *proc) body(w io.Writer, size int64) (left int64, err error) {
	in := io.LimitedReader{R: p.out, N: size}
	_, err = io.Copy(w, &in)
	if err == nil && in.N > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		_, err = p.out.Discard(1)
	}
	return in.N, err
}

// lastLines keeps the first bytes that git said. It is safe for concurrent use.
type lastLines struct {
	mu  sync.Mutex
	buf []byte
}

func (l *lastLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if room := 4096 - len(l.buf); room > 0 {
		l.buf = append(l.buf, b[:min(room, len(b))]...)
	}
	return len(b), nil
}

func (l *lastLines) message() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	line, _, _ := strings.Cut(strings.TrimSpace(string(l.buf)), "\n")
	return strings.TrimPrefix(strings.TrimPrefix(line, "fatal: "), "error: ")
}
