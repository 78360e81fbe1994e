package notes

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// excerptPart is how much of the beginning and of the end of an output is
// shown, in bytes.
const excerptPart = 8 << 10

// Excerpt returns what a record shows of an output of total bytes: all of it,
// or its first and last 8 KiB with a line between them that says how many bytes
// were cut. head is the beginning of the output and tail its end; they may
// overlap, and tail may be nil when head is everything. The result is safe for a
// terminal and ends in a newline unless it is empty.
func Excerpt(head, tail []byte, total int64) []byte {
	var out []byte
	switch overlap := int64(len(head)) + int64(len(tail)) - total; {
	case int64(len(head)) >= total:
		out = whole(head[:max(total, 0)])
	case overlap >= 0:
		out = whole(append(bytes.Clone(head), tail[overlap:]...))
	default:
		out = parts(head, tail, total)
	}
	return endLine(out)
}

func whole(output []byte) []byte {
	if len(output) <= 2*excerptPart {
		return safe(output)
	}
	return parts(output, output, int64(len(output)))
}

func parts(head, tail []byte, total int64) []byte {
	head = trimHead(head[:min(len(head), excerptPart)])
	tail = trimTail(tail[max(0, len(tail)-excerptPart):])
	out := endLine(safe(head))
	out = fmt.Appendf(out, "[... %d bytes cut ...]\n", total-int64(len(head))-int64(len(tail)))
	return append(out, safe(tail)...)
}

func endLine(b []byte) []byte {
	if len(b) > 0 && b[len(b)-1] != '\n' {
		b = append(b, '\n')
	}
	return b
}

// trimHead drops a character that the cut left incomplete at the end.
func trimHead(b []byte) []byte {
	for i := 1; i <= min(utf8.UTFMax, len(b)); i++ {
		if last := b[len(b)-i:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

// trimTail drops a character that the cut left incomplete at the beginning.
func trimTail(b []byte) []byte {
	for i := range min(utf8.UTFMax-1, len(b)) {
		if utf8.RuneStart(b[i]) {
			return b[i:]
		}
	}
	return b
}

// safe returns text that does nothing to a terminal but show itself. Newlines
// and tabs stay; carriage returns become newlines, so that nothing is hidden by
// overwriting; escape sequences that only style or move are dropped; any other
// control character is shown as ^X; what is no UTF-8, and what reorders text, is
// shown as U+FFFD. Applied twice it changes nothing more.
func safe(in []byte) []byte {
	out := make([]byte, 0, len(in))
	for i := 0; i < len(in); {
		c := in[i]
		switch {
		case c == '\n' || c == '\t' || c >= 0x20 && c < 0x7f:
			out = append(out, c)
			i++
		case c == '\r':
			for i < len(in) && in[i] == '\r' {
				i++
			}
			if i == len(in) || in[i] != '\n' {
				out = append(out, '\n')
			}
		case c == 0x1b:
			if n := escapeLen(in[i:]); n > 0 {
				i += n
				continue
			}
			out = append(out, '^', '[')
			i++
		case c < 0x20 || c == 0x7f:
			out = append(out, '^', c^0x40)
			i++
		default:
			r, n := utf8.DecodeRune(in[i:])
			if hidden(r) {
				r = utf8.RuneError
			}
			out = utf8.AppendRune(out, r)
			i += n
		}
	}
	return out
}

// hidden reports whether a character controls instead of showing: C1 controls
// and the ones that change the direction of text.
func hidden(r rune) bool {
	return r >= 0x80 && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 ||
		r == 0x200e || r == 0x200f || r == 0x061c || r == 0x2028 || r == 0x2029
}

// escapeLen returns the length of a complete control sequence (CSI), or of a
// command to the terminal such as a title or a link (OSC), at the beginning of
// b, else 0.
func escapeLen(b []byte) int {
	if len(b) < 3 {
		return 0
	}
	switch b[1] {
	case '[':
		for i := 2; i < len(b); i++ {
			switch c := b[i]; {
			case c >= 0x40 && c <= 0x7e:
				return i + 1
			case c < 0x20 || c > 0x3f:
				return 0
			}
		}
	case ']':
		for i := 2; i < len(b); i++ {
			switch c := b[i]; {
			case c == 0x07:
				return i + 1
			case c == 0x1b && i+1 < len(b) && b[i+1] == '\\':
				return i + 2
			case c < 0x20:
				return 0
			}
		}
	}
	return 0
}
