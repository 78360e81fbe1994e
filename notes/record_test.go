package notes

import (
	"bytes"
	"fmt"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func sample() Record {
	return Record{
		ID: "01JDXYZ6W3K8ABCDEFGHJKMNPQ", Env: "fix-login", Command: "go test ./...", Cwd: "/workspace",
		Outcome: Outcome{Exit: 1}, Started: time.Date(2026, 1, 31, 18, 20, 11, 123e6, time.UTC),
		Duration: 1240 * time.Millisecond, Changed: 3, OutputBytes: 10234, OutputID: "3f2a",
		Excerpt: []byte("ok  \texample.com/x\t0.3s\n"),
	}
}

func TestEncode(t *testing.T) {
	r := sample()
	const want = `exec 01JDXYZ6W3K8ABCDEFGHJKMNPQ
env fix-login
command go test ./...
cwd /workspace
exit 1
started 2026-01-31T18:20:11.123Z
duration 1.240s
changed 3
output 10234 3f2a

    ok  	example.com/x	0.3s
`
	if got := string(r.Encode()); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestRoundTrip(t *testing.T) {
	for name, change := range map[string]func(*Record){
		"plain":            func(*Record) {},
		"signal":           func(r *Record) { r.Outcome = Outcome{Signal: "KILL"} },
		"timeout":          func(r *Record) { r.Outcome = Outcome{Timeout: 90 * time.Second} },
		"interrupted":      func(r *Record) { r.Outcome = Outcome{Interrupted: true} },
		"interrupted exit": func(r *Record) { r.Outcome = Outcome{Interrupted: true, Exit: 130} },
		"exit 0":           func(r *Record) { r.Outcome = Outcome{} },
		"lines":            func(r *Record) { r.Command = "sh -c 'a\n\n  b\nexec 01JDXYZ6W3K8ABCDEFGHJKMNPQ\n'" },
		"no output":        func(r *Record) { r.Excerpt, r.OutputBytes, r.OutputID = nil, 0, "" },
		"blank output":     func(r *Record) { r.Excerpt = []byte("\n\n  \n\nx\n\n\n") },
		"looks like block": func(r *Record) { r.Excerpt = []byte("exec 01JDXYZ6W3K8ABCDEFGHJKMNPQ\nenv y\n\n    z\n") },
		"isolation":        func(r *Record) { r.Isolation = "basic" },
		"note":             func(r *Record) { r.Note = "output was cut" },
		"limits":           func(r *Record) { r.Outcome, r.Limits = Outcome{Signal: "KILL"}, []string{"memory 512m", "pids 200"} },
		"extra":            func(r *Record) { r.Extra = []Header{{"session", "a"}, {"x-y", "b\nc"}} },
		"zero":             func(r *Record) { *r = Record{ID: r.ID, Started: r.Started} },
	} {
		t.Run(name, func(t *testing.T) {
			r := sample()
			change(&r)
			next := sample()
			next.ID = "01JDXYZ6W3K8ABCDEFGHJKMNPR"
			note := join(r.Encode(), next.Encode())
			got := Parse(note)
			if len(got) != 2 || !reflect.DeepEqual(got[0], r) || !reflect.DeepEqual(got[1], next) {
				t.Errorf("got  %+v\nwant %+v\nnote\n%s", got, r, note)
			}
		})
	}
}

func TestParseTolerates(t *testing.T) {
	a, b := sample(), sample()
	b.ID, b.Excerpt = "01JDXYZ6W3K8ABCDEFGHJKMNPR", []byte("one\n\n\ntwo\n")
	blockA, blockB := string(a.Encode()), string(b.Encode())
	for name, c := range map[string]struct{ note, ids string }{
		"empty":             {"", ""},
		"foreign":           {"Reviewed-by: me\n\nexec summary\nexec\nexec \n", ""},
		"foreign around":    {"hello\n" + blockA + "\nhello\n    there\n" + blockB + "bye\n", "PQ PR"},
		"union merge":       {blockA + "\n" + blockA + "\n" + blockB, "PQ PR"},
		"no blank between":  {blockA + blockB, "PQ PR"},
		"carriage returns":  {strings.ReplaceAll(blockA+"\n"+blockB, "\n", "\r\n"), "PQ PR"},
		"stripped":          {strings.ReplaceAll(blockA+"\n"+blockB, "    \n", "\n"), "PQ PR"},
		"cut in header":     {blockA[:40] + "\n" + blockB, "PQ PR"},
		"no newline":        {strings.TrimSuffix(blockA, "\n"), "PQ"},
		"only the id":       {"exec 01JDXYZ6W3K8ABCDEFGHJKMNPQ", "PQ"},
		"id after headers":  {strings.Split(blockA, "\n\n")[0] + "\n" + blockB, "PQ PR"},
		"starts with blank": {"\n\n    x\n" + blockA, "PQ"},
	} {
		t.Run(name, func(t *testing.T) {
			var ids []string
			for _, r := range Parse([]byte(c.note)) {
				ids = append(ids, r.ID[24:])
				if r.ID == b.ID && string(r.Excerpt) != string(b.Excerpt) {
					t.Errorf("excerpt %q", r.Excerpt)
				}
			}
			if got := strings.Join(ids, " "); got != c.ids {
				t.Errorf("got %q, want %q", got, c.ids)
			}
		})
	}
	odd := Parse([]byte("exec 01JDXYZ6W3K8ABCDEFGHJKMNPQ\nexit many\nstarted now\nchanged 1\noutput x\nenv a\nenv b\nnew thing\nUPPER x\n"))
	want := []Record{{ID: a.ID, Env: "a", Changed: 1, Extra: []Header{{"exit", "many"}, {"started", "now"}, {"output", "x"}, {"env", "b"}, {"new", "thing"}}}}
	if !reflect.DeepEqual(odd, want) {
		t.Errorf("got %+v", odd)
	}
}

func FuzzParse(f *testing.F) {
	r := sample()
	f.Add(r.Encode())
	f.Add([]byte("exec 01JDXYZ6W3K8ABCDEFGHJKMNPQ\n x\ncommand a\n b\n\n\n    \n\nx\n    y"))
	f.Add([]byte("exec 01JDXYZ6\nexit -1\ntimeout 1h\nduration 99999999h\nstarted 0000-01-01T00:00:00Z\nsignal \n\n\t"))
	f.Add([]byte("\r\n\x00\xff\x1b[31mexec 0\n{\"v\":1,\"env\":\"a\"}\n"))
	f.Fuzz(func(t *testing.T, note []byte) {
		ParseStates(note)
		for _, r := range Parse(note) {
			block := r.Encode()
			if bytes.ContainsAny(block, "\x00\x1b\r") {
				t.Errorf("unsafe bytes in %q", block)
			}
			again := Parse(block)
			if len(again) != 1 || again[0].ID != r.ID {
				t.Fatalf("%q gives %+v", block, again)
			}
			// What has once been made safe stays as it is.
			if second := again[0].Encode(); !bytes.Equal(second, block) {
				t.Errorf("first  %q\nsecond %q", block, second)
			}
		}
	})
}

func FuzzSafe(f *testing.F) {
	f.Add([]byte("\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b\x1b[m[31m a\rb\r\r\nc\x00\u009b\u202e\xff\xc3"))
	f.Fuzz(func(t *testing.T, in []byte) {
		out := safe(in)
		if !utf8.Valid(out) || bytes.ContainsAny(out, "\x00\x07\x08\r\x1b\x7f\u009b\u202e") {
			t.Errorf("unsafe: %q", out)
		}
		if again := safe(out); !bytes.Equal(again, out) {
			t.Errorf("safe(%q) = %q", out, again)
		}
	})
}

func TestExcerpt(t *testing.T) {
	const part = excerptPart
	long := func(n int) string { return strings.Repeat("abcdefgh ü\n", n/11+1)[:n] }
	for name, c := range map[string]struct{ output, want string }{
		"empty":      {"", ""},
		"short":      {"x", "x\n"},
		"exact":      {long(2 * part), long(2*part) + "\n"},
		"one more":   {strings.Repeat("x", part) + "y" + strings.Repeat("z", part), strings.Repeat("x", part) + "\n[... 1 bytes cut ...]\n" + strings.Repeat("z", part) + "\n"},
		"within ü":   {strings.Repeat("x", part-1) + "üü" + strings.Repeat("z", part-1), strings.Repeat("x", part-1) + "\n[... 4 bytes cut ...]\n" + strings.Repeat("z", part-1) + "\n"},
		"binary":     {"a\x00b\xff\xfe\x7f\x08", "a^@b\ufffd\ufffd^?^H\n"},
		"colours":    {"\x1b[1;31mred\x1b[0m \x1b]8;;http://x\x1b\\link\x1b]8;;\x07\n", "red link\n"},
		"broken esc": {"\x1b[31", "^[[31\n"},
		"returns":    {"10%\r20%\r\ndone\r\r\n\r", "10%\n20%\ndone\n\n"},
		"c1, bidi":   {"a\u009b31mb\u202ec", "a\ufffd31mb\ufffdc\n"},
	} {
		t.Run(name, func(t *testing.T) {
			out := []byte(c.output)
			n := len(out)
			// However much of it the caller has kept, the result is the same.
			for _, keep := range []int{part, n, 2 * part} {
				head, tail := out[:min(keep, n)], out[max(0, n-keep):]
				if got := string(Excerpt(head, tail, int64(n))); got != c.want {
					t.Errorf("keep %d: got %.100q … (%d), want %.100q … (%d)", keep, got, len(got), c.want, len(c.want))
				}
			}
			if got := string(Excerpt(out, nil, int64(n))); got != c.want {
				t.Errorf("head alone: got %.100q", got)
			}
		})
	}
	if got := string(Excerpt([]byte("ab"), []byte("yz"), 1000)); got != "ab\n[... 996 bytes cut ...]\nyz\n" {
		t.Errorf("got %q", got)
	}
	if got := Excerpt([]byte("ab"), nil, -1); len(got) != 0 {
		t.Errorf("got %q", got)
	}
}

func TestQuote(t *testing.T) {
	for _, argv := range [][]string{
		{"go", "test", "./..."}, {""}, {"a b", "it's", `\`, "$x", "`", "~", "*", "é", "a=b", "--x=y", "#", "!"},
		{"A=b", "x"}, {"sh", "-c", "a\nb"}, {"\x1b[31m", "a\rb", "\xff\x01'\\", "\u202e", "tab\there"}, {"-"},
	} {
		line := Quote(argv)
		if string(safe([]byte(line))) != line {
			t.Errorf("%q is not safe", line)
		}
		if strings.Contains(line, "$'") {
			continue // not every sh knows it
		}
		out, err := exec.Command("sh", "-c", `printf '%s\0' `+line).Output()
		if want := strings.Join(argv, "\x00") + "\x00"; err != nil || string(out) != want {
			t.Errorf("%s gives %q, %v", line, out, err)
		}
	}
	if got := Quote([]string{"a\rb'\x1b\xff", "c"}); got != `$'a\rb\'\033\377' c` {
		t.Errorf("got %s", got)
	}
	if got := Quote([]string{"go", "test", "-run=X", "./..."}); got != "go test -run=X ./..." {
		t.Errorf("got %s", got)
	}
}

func TestNewID(t *testing.T) {
	now := time.Now()
	a, b := NewID(now), NewID(now.Add(time.Millisecond))
	if _, ok := blockID([]byte("exec " + a)); !ok || len(a) != 26 || a >= b || a == NewID(now) {
		t.Errorf("ids %s, %s", a, b)
	}
}

func TestState(t *testing.T) {
	s := State{
		Env: "a", Updated: time.Date(2026, 1, 2, 3, 4, 5, 6789e3, time.FixedZone("", 3600)), Base: "b",
		Config: map[string]any{"z": "<&>", "a": 1.5}, Image: Image{Ref: "golang:1.26"}, Title: "é\n",
	}
	line, err := s.Line()
	const want = `{"v":1,"env":"a","updated":"2026-01-02T02:04:05.006Z","base":"b","config":{"a":1.5,"z":"<&>"},"image":{"ref":"golang:1.26","digest":""},"title":"é\n"}` + "\n"
	if err != nil || string(line) != want {
		t.Errorf("got %s, %v", line, err)
	}
	later := s
	later.Updated, later.Title = s.Updated.Add(time.Second), "new"
	lineB, _ := later.Line()
	note := fmt.Sprintf("text\n{bad\n{}\n\n%s%s%s", lineB, line, `{"v":2,"env":"b","future":1}`)
	states := ParseStates([]byte(note))
	if len(states) != 3 || states[2].V != 2 {
		t.Errorf("got %+v", states)
	}
	if n, ok := Newest(states, "a"); !ok || n.Title != "new" {
		t.Errorf("newest %+v", n)
	}
	if _, ok := Newest(states, "c"); ok {
		t.Error("a state of an unknown environment")
	}
	if _, err := (&State{Config: map[string]any{"f": func() {}}}).Line(); err == nil {
		t.Error("no error")
	}
}
