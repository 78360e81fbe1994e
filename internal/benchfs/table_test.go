package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{4, 1}, 2.5}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 3, 2, 1}, 2.5}} {
		before := slices.Clone(c.values)
		if got := median(c.values); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.values, got, c.want)
		}
		if !slices.Equal(before, c.values) {
			t.Errorf("median changed its argument: %v, was %v", c.values, before)
		}
	}
}

func TestGoalMissed(t *testing.T) {
	median := map[string]float64{"overlay": 1, "fuse-overlayfs": 4, "native": 9, "ours": 1.5, "ours-inside": 1.51, "ours-io": 1.2}
	for _, c := range []struct {
		goal   goal
		column string
		want   bool
	}{
		{goal{}, "ours", false},
		{goal{overlay: 1.5}, "ours", false},
		{goal{overlay: 1.5}, "ours-inside", true},
		{goal{overlay: 1.5}, "native", false}, // a goal is for ours alone
		{goal{overlay: 1.5}, "no such column", false},
		{goal{overlay: 1.5}, "ours-io", false},
		{goal{overlay: 1.5, io: 1.1}, "ours-io", true},
		{goal{overlay: 1.5, io: 1.1}, "ours", false},
		{goal{overlay: 8, fuse: 0.2}, "ours", true},
		{goal{overlay: 8, fuse: 0.4}, "ours", false},
	} {
		if got := c.goal.missed(c.column, median); got != c.want {
			t.Errorf("goal %v in %s: missed is %v, want %v", c.goal, c.column, got, c.want)
		}
	}
	if (goal{overlay: 1}).missed("ours", map[string]float64{"ours": 2}) {
		t.Error("a goal is missed although nothing was measured to compare with")
	}
}

// sample is a run of two columns in which one cell failed.
func sample(t *testing.T) *bench {
	t.Helper()
	opts, err := parse([]string{"--only", "^find, warm$|^untar|^rm", "--columns", "overlay,ours"})
	if err != nil {
		t.Fatal(err)
	}
	return &bench{options: opts,
		samples: map[string]map[string][]float64{
			"find, warm":   {"overlay": {0.1, 0.3, 0.2}, "ours": {0.4}},
			"untar 20,000": {"overlay": {2}, "ours": {12}},
		},
		figs: []figure{{Name: "fast", Text: "1.0 ms", Value: 1, Goal: 50}, {Name: "slow", Text: "51.0 ms", Value: 51, Goal: 50}},
	}
}

func TestResults(t *testing.T) {
	b := sample(t)
	b.because([]workload{{name: "rm -rf 20,000"}, {name: "not asked for"}}, "ours", errors.New("no\nspace"))
	rows := b.results()
	var names []string
	for _, r := range rows {
		names = append(names, r.Name)
	}
	if want := []string{"untar 20,000", "rm -rf 20,000", "find, warm"}; !slices.Equal(names, want) {
		t.Fatalf("rows %q, want %q: all that were asked for, measured or not", names, want)
	}
	find := rows[2]
	if find.Median["overlay"] != 0.2 || find.Ratio["ours"] != 2 || !slices.Equal(find.Missed, []string{"ours"}) {
		t.Errorf("find: %+v", find)
	}
	if len(b.reasons) != 1 || b.reasons[0] != (reason{"rm -rf 20,000", "ours", "no space"}) {
		t.Errorf("reasons: %+v", b.reasons)
	}
}

func TestTable(t *testing.T) {
	b := sample(t)
	b.because([]workload{{name: "rm -rf 20,000"}}, "ours", errors.New("no space"))
	var out strings.Builder
	table(&out, report{Columns: b.columns, Rows: b.results(), Reasons: b.reasons})
	figureLines(&out, b.figs)
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{"overlay ours goal",
		"untar 20,000 2.000 (1.00) 12.0 (6.00) 8.00, 0.20 of fuse-overlayfs",
		"rm -rf 20,000 - - 3.00",
		"find, warm 0.200 (1.00) 0.400 (2.00)! 1.30",
		"- rm -rf 20,000 in ours: no space",
		"",
		"fast 1.0 ms goal 50",
		"slow 51.0 ms goal 50 !"}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Every row belongs to a group that exists, and the names that docs and flags
// use are different.
func TestRows(t *testing.T) {
	known, seen := map[string]bool{}, map[string]bool{}
	for _, g := range groups() {
		known[g.name] = true
	}
	for _, w := range workloads() {
		if !known[w.group] || seen[w.name] || w.run == nil {
			t.Errorf("row %q of group %q", w.name, w.group)
		}
		seen[w.name] = true
	}
}

func TestLastWanted(t *testing.T) {
	rows := []workload{{name: "write"}, {name: "read"}, {name: "reread"}, {name: "delete"}}
	for only, want := range map[string]int{"": 3, "read": 2, "^write$": 0, "nothing": -1} {
		if got := lastWanted(rows, regexp.MustCompile(only)); got != want {
			t.Errorf("--only %q: last row %d, want %d", only, got, want)
		}
	}
}

func TestParse(t *testing.T) {
	o, err := parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"native", "overlay", "fuse-overlayfs", "ours", "ours-inside"}; !slices.Equal(o.columns, want) {
		t.Errorf("columns %q, want %q", o.columns, want)
	}
	if o.rounds != 3 || o.slowRounds != 1 || o.sizeMiB != 1024 || !o.only.MatchString("anything") {
		t.Errorf("defaults: %+v", o)
	}
	o, err = parse([]string{"--columns", "overlay, ours-io", "--rounds", "5", "--slow-rounds", "2"})
	if err != nil || !slices.Equal(o.columns, []string{"overlay", "ours-io"}) || o.rounds != 5 || o.slowRounds != 2 {
		t.Errorf("parse: %+v, %v", o, err)
	}
	for _, args := range [][]string{{"--columns", "native,ext3"}, {"--only", "("}, {"--rounds", "0"}, {"--slow-rounds", "0"},
		{"--size", "0"}, {"--backing", "tape"}, {"extra"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%q was taken", args)
		}
	}
}

// The work itself, small: what is prepared, warmed up and repeated.
func TestWork(t *testing.T) {
	t.Chdir(t.TempDir())
	prepared, ran := 0, 0
	w := workload{prepare: func(place) error { prepared++; return nil }, run: func(place) error { ran++; return nil }, warm: true, repeat: 3}
	if took, err := w.do(place{}, "prepare"); err != nil || took != nil || prepared != 1 || ran != 0 {
		t.Fatalf("prepare: %v, %v; prepared %d, ran %d", took, err, prepared, ran)
	}
	if took, err := w.do(place{}, "run"); err != nil || len(took) != 3 || ran != 4 {
		t.Fatalf("run: %v, %v; ran %d", took, err, ran)
	}
	p := place{size: 2 << 20}
	for _, row := range []func(place) error{writeBig, readBig, randomRead, randomWrite, createSmall} {
		if err := row(p); err != nil {
			t.Fatal(err)
		}
	}
	if fi, err := os.Stat(bigFile); err != nil || fi.Size() != p.size {
		t.Errorf("large file: %v, %v", fi, err)
	}
	files := 0
	if err := walk(filepath.Join("out", "c"), func(string) error { files++; return nil }); err != nil || files != createFiles {
		t.Errorf("%d small files, %v", files, err)
	}
}
