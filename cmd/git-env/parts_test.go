package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/client"
	"github.com/git-env/git-env/internal/wire"
	"github.com/git-env/git-env/notes"
)

func TestCutRest(t *testing.T) {
	before, rest, split := cutRest([]string{"run", "e", "--", "a", "--", "b"})
	if !split || !reflect.DeepEqual(before, []string{"run", "e"}) || !reflect.DeepEqual(rest, []string{"a", "--", "b"}) {
		t.Error(before, rest, split)
	}
	if _, rest, split = cutRest([]string{"run"}); split || rest != nil {
		t.Error(rest, split)
	}
}

func TestRunParams(t *testing.T) {
	a := newApp(nil, nil, nil)
	a.environ = []string{"SET=1", "SET=2=3"}
	a.rest = []string{"echo", "", "a b"}
	c := runCmd{Var: []string{"K=V=W", "SET", "UNSET", "EMPTY=", "LIST=a,b"}, Message: "m", Workdir: "d", Timeout: time.Minute}
	p, err := c.params(a)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(p.Vars, []string{"K=V=W", "SET=2=3", "EMPTY=", "LIST=a,b"}) {
		t.Error(p.Vars)
	}
	if !reflect.DeepEqual(p.Args, a.rest) || p.Display != "" || p.Message != "m" || p.Workdir != "d" || p.Timeout != time.Minute {
		t.Errorf("%+v", p)
	}
	a.rest = nil
	if p, err = (&runCmd{Line: "a | b"}).params(a); err != nil || p.Display != "a | b" || p.Args[2] != "a | b" {
		t.Errorf("%+v %v", p, err)
	}
}

// The flags of run, given the way people give them.
func TestRunFlagsParse(t *testing.T) {
	for _, args := range []string{
		"run e -m -x -e A=1,2 -e B --timeout 90s -w /x -- cmd -h",
		"run -m=-x -eA=1,2 -eB --timeout=90s -w/x e -- cmd -h",
	} {
		var g grammar
		parser, err := newParser(&g)
		if err != nil {
			t.Fatal(err)
		}
		before, rest, _ := cutRest(strings.Fields(args))
		if _, err := parser.Parse(before); err != nil {
			t.Errorf("%s: %v", args, err)
			continue
		}
		r := g.Run
		r.Message = strings.TrimPrefix(r.Message, "=") // an attached short value is taken as it is, as by git
		if r.Env != "e" || r.Message != "-x" || !reflect.DeepEqual(r.Var, []string{"A=1,2", "B"}) || r.Timeout != 90*time.Second || r.Workdir != "/x" || len(rest) != 2 {
			t.Errorf("%s: %+v", args, r)
		}
	}
}

func TestSplitDiff(t *testing.T) {
	dir := newRepo(t)
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a := newApp(nil, nil, nil)
	a.dir = dir
	if err := a.open(context.Background()); err != nil {
		t.Fatal(err)
	}
	defer a.close()
	for _, c := range []struct{ args, env, rest string }{
		{"e --stat", "e", "--stat"}, {"--stat e", "", "--stat e"}, {"", "", ""}, {"-- file", "", "-- file"},
		{"file", "", "file"}, {"e", "e", ""}, {"e file", "e", "file"},
	} {
		env, rest := a.splitDiff(strings.Fields(c.args))
		if env != c.env || strings.Join(rest, " ") != c.rest {
			t.Errorf("%q: %q %q", c.args, env, rest)
		}
	}
}

