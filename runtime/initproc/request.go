package initproc

import (
	"encoding/binary"
	"errors"
)

// Request asks for one command. On its connection, a stream, it goes first: its
// length in four bytes, with the descriptors of the standard streams attached
// (see Streams), then its bytes. The answer is one Reply: ReplyStarted with a
// pidfd attached, followed by ReplyEnded when the process has ended, or
// ReplyFailed. Numbers are big-endian.
type Request struct {
	// Args has the command and its arguments; the command is looked up in the
	// PATH of Env unless it has a slash.
	Args []string
	Env  []string
	// Cwd is absolute.
	Cwd string
	// UID, GID and Groups are whom the command runs as.
	UID, GID uint32
	Groups   []uint32
	// Streams says which descriptors are attached.
	Streams Streams
}

// Streams says how a command's standard streams come.
type Streams byte

const (
	// StreamsOutput is two pipes: standard output and standard error. Standard
	// input is empty.
	StreamsOutput Streams = iota
	// StreamsAll is three pipes: standard input, output and error.
	StreamsAll
	// StreamsTerminal is a terminal, which becomes the controlling one.
	StreamsTerminal
)

// Count is how many descriptors are attached.
func (s Streams) Count() int { return [...]int{2, 3, 1}[s] }

// MaxRequest bounds a request in bytes: more than the kernel takes as arguments
// and environment of a program.
const MaxRequest = 8 << 20

// requestVersion is the first byte of a request.
const requestVersion = 1

var errMalformed = errors.New("malformed request")

// Encode appends the request's bytes, without its length, to b.
func (r *Request) Encode(b []byte) []byte {
	b = append(b, requestVersion, byte(r.Streams))
	for _, n := range []uint32{r.UID, r.GID, uint32(len(r.Groups))} {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	for _, g := range r.Groups {
		b = binary.BigEndian.AppendUint32(b, g)
	}
	b = appendString(b, r.Cwd)
	for _, list := range [][]string{r.Args, r.Env} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(list)))
		for _, s := range list {
			b = appendString(b, s)
		}
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

// Decode reads what Encode wrote. It fails for a request of another version and
// for one that says more than it holds.
func (r *Request) Decode(b []byte) error {
	if len(b) < 2 || b[0] != requestVersion || b[1] > byte(StreamsTerminal) {
		return errMalformed
	}
	d := decoder{rest: b[2:]}
	*r = Request{Streams: Streams(b[1]), UID: d.number(), GID: d.number()}
	for range d.count() {
		r.Groups = append(r.Groups, d.number())
	}
	r.Cwd = d.text()
	for range d.count() {
		r.Args = append(r.Args, d.text())
	}
	for range d.count() {
		r.Env = append(r.Env, d.text())
	}
	if d.bad || len(d.rest) > 0 || len(r.Args) == 0 {
		return errMalformed
	}
	return nil
}

// decoder takes a request apart; after a failure everything is zero.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) number() uint32 {
	if len(d.rest) < 4 {
		d.bad, d.rest = true, nil
		return 0
	}
	n := binary.BigEndian.Uint32(d.rest)
	d.rest = d.rest[4:]
	return n
}

// count is a number of things that take four bytes each at least.
func (d *decoder) count() int {
	n := d.number()
	if uint64(n)*4 > uint64(len(d.rest)) {
		d.bad, d.rest = true, nil
		return 0
	}
	return int(n)
}

func (d *decoder) text() string {
	n := d.number()
	if uint64(n) > uint64(len(d.rest)) {
		d.bad, d.rest = true, nil
		return ""
	}
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	return s
}

// ReplyKind says what a Reply tells.
type ReplyKind byte

// Kinds of replies.
const (
	ReplyStarted ReplyKind = 's' // a pidfd is attached
	ReplyFailed  ReplyKind = 'f' // Stage and Value, an errno
	ReplyEnded   ReplyKind = 'e' // Value is the wait status
)

// Stage says what a start failed at.
type Stage byte

// Stages of a start.
const (
	// StageRequest: the request was not understood, or this process cannot run
	// commands; nothing was tried.
	StageRequest Stage = iota
	// StageDirectory: the working directory.
	StageDirectory
	// StageLookup: the command was not found in PATH.
	StageLookup
	// StageExec: the command's file, or the making of the process.
	StageExec
)

// ReplySize is the length of an encoded Reply.
const ReplySize = 6

// Reply is what is answered on a command's connection.
type Reply struct {
	Kind  ReplyKind
	Stage Stage
	Value uint32
}

// Encode returns the reply's bytes.
func (r Reply) Encode() []byte {
	return binary.BigEndian.AppendUint32([]byte{byte(r.Kind), byte(r.Stage)}, r.Value)
}

// DecodeReply reads what Encode wrote.
func DecodeReply(b []byte) (Reply, error) {
	if len(b) != ReplySize {
		return Reply{}, errMalformed
	}
	r := Reply{Kind: ReplyKind(b[0]), Stage: Stage(b[1]), Value: binary.BigEndian.Uint32(b[2:])}
	switch r.Kind {
	case ReplyStarted, ReplyFailed, ReplyEnded:
		return r, nil
	}
	return Reply{}, errMalformed
}
