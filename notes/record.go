package notes

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
)

// timeFormat is how times are written, always in UTC.
const timeFormat = "2006-01-02T15:04:05.000Z"

// indent precedes every line of output in a block.
const indent = "    "

// Outcome says how an exec ended. At most one of Timeout and Signal is set;
// Exit counts only when neither is.
type Outcome struct {
	Exit int
	// Signal is a name without SIG, such as KILL.
	Signal string
	// Timeout is the limit that the exec exceeded.
	Timeout time.Duration
	// Interrupted marks an exec whose supervisor did not live to see the end; if
	// nothing else is set, how it ended is not known.
	Interrupted bool
}

// Header is a line of a block that this version does not know.
type Header struct{ Key, Value string }

// Record is one exec.
type Record struct {
	// ID is a ULID, see NewID.
	ID, Env, Command, Cwd string
	Outcome               Outcome
	// Started is kept in milliseconds, Duration too.
	Started  time.Time
	Duration time.Duration
	// Changed is the number of paths committed by this exec.
	Changed int
	// OutputBytes is the length of the whole output, OutputID its blob, empty if
	// it was not kept.
	OutputBytes int64
	OutputID    string
	// Limits are the limits that it ran into, each a name and its value, such as
	// "memory 512m".
	Limits []string
	// Isolation is how far root inside was from root of the machine, such as "basic";
	// empty when it was not said.
	Isolation string
	// Note is a remark of ours for the reader, one line.
	Note  string
	Extra []Header
	// Excerpt is the output as shown, see the function Excerpt. If not empty it
	// ends in a newline after a round trip.
	Excerpt []byte
}

// NewID returns an id for an exec that started at t: a ULID, which sorts by
// time and is unique across machines.
func NewID(t time.Time) string {
	// crypto/rand does not fail, and the time is in range until the year 10889.
	return ulid.MustNew(ulid.Timestamp(t), rand.Reader).String()
}

// Encode returns the block, ending in a newline.
func (r *Record) Encode() []byte {
	var b bytes.Buffer
	writeHeader(&b, "exec", r.ID)
	writeHeader(&b, "env", r.Env)
	writeHeader(&b, "command", r.Command)
	writeHeader(&b, "cwd", r.Cwd)
	r.Outcome.encode(&b)
	for _, l := range r.Limits {
		writeHeader(&b, "limit", l)
	}
	writeHeader(&b, "started", r.Started.UTC().Format(timeFormat))
	writeHeader(&b, "duration", formatDuration(r.Duration))
	writeHeader(&b, "changed", strconv.Itoa(r.Changed))
	writeHeader(&b, "output", strings.TrimSuffix(fmt.Sprintf("%d %s", r.OutputBytes, r.OutputID), " "))
	if r.Isolation != "" {
		writeHeader(&b, "isolation", r.Isolation)
	}
	if r.Note != "" {
		writeHeader(&b, "note", r.Note)
	}
	for _, h := range r.Extra {
		if validKey(h.Key) {
			writeHeader(&b, h.Key, h.Value)
		}
	}
	text := safe(r.Excerpt)
	if len(text) == 0 {
		return b.Bytes()
	}
	b.WriteByte('\n')
	for line := range bytes.Lines(text) {
		b.WriteString(indent)
		b.Write(bytes.TrimSuffix(line, []byte("\n")))
		b.WriteByte('\n')
	}
	return b.Bytes()
}

func (o Outcome) encode(b *bytes.Buffer) {
	switch {
	case o.Timeout > 0:
		writeHeader(b, "timeout", o.Timeout.String())
	case o.Signal != "":
		writeHeader(b, "signal", o.Signal)
	case !o.Interrupted || o.Exit != 0:
		writeHeader(b, "exit", strconv.Itoa(o.Exit))
	}
	if o.Interrupted {
		writeHeader(b, "interrupted", "yes")
	}
}

// writeHeader continues a value of several lines with a space.
func writeHeader(b *bytes.Buffer, key, value string) {
	b.WriteString(key)
	b.WriteByte(' ')
	b.WriteString(strings.ReplaceAll(string(safe([]byte(value))), "\n", "\n "))
	b.WriteByte('\n')
}

// formatDuration gives seconds with milliseconds, as time(1) does.
func formatDuration(d time.Duration) string {
	return strconv.FormatFloat(d.Round(time.Millisecond).Seconds(), 'f', 3, 64) + "s"
}

// validKey reports whether a header key would be read back.
func validKey(key string) bool {
	return key != "" && key != "exec" && strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}
