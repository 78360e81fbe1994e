package environment

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func testLog(t *testing.T) *procLog {
	t.Helper()
	l, err := newProcLog(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// told is what a view of a log shows.
func told(t *testing.T, r *logReader, v logView) (stdout, stderr string, warned int) {
	t.Helper()
	var out, errs bytes.Buffer
	if err := r.tell(v, &out, &errs, func(string) { warned++ }); err != nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), warned
}

func TestProcLogStreams(t *testing.T) {
	l := testLog(t)
	r := &logReader{dir: l.dir}
	defer r.close()
	all := logView{lines: -1}
	if out, errs, _ := told(t, r, all); out+errs != "" {
		t.Fatalf("an empty log told %q %q", out, errs)
	}
	fmt.Fprint(l.stream(streamStdout), "a\nb\n")
	fmt.Fprint(l.stream(streamStderr), "c\n")
	if out, errs, _ := told(t, r, all); out != "a\nb\n" || errs != "c\n" {
		t.Fatalf("told %q %q", out, errs)
	}
	later := time.Now()
	fmt.Fprint(l.stream(streamStdout), "d\ne")
	if out, errs, _ := told(t, r, all); out != "d\ne" || errs != "" {
		t.Fatalf("a reader that went on was told %q %q", out, errs)
	}
	for lines, want := range map[int]string{-1: "a\nb\nd\ne|c\n", 0: "|", 1: "e|", 2: "d\ne|", 3: "d\ne|c\n", 4: "b\nd\ne|c\n", 9: "a\nb\nd\ne|c\n"} {
		out, errs, _ := told(t, &logReader{dir: l.dir}, logView{lines: lines})
		if got := out + "|" + errs; got != want {
			t.Errorf("the last %d lines: %q, not %q", lines, got, want)
		}
	}
	if out, errs, _ := told(t, &logReader{dir: l.dir}, logView{lines: -1, since: later}); out != "d\ne" || errs != "" {
		t.Errorf("since then: %q %q", out, errs)
	}
	l.end()
	if _, ended := l.more(); !ended {
		t.Error("a log that has ended says that more comes")
	}
}

// TestProcLogBounded prints more than is kept: the first and the last are there,
// the disk is not filled, and the cut is told of and counted.
func TestProcLogBounded(t *testing.T) {
	l := testLog(t)
	w := l.stream(streamStdout)
	block := bytes.Repeat([]byte("x"), 100<<10)
	fmt.Fprint(w, "first")
	printed := int64(len("first") + len("last"))
	for range 200 {
		_, _ = w.Write(block)
		printed += int64(len(block))
	}
	fmt.Fprint(w, "last")
	l.end()
	var disk int64
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		disk += fi.Size()
	}
	if disk > 10<<20 {
		t.Errorf("%d bytes are kept", disk)
	}
	out, _, warned := told(t, &logReader{dir: l.dir}, logView{lines: -1})
	if !strings.HasPrefix(out, "firstx") || !strings.HasSuffix(out, "xlast") || warned != 1 {
		t.Errorf("told %d bytes with %d warnings", len(out), warned)
	}
	rec, err := recorderOf(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	head, tail, cut := rec.kept()
	if rec.bytes() != printed || cut != printed-int64(len(head)+len(tail)) || cut == 0 {
		t.Errorf("recorded %d of %d bytes, cut %d", rec.bytes(), printed, cut)
	}
	if !bytes.HasPrefix(head, []byte("firstx")) || !bytes.HasSuffix(tail, []byte("xlast")) || len(tail) != halfOutput {
		t.Errorf("recorded %d and %d bytes", len(head), len(tail))
	}
}

// TestProcLogTorn reads a log whose writer died in the middle of a frame.
func TestProcLogTorn(t *testing.T) {
	l := testLog(t)
	fmt.Fprint(l.stream(streamStdout), "whole")
	fmt.Fprint(l.stream(streamStdout), "torn")
	l.end()
	file := l.segment(0)
	fi, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, fi.Size()-2); err != nil {
		t.Fatal(err)
	}
	if out, _, _ := told(t, &logReader{dir: l.dir}, logView{lines: -1}); out != "whole" {
		t.Errorf("told %q", out)
	}
}

// TestProcLogFull goes on after a write that failed, and counts what is lost.
func TestProcLogFull(t *testing.T) {
	l := testLog(t)
	w := l.stream(streamStdout)
	fmt.Fprint(w, "before")
	_ = l.f.Close() // the next write fails
	fmt.Fprint(w, "lost")
	if l.err == nil {
		t.Fatal("the write did not fail")
	}
	if n, err := io.WriteString(w, "after"); n != 5 || err != nil {
		t.Fatalf("a process would have been told of %d, %v", n, err)
	}
	out, _, warned := told(t, &logReader{dir: l.dir}, logView{lines: -1})
	if out != "beforeafter" || warned != 1 {
		t.Errorf("told %q with %d warnings", out, warned)
	}
	if rec, err := recorderOf(l.dir); err != nil || rec.bytes() != int64(len("beforelostafter")) {
		t.Errorf("recorded %d bytes, %v", rec.bytes(), err)
	}
}

func TestProcessName(t *testing.T) {
	for name, ok := range map[string]bool{"": true, "web": true, "a.b-c_1": true, "-a": false, "a-": false, "a b": false, "ä": false, "a/b": false, strings.Repeat("a", 64): false} {
		if err := checkProcName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}
