package secret

import (
	"bytes"
	"io"
	"sync"
	"time"
)

// patience is how long what could be the beginning of a value is kept from who
// watches: a prompt is not to wait for what comes after it.
const patience = 100 * time.Millisecond

// Stream masks values in what is written to it, however it is cut into writes.
// It is safe for concurrent use.
type Stream struct {
	set *Set
	// careful lets go of no more than a few bytes before it is known what they are.
	careful bool

	mu    sync.Mutex
	exact io.Writer   // guarded by mu
	live  io.Writer   // guarded by mu; nil when there is none, or no longer
	held  []byte      // the end of what was written, not decided; guarded by mu
	ahead int         // how much of held was passed to live already, guarded by mu
	timer *time.Timer // guarded by mu; nil until something was held
}

// Stream passes what is written on to two writers. exact gets it with every value
// masked, later if need be, up to Close. live, which may be nil, gets the same
// while it is being written: of a value that comes so slowly that its beginning
// had to be let go, only the rest is masked there. A live that fails is not
// written to again; exact must not fail.
func (s *Set) Stream(exact, live io.Writer) *Stream {
	return &Stream{set: s, exact: exact, live: live}
}

// Log passes what is written on with every value masked. It is for what somebody
// may read along: when nothing comes after what could be the beginning of a value,
// up to three bytes of it are let go, so that a line is seen to its end; no more.
func (s *Set) Log(w io.Writer) *Stream {
	return &Stream{set: s, exact: io.Discard, live: w, careful: true}
}

// Write takes all of p and never fails.
func (t *Stream) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := p
	if len(t.held) > 0 {
		text = append(t.held, p...)
	}
	spans, cut := t.set.scan(text)
	spans = before(spans, &cut)
	t.pass(text[:cut], spans)
	t.held = append([]byte(nil), text[cut:]...)
	if len(t.held) > t.ahead && t.live != nil {
		if t.timer == nil {
			t.timer = time.AfterFunc(patience, t.letGo)
		} else {
			t.timer.Reset(patience)
		}
	}
	return len(p), nil
}

// before keeps the spans that are decided, and moves cut to before one that it is
// within.
func before(spans []span, cut *int) []span {
	for i, s := range spans {
		if s.to > *cut {
			*cut = min(*cut, s.from)
			return spans[:i]
		}
	}
	return spans
}

// pass gives text to both writers; t.mu is held.
func (t *Stream) pass(text []byte, spans []span) {
	at := 0
	for _, s := range spans {
		t.plain(text, at, s.from)
		t.toExact([]byte(Mask))
		if s.to > t.ahead {
			t.toLive([]byte(Mask))
		}
		at = s.to
	}
	t.plain(text, at, len(text))
	t.ahead = max(0, t.ahead-len(text))
}

func (t *Stream) plain(text []byte, from, to int) {
	t.toExact(text[from:to])
	if from = max(from, t.ahead); from < to {
		t.toLive(text[from:to])
	}
}

func (t *Stream) toExact(p []byte) {
	if len(p) > 0 {
		_, _ = t.exact.Write(p)
	}
}

func (t *Stream) toLive(p []byte) {
	if t.live == nil || len(p) == 0 {
		return
	}
	if _, err := t.live.Write(p); err != nil {
		t.live = nil
	}
}

// letGo shows what is held, with the values that are complete masked.
func (t *Stream) letGo() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.careful && len(t.held)-bytes.Count(t.held, []byte{'\n'})-bytes.Count(t.held, []byte{'\r'}) >= keySize {
		return
	}
	spans, _ := t.set.scan(t.held)
	exact := t.exact
	t.exact = io.Discard
	ahead := len(t.held)
	t.pass(t.held, spans)
	t.exact, t.ahead = exact, ahead
}

// Close passes on what was held. Nothing is written to either writer afterwards.
func (t *Stream) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}
	spans, _ := t.set.scan(t.held)
	t.pass(t.held, spans)
	t.held, t.ahead, t.live, t.exact = nil, 0, nil, io.Discard
	return nil
}

// Found is the error of a Reader that came upon a value.
type Found struct {
	// Name is what the secret is called inside; "" when that is not known any more.
	Name string
}

// Error does not tell the value.
func (f *Found) Error() string {
	if f.Name == "" {
		return "it had the value of a secret in it and was not changed since"
	}
	return "it has the value of secret '" + f.Name + "' in it"
}

// Reader passes r on until a value was read in whole: then it fails with a *Found.
// A nil Set returns r itself.
func (s *Set) Reader(r io.Reader) io.Reader {
	if s == nil {
		return r
	}
	return &reader{set: s, r: r}
}

type reader struct {
	set  *Set
	r    io.Reader
	held []byte
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if n == 0 {
		return n, err
	}
	text := p[:n]
	if len(r.held) > 0 {
		text = append(r.held, text...)
	}
	spans, partial := r.set.scan(text)
	if len(spans) > 0 {
		return 0, &Found{r.set.names[spans[0].name]}
	}
	r.held = append([]byte(nil), text[partial:]...)
	return n, err
}
