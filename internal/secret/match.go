package secret

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// Mask stands for a value that was taken out.
const Mask = "***"

// Set finds values. It never changes and is safe for concurrent use. A nil Set
// finds nothing.
//
// A text is looked through for the first four bytes of all needles at once, by
// way of a table that fits into the processor's first cache; only where one of
// them may begin is it compared.
type Set struct {
	needles []needle
	names   []string
	buckets map[uint32][]needle // by the first keySize bytes
	maybe   [1 << (maybeBits - 6)]uint64
	first   [256]bool // bytes that a needle begins with
	wraps   []needle
}

const (
	keySize   = MinValue
	maybeBits = 16
	// maxGap is how many bytes of line ends in a row may break an encoding that
	// wraps.
	maxGap = 2
)

// NewSet makes a Set of values; nil when there is none.
func NewSet(values []Value) *Set {
	if len(values) == 0 {
		return nil
	}
	s := &Set{buckets: map[uint32][]needle{}}
	for _, v := range values {
		s.names = append(s.names, v.Target())
		s.needles = append(s.needles, needles(v.Data, len(s.names)-1)...)
	}
	for _, n := range s.needles {
		k := keyOf(n.text)
		s.buckets[k] = append(s.buckets[k], n)
		h := hash(k)
		s.maybe[h>>6] |= 1 << (h & 63)
		s.first[n.text[0]] = true
		if n.wraps {
			s.wraps = append(s.wraps, n)
		}
	}
	return s
}

func keyOf(b []byte) uint32 {
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

func hash(key uint32) uint32 { return key * 0x9e3779b1 >> (32 - maybeBits) }

func (s *Set) may(key uint32) bool {
	h := hash(key)
	return s.maybe[h>>6]&(1<<(h&63)) != 0
}

// span is where a value stands in a text.
type span struct{ from, to, name int }

func isBreak(c byte) bool { return c == '\n' || c == '\r' }

// scan finds every needle in a text. partial is the first place from which on the
// rest of the text could be the beginning of a needle.
func (s *Set) scan(text []byte) (spans []span, partial int) {
	f := finder{set: s, text: text, partial: len(text)}
	var key, loose uint32     // of the last bytes, and of the last that break no line
	run, have, gap := 0, 0, 0 // bytes since the last break, bytes in loose, breaks since
	for i := 0; i < len(text); i++ {
		c := text[i]
		key = key<<8 | uint32(c)
		if i >= keySize-1 && s.may(key) {
			f.try(i-keySize+1, key, false)
		}
		if isBreak(c) {
			run = 0
			if gap++; gap > maxGap {
				have = 0
			}
			continue
		}
		gap = 0
		loose = loose<<8 | uint32(c)
		if have++; have >= keySize && loose != key && s.may(loose) {
			f.try(f.back(i), loose, true)
		}
		if run++; run < keySize {
			continue
		}
		// Within a line the two keys are the same: that is most of all time.
		for i++; i < len(text) && !isBreak(text[i]); i++ {
			key = key<<8 | uint32(text[i])
			if s.may(key) {
				f.try(i-keySize+1, key, false)
			}
		}
		loose = key
		i--
	}
	f.ends()
	return merge(f.spans), f.partial
}

type finder struct {
	set     *Set
	text    []byte
	spans   []span
	partial int
}

// try compares what begins at a place with the needles of a key.
func (f *finder) try(at int, key uint32, broken bool) {
	for _, n := range f.set.buckets[key] {
		if n.wraps || !broken {
			f.compare(at, n)
		}
	}
}

func (f *finder) compare(at int, n needle) {
	to, cut := n.at(f.text, at)
	switch {
	case to > 0:
		f.spans = append(f.spans, span{at, to, n.name})
	case cut:
		f.partial = min(f.partial, at)
	}
}

// at says where the needle ends that begins at a place of a text; 0 when it does
// not. cut says that the text ends before that is known.
func (n *needle) at(text []byte, at int) (to int, cut bool) {
	rest := text[at:]
	if !n.wraps {
		if len(rest) >= len(n.text) {
			if bytes.Equal(rest[:len(n.text)], n.text) {
				return at + len(n.text), false
			}
			return 0, false
		}
		return 0, bytes.HasPrefix(n.text, rest)
	}
	i, gap := 0, 0
	for j, c := range rest {
		if c == n.text[i] {
			gap = 0
			if i++; i == len(n.text) {
				return at + j + 1, false
			}
			continue
		}
		if gap++; i == 0 || !isBreak(c) || gap > maxGap {
			return 0, false
		}
	}
	return 0, i > 0
}

// back finds the place of the first of the last keySize bytes that break no line.
func (f *finder) back(i int) int {
	for n := 1; n < keySize; n++ {
		for i--; isBreak(f.text[i]); i-- {
		}
	}
	return i
}

// ends looks at the last few bytes, which are too few for a key.
func (f *finder) ends() {
	for i := max(0, len(f.text)-keySize+1); i < len(f.text); i++ {
		if f.set.first[f.text[i]] {
			for _, n := range f.set.needles {
				f.compare(i, n)
			}
		}
	}
	for i, n, gap := len(f.text)-1, 0, 0; i >= 0 && n < keySize-1; i-- {
		if isBreak(f.text[i]) {
			if gap++; gap > maxGap {
				return
			}
			continue
		}
		n, gap = n+1, 0
		if f.set.first[f.text[i]] {
			for _, w := range f.set.wraps {
				f.compare(i, w)
			}
		}
	}
}

// merge sorts spans and joins those that overlap.
func merge(spans []span) []span {
	if len(spans) < 2 {
		return spans
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Or(a.from-b.from, b.to-a.to) })
	out := spans[:1]
	for _, s := range spans[1:] {
		if last := &out[len(out)-1]; s.from < last.to {
			last.to = max(last.to, s.to)
			continue
		}
		out = append(out, s)
	}
	return out
}

// Redact masks the values in a text.
func (s *Set) Redact(text string) string {
	if s == nil {
		return text
	}
	spans, _ := s.scan([]byte(text))
	if len(spans) == 0 {
		return text
	}
	var b strings.Builder
	at := 0
	for _, sp := range spans {
		b.WriteString(text[at:sp.from])
		b.WriteString(Mask)
		at = sp.to
	}
	b.WriteString(text[at:])
	return b.String()
}

// Find returns what the first secret in a text is called inside, "" when there is
// none.
func (s *Set) Find(text []byte) string {
	if s == nil {
		return ""
	}
	if spans, _ := s.scan(text); len(spans) > 0 {
		return s.names[spans[0].name]
	}
	return ""
}
