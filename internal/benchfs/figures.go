package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// figure is a number that nothing is compared with.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Goal  float64 `json:"goal,omitempty"` // most that is aimed at; 0 is none
	Text  string  `json:"-"`
}

func keys[V any](m map[string]V) iter.Seq[string] { return maps.Keys(m) }

func (b *bench) note(name, unit string, value float64) {
	format := "%.1f %s"
	if unit == "bytes" {
		format = "%.0f %s"
	}
	b.figs = append(b.figs, figure{Name: name, Value: value, Unit: unit, Text: fmt.Sprintf(format, value, unit)})
}

// measureFigures measures what has no peer: each in a session of its own.
func (b *bench) measureFigures(ctx context.Context) error {
	all := []struct {
		name, fixture string
		measure       func(context.Context, *session) error
	}{
		{"fork, 100 ignored files", "tiny", forkFigure(100, 0)},
		{"fork, 20,000 ignored files and 1 GiB", "tiny", forkFigure(20_000, 1024)},
		{"snapshot, 1,000 files", "1000", snapshotFigure("1,000")},
		{"snapshot, 100,000 files", "many", snapshotFigure("100,000")},
		{"memory, 100,000 files", "many", memoryFigure("100,000", manyFiles)},
		{"memory, 1,000,000 files", "1000000", memoryFigure("1,000,000", 1_000_000)},
	}
	for _, f := range all {
		if !b.only.MatchString(f.name) || (f.fixture == "1000000" && !b.million) {
			continue
		}
		start := time.Now()
		err := b.figureSession(ctx, f.fixture, f.measure)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		b.say("%s: %.1f s", f.name, time.Since(start).Seconds())
		if err != nil {
			b.fail(f.name, "ours", err)
		}
	}
	return nil
}

func (b *bench) figureSession(ctx context.Context, fixture string, measure func(context.Context, *session) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	s := &session{bench: b}
	if s.fixture, err = b.fixture(ctx, fixture); err != nil {
		return err
	}
	if s.back, err = newBacking(ctx, b.backing, b.work); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(), s.back.close()) }()
	if err := (&ours{}).open(ctx, s); err != nil {
		return err
	}
	return measure(ctx, s)
}

// times runs "git env" with the arguments that args makes for each repetition,
// and returns the median in milliseconds, which includes starting the client.
func (s *session) times(ctx context.Context, n int, args func(i int) []string) (float64, error) {
	var took []float64
	for i := range n {
		start := time.Now()
		if _, err := s.gitEnvOut(ctx, args(i)...); err != nil {
			return 0, err
		}
		took = append(took, time.Since(start).Seconds()*1000)
	}
	return median(took), nil
}

func (b *bench) repetitions() int { return 5 * b.rounds }

// forkGoal is how long a fork may take in milliseconds, whatever it forks.
const forkGoal = 50

// forkFigure times a fork of a workspace with ignored files.
func forkFigure(files int, mib int64) func(context.Context, *session) error {
	return func(ctx context.Context, s *session) error {
		out := filepath.Join(s.dir, "out")
		if err := os.Mkdir(out, 0o755); err != nil {
			return err
		}
		for i := range files {
			dir := filepath.Join(out, fmt.Sprint(i/100))
			if i%100 == 0 {
				if err := os.Mkdir(dir, 0o755); err != nil {
					return err
				}
			}
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i%100)), []byte("ignored\n"), 0o644); err != nil {
				return err
			}
		}
		if mib > 0 {
			if err := run(ctx, "dd", "if=/dev/zero", "of="+out+"/big", "bs=1M", fmt.Sprint("count=", mib), "status=none"); err != nil {
				return err
			}
		}
		// The first one is counted by itself: it is the one that meets everything dirty.
		first, err := s.times(ctx, 1, func(int) []string { return []string{"fork", "e", "first"} })
		if err != nil {
			return err
		}
		rest, err := s.times(ctx, s.repetitions(), func(i int) []string { return []string{"fork", "e", fmt.Sprint("f", i)} })
		if err != nil {
			return err
		}
		what := fmt.Sprintf("fork, %d ignored files and %d MiB", files, mib)
		s.note(what+", first", "ms", first)
		s.note(what+", median of the next", "ms", rest)
		s.figs[len(s.figs)-1].Goal = forkGoal
		return nil
	}
}

// snapshotFigure times an exec that changes one file, beside one that changes none.
func snapshotFigure(files string) func(context.Context, *session) error {
	return func(ctx context.Context, s *session) error {
		idle := func(int) []string { return []string{"run", "e", "--", "true"} }
		change := func(i int) []string {
			return []string{"run", "e", "--", "/bin/sh", "-c", fmt.Sprintf("echo %d >changed", i)}
		}
		if _, err := s.gitEnvOut(ctx, change(-1)...); err != nil { // starts the container
			return err
		}
		none, err := s.times(ctx, s.repetitions(), idle)
		if err != nil {
			return err
		}
		one, err := s.times(ctx, s.repetitions(), change)
		if err != nil {
			return err
		}
		s.note("exec that changes nothing, "+files+" files", "ms", none)
		s.note("exec that changes one file, "+files+" files", "ms", one)
		return nil
	}
}

// memoryFigure compares the file server's memory before and after every file
// was looked at.
func memoryFigure(files string, n int) func(context.Context, *session) error {
	return func(ctx context.Context, s *session) error {
		pid, err := s.fileServer(ctx)
		if err != nil {
			return err
		}
		before, err := resident(pid)
		if err != nil {
			return err
		}
		if _, err := (command{args: []string{"sh", "-c", `find "$1" -printf '%s\n' >/dev/null`, "sh", s.dir}}).output(ctx); err != nil {
			return err
		}
		after, err := resident(pid)
		if err != nil {
			return err
		}
		s.note("file server, resident memory before", "MiB", before/(1<<20))
		s.note("file server, resident memory after stat of "+files+" files", "MiB", after/(1<<20))
		s.note("file server, growth for each of "+files+" files", "bytes", (after-before)/float64(n))
		return nil
	}
}

// resident is the resident memory of a process in bytes.
func resident(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			var kib float64
			if _, err := fmt.Sscan(rest, &kib); err != nil {
				return 0, err
			}
			return kib * 1024, nil
		}
	}
	return 0, fmt.Errorf("process %d: no VmRSS", pid)
}
