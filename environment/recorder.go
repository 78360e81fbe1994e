package environment

import (
	"fmt"
	"io"
	"sync"

	"github.com/git-env/git-env/internal/objects"
	"github.com/git-env/git-env/internal/secret"
	"github.com/git-env/git-env/notes"
)

// maxOutput bounds the bytes of an exec's output that are kept whole; beyond it
// the first and last half are.
const maxOutput = 8 << 20

// recorder keeps an exec's output as it arrives, stdout and stderr together in
// the order in which they came.
type recorder struct {
	mu    sync.Mutex
	head  []byte // the first maxOutput/2 bytes, guarded by mu
	tail  []byte // a ring of the last maxOutput/2 bytes after head, guarded by mu
	next  int    // where the ring is written next once it is full, guarded by mu
	total int64  // all bytes, guarded by mu
	holed bool   // bytes are missing after head, which takes no more; guarded by mu

	// secrets are masked in what arrives; set before the first tee.
	secrets *secret.Set
	streams []*secret.Stream // set before there is output
}

const halfOutput = maxOutput / 2

// tee returns a writer that keeps what is written and passes it on. Once passing
// it on fails (the caller went away) it only keeps. Where there are secrets, flush has to be called at the end.
func (r *recorder) tee(w io.Writer) io.Writer {
	if r.secrets == nil {
		return &teeWriter{r: r, w: w}
	}
	st := r.secrets.Stream(&teeWriter{r: r}, w)
	r.streams = append(r.streams, st)
	return st
}

// masked returns a writer that passes on what is written with secrets masked.
func (r *recorder) masked(w io.Writer) io.Writer {
	if r.secrets == nil {
		return w
	}
	st := r.secrets.Log(w)
	r.streams = append(r.streams, st)
	return st
}

// flush ends the writers that tee and masked returned.
func (r *recorder) flush() {
	for _, st := range r.streams {
		_ = st.Close()
	}
}

type teeWriter struct {
	r *recorder
	w io.Writer
}

func (t *teeWriter) Write(p []byte) (int, error) {
	t.r.add(p)
	if t.w != nil {
		if _, err := t.w.Write(p); err != nil {
			t.w = nil
		}
	}
	return len(p), nil
}

func (r *recorder) add(p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total += int64(len(p))
	if n := min(len(p), halfOutput-len(r.head)); n > 0 && !r.holed {
		r.head = append(r.head, p[:n]...)
		p = p[n:]
	}
	if len(p) > halfOutput {
		p = p[len(p)-halfOutput:]
	}
	if n := min(len(p), halfOutput-len(r.tail)); n > 0 {
		r.tail = append(r.tail, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(r.tail[r.next:], p)
		r.next = (r.next + n) % halfOutput
		p = p[n:]
	}
}

// skip counts bytes that came and are not there to be kept.
func (r *recorder) skip(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total += n
	r.holed = true
}

func (r *recorder) bytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total
}

// kept returns the first and the last bytes that were kept, and how many are
// missing between them.
func (r *recorder) kept() (head, tail []byte, cut int64) {
	tail = append(append([]byte(nil), r.tail[r.next:]...), r.tail[:r.next]...)
	return r.head, tail, r.total - int64(len(r.head)) - int64(len(tail))
}

// store writes the output as a blob; the cut, if any, is stated in it.
func (r *recorder) store(w *objects.Writer) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	head, tail, cut := r.kept()
	whole := append([]byte(nil), head...)
	if cut > 0 {
		whole = append(whole, fmt.Sprintf("\n[git env: %d bytes cut here; the output was longer than %d bytes]\n", cut, maxOutput)...)
	}
	whole = append(whole, tail...)
	if len(whole) == 0 {
		return objects.HashBlob(w.Format(), nil)
	}
	return w.Write(objects.KindBlob, whole)
}

// excerpt is what the note shows.
func (r *recorder) excerpt() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	head, tail, _ := r.kept()
	return notes.Excerpt(head, append(append([]byte(nil), head...), tail...), r.total)
}