func TestUsageLines(t *testing.T) {
	parser, err := newParser(&grammar{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ cmd, want string }{
		{"path", "usage: git env path [<env>]"},
		{"diff", "usage: git env diff [<env>] [<git diff args>…]"},
		{"delete", "usage: git env delete <env>… [--force] [--json]"},
		{"apply", "usage: git env apply [<env>] [--stash | --abort] [-- <path>…]"},
		{"checkout", "usage: git env checkout [<env>] [-b <branch>]"},
	} {
		node, err := findNode(parser.Model.Node, []string{c.cmd})
		if err != nil {
			t.Fatal(err)
		}
		if got := usageLines(node, 0); got != c.want {
			t.Errorf("%q", got)
		}
	}
	for _, node := range shown(parser.Model.Node) {
		for _, line := range strings.Split(usageLines(node, 0), "\n") {
			if len([]rune(line)) > lineWidth {
				t.Errorf("too long: %q", line)
			}
		}
	}
}

func TestManualPages(t *testing.T) {
	one, two := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	for _, dir := range []string{one, two} {
		if r := call(t, t.TempDir(), "man", dir); r.code != 0 || r.stderr != "" {
			t.Fatalf("%+v", r)
		}
	}
	entries, err := os.ReadDir(one)
	if err != nil {
		t.Fatal(err)
	}
	parser, err := newParser(&grammar{})
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(shown(parser.Model.Node))+1 { // and git-env itself
		t.Errorf("%d pages", len(entries))
	}
	for _, e := range entries {
		a, _ := os.ReadFile(filepath.Join(one, e.Name()))
		b, _ := os.ReadFile(filepath.Join(two, e.Name()))
		if !bytes.Equal(a, b) || !bytes.HasPrefix(a, []byte(".TH ")) {
			t.Errorf("%s is not what it should be", e.Name())
		}
		for _, line := range strings.Split(string(a), "\n") {
			if strings.HasPrefix(line, "'") {
				t.Errorf("%s: a line that is no text: %q", e.Name(), line)
			}
		}
	}
}

func TestOutcomes(t *testing.T) {
	for want, o := range map[string]notes.Outcome{
		"exit 0": {}, "exit 3": {Exit: 3}, "signal KILL": {Signal: "KILL"}, "timeout 30s": {Timeout: 30 * time.Second, Exit: 124},
		"interrupted": {Interrupted: true},
	} {
		if got := outcome(o); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		e := execOf(notes.Record{Outcome: o}, "c")
		if got := e.outcome(); got != want {
			t.Errorf("from JSON: %q, want %q", got, want)
		}
	}
}

func TestSince(t *testing.T) {
	now := time.Now()
	for want, d := range map[string]time.Duration{
		"1 second ago": time.Second, "89 minutes ago": 89 * time.Minute, "2 hours ago": 2 * time.Hour, "3 days ago": 72 * time.Hour,
	} {
		if got := since(now.Add(-d), now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestRows(t *testing.T) {
	got := rows([]environment.Summary{
		{Name: "a", State: "ready", Ahead: 2, Behind: 1, Image: "host", Title: "T"},
		{Name: "b", State: "damaged", Error: "why"},
	}, time.Now())
	if strings.Join(got[0], "|") != "a|+2 -1|host||T" || strings.Join(got[1], "|") != "b|damaged|||why" {
		t.Error(got)
	}
}

func TestOneline(t *testing.T) {
	var out bytes.Buffer
	err := oneline(&out, []environment.Entry{{Commit: "0123456789abcdef", Subject: "S", Records: []notes.Record{{ID: "01X", Command: "a\nb"}}}})
	if err != nil || out.String() != "0123456789 S\n    01X  exit 0  a …\n" {
		t.Errorf("%q %v", out.String(), err)
	}
}

func TestSecondInterruptKills(t *testing.T) {
	a := newApp(nil, nil, &bytes.Buffer{})
	cancelled := false
	r := &relay{app: a, term: &terminal{}, control: make(chan client.Control, 16), cancel: func() { cancelled = true }, bar: a.progress()}
	now := time.Now()
	r.signal(syscall.SIGINT, now)
	r.signal(syscall.SIGINT, now.Add(3*time.Second))
	r.signal(syscall.SIGTERM, now.Add(3*time.Second))
	if cancelled {
		t.Error("gave up too early")
	}
	r.signal(syscall.SIGINT, now.Add(4*time.Second))
	r.term.start()
	cancelled = false
	r.signal(syscall.SIGINT, now.Add(5*time.Second))
	r.signal(syscall.SIGQUIT, now.Add(5*time.Second))
	close(r.control)
	var got []string
	for c := range r.control {
		got = append(got, c.Signal)
	}
	if strings.Join(got, " ") != "INT INT TERM INT KILL QUIT" || cancelled {
		t.Error(got, cancelled)
	}
}

// A reader that went away is told to the command, with growing force while it
// goes on writing.
func TestBrokenOutput(t *testing.T) {
	a := newApp(nil, nil, &bytes.Buffer{})
	r := &relay{app: a, term: &terminal{}, control: make(chan client.Control, 16), bar: a.progress()}
	now := time.Now()
	w := &relayWriter{r: r, w: brokenWriter{}, now: func() time.Time { return now }}
	for _, wait := range []time.Duration{0, time.Second, time.Second, 0, 10 * time.Second, time.Second} {
		now = now.Add(wait)
		if n, err := w.Write([]byte("xy")); n != 2 || err != nil {
			t.Error(n, err)
		}
	}
	close(r.control)
	var got []string
	for c := range r.control {
		got = append(got, c.Signal)
	}
	if strings.Join(got, " ") != "PIPE TERM KILL" {
		t.Error(got)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestProgressLines(t *testing.T) {
	var errs bytes.Buffer
	a := newApp(nil, nil, &errs)
	p := a.progress()
	p.after = 0
	for i := range 3 {
		p.show(wire.ProgressMsg{Phase: "pulling", Done: int64(i), Total: 3})
	}
	p.show(wire.ProgressMsg{Phase: "unpacking"})
	p.end()
	if errs.String() != "pulling\nunpacking\n" {
		t.Errorf("%q", errs.String())
	}

	errs.Reset()
	p = a.progress()
	p.show(wire.ProgressMsg{Phase: "resolving"})
	p.end()
	if errs.Len() > 0 {
		t.Errorf("a line about what was over in a moment: %q", errs.String())
	}
}

func TestGitVersions(t *testing.T) {
	for v, want := range map[string]bool{"2.39.5": true, "2.36.0": true, "2.35.9": false, "3.0": true, "2.45.1.windows.1": true, "x": false} {
		if gitAtLeast(v, 2, 36) != want {
			t.Error(v)
		}
	}
}

// TestGrammarFor: a command by itself is what it is among the others.
func TestGrammarFor(t *testing.T) {
	whole, err := newParser(&grammar{})
	if err != nil {
		t.Fatal(err)
	}
	for _, among := range whole.Model.Children {
		part, err := newParser(grammarFor([]string{among.Name, "x"}))
		if err != nil {
			t.Fatal(err)
		}
		if len(part.Model.Children) != 1 {
			t.Errorf("%s: %d commands are built", among.Name, len(part.Model.Children))
			continue
		}
		var alone, other strings.Builder
		err = errors.Join(printHelp(&alone, part.Model.Children[0]), printHelp(&other, among))
		if err != nil || alone.String() != other.String() {
			t.Errorf("%s: %v\n%s\n%s", among.Name, err, alone.String(), other.String())
		}
	}
	for _, args := range [][]string{nil, {"-h"}, {"ru"}, {"RUN"}, {""}} {
		if part, err := newParser(grammarFor(args)); err != nil || len(part.Model.Children) != len(whole.Model.Children) {
			t.Errorf("%q: %v", args, err)
		}
	}
}
