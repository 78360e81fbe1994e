package settings

import (
	"bytes"
	"strings"
)

// place is where a file sets a key.
type place struct {
	key  string // section and key in lower case, the subsection as it is
	line int    // from 1
}

// places finds the lines on which a file in git-config syntax sets its keys, in
// their order. It is for messages alone: what the file means is git's to say.
func places(file []byte) []place {
	s := scanner{in: bytes.TrimPrefix(file, []byte("\xef\xbb\xbf")), line: 1}
	for s.more() {
		switch c := s.peek(); {
		case c == '#' || c == ';':
			s.skipLine()
		case c == '[':
			s.next()
			s.section()
		case isLetter(c):
			at := s.line
			name := s.word()
			s.found = append(s.found, place{s.prefix + strings.ToLower(name), at})
			s.value()
		default:
			s.next()
		}
	}
	return s.found
}

type scanner struct {
	in     []byte
	pos    int
	line   int
	prefix string // of the section, with its dot
	found  []place
}

func (s *scanner) more() bool { return s.pos < len(s.in) }
func (s *scanner) peek() byte { return s.in[s.pos] }

func (s *scanner) next() byte {
	c := s.in[s.pos]
	s.pos++
	if c == '\n' {
		s.line++
	}
	return c
}

func (s *scanner) skipLine() {
	for s.more() && s.next() != '\n' {
	}
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

func (s *scanner) word() string {
	start := s.pos
	for s.more() && (isLetter(s.peek()) || s.peek() >= '0' && s.peek() <= '9' || s.peek() == '-') {
		s.pos++
	}
	return string(s.in[start:s.pos])
}

// section reads what follows "[": a name, and perhaps a quoted subsection.
func (s *scanner) section() {
	var name, sub []byte
	quoted := false
	for s.more() && s.peek() != '\n' {
		c := s.next()
		switch {
		case c == ']' && !quoted:
			s.prefix = strings.ToLower(strings.TrimSpace(string(name))) + "."
			if sub != nil {
				s.prefix += string(sub) + "."
			}
			return
		case c == '"':
			if !quoted {
				sub = []byte{}
			}
			quoted = !quoted
		case quoted && c == '\\' && s.more():
			sub = append(sub, s.next())
		case quoted:
			sub = append(sub, c)
		default:
			name = append(name, c)
		}
	}
}

// value reads to the end of a value: over escaped ends of lines, and quotes, in
// which a comment does not begin.
func (s *scanner) value() {
	quoted := false
	for s.more() {
		switch c := s.next(); {
		case c == '\n':
			return
		case c == '\\' && s.more():
			if s.next() == '\r' && s.more() && s.peek() == '\n' {
				s.next()
			}
		case c == '"':
			quoted = !quoted
		case (c == '#' || c == ';') && !quoted:
			s.skipLine()
			return
		}
	}
}
