package notes

import (
	"bytes"
	"strconv"
	"strings"
	"time"
)

// Parse returns the records of a note in order. It never fails: text that is no
// record is passed over, a header it does not understand is kept in Extra, and
// of blocks with the same id the first counts.
func Parse(note []byte) []Record {
	var records []Record
	seen := map[string]bool{}
	p := parser{rest: note}
	for p.next() {
		id, ok := blockID(p.line)
		if !ok {
			continue
		}
		r := p.block(id)
		if !seen[id] {
			seen[id] = true
			records = append(records, r)
		}
	}
	return records
}

// blockID returns the id if a line begins a block.
func blockID(line []byte) (string, bool) {
	id, ok := bytes.CutPrefix(line, []byte("exec "))
	if !ok || len(id) < 8 || len(id) > 64 || id[0] < '0' || id[0] > '9' {
		return "", false
	}
	for _, c := range id {
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') {
			return "", false
		}
	}
	return string(id), true
}

// parser goes through a note line by line.
type parser struct {
	rest []byte
	line []byte // without its newline
}

func (p *parser) next() bool {
	if len(p.rest) == 0 {
		return false
	}
	line, rest, _ := bytes.Cut(p.rest, []byte("\n"))
	p.line, p.rest = bytes.TrimSuffix(line, []byte("\r")), rest
	return true
}

// peek returns the line that next would come to.
func (p *parser) peek() (line []byte, ok bool) {
	q := *p
	ok = q.next()
	return q.line, ok
}

// block reads what follows an exec line.
func (p *parser) block(id string) Record {
	r := Record{ID: id}
	var headers []Header
	for {
		line, ok := p.peek()
		if !ok || len(line) == 0 {
			break
		}
		if _, begins := blockID(line); begins {
			break
		}
		p.next()
		if line[0] == ' ' {
			if n := len(headers); n > 0 {
				headers[n-1].Value += "\n" + string(line[1:])
			}
			continue
		}
		key, value, _ := strings.Cut(string(line), " ")
		headers = append(headers, Header{key, value})
	}
	for _, h := range headers {
		if !r.set(h) && validKey(h.Key) {
			r.Extra = append(r.Extra, h)
		}
	}
	r.Excerpt = p.excerpt()
	return r
}

// excerpt reads indented lines. Lines that have lost their trailing spaces are
// blank; blank lines at the end part blocks and belong to none.
func (p *parser) excerpt() []byte {
	if line, ok := p.peek(); !ok || len(line) > 0 {
		return nil
	}
	p.next()
	var out bytes.Buffer
	blank := 0
	for {
		line, ok := p.peek()
		text, indented := bytes.CutPrefix(line, []byte(indent))
		if !ok || !indented && len(line) > 0 {
			return out.Bytes()
		}
		p.next()
		if !indented {
			blank++
			continue
		}
		for ; blank > 0; blank-- {
			out.WriteByte('\n')
		}
		out.Write(text)
		out.WriteByte('\n')
	}
}

// set takes over a header it understands.
func (r *Record) set(h Header) bool {
	switch h.Key {
	case "env":
		return setString(&r.Env, h.Value)
	case "command":
		return setString(&r.Command, h.Value)
	case "cwd":
		return setString(&r.Cwd, h.Value)
	case "isolation":
		return setString(&r.Isolation, h.Value)
	case "note":
		return setString(&r.Note, h.Value)
	case "limit":
		r.Limits = append(r.Limits, h.Value)
		return true
	case "signal":
		return setString(&r.Outcome.Signal, h.Value)
	case "interrupted":
		r.Outcome.Interrupted = h.Value == "yes"
		return r.Outcome.Interrupted
	case "exit":
		return setInt(&r.Outcome.Exit, h.Value)
	case "changed":
		return setInt(&r.Changed, h.Value)
	case "timeout":
		return setDuration(&r.Outcome.Timeout, h.Value)
	case "duration":
		return setDuration(&r.Duration, h.Value)
	case "started":
		t, err := time.Parse(time.RFC3339Nano, h.Value)
		if err == nil {
			r.Started = t.UTC()
		}
		return err == nil
	case "output":
		return r.setOutput(h.Value)
	}
	return false
}

func (r *Record) setOutput(value string) bool {
	size, id, _ := strings.Cut(value, " ")
	n, err := strconv.ParseInt(size, 10, 64)
	if err != nil || n < 0 || strings.Trim(id, "0123456789abcdef") != "" {
		return false
	}
	r.OutputBytes, r.OutputID = n, id
	return true
}

// setString keeps the first value: a second header of a name is no longer ours.
func setString(to *string, value string) bool {
	if *to != "" {
		return false
	}
	*to = value
	return true
}

func setInt(to *int, value string) bool {
	n, err := strconv.Atoi(value)
	if err != nil {
		return false
	}
	*to = n
	return true
}

func setDuration(to *time.Duration, value string) bool {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		return false
	}
	*to = d
	return true
}
