package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// bench is one run.
type bench struct {
	options
	work      string // temporary directory of everything
	path      string // PATH with git-env in front
	transport string // how requests reached the file server; "" before the first mount
	// samples are seconds by workload and column; counts are FUSE requests of
	// one session by workload and kind.
	samples map[string]map[string][]float64
	counts  map[string]map[string]int
	figs    []figure
	failed  []string
	reasons []reason
}

// reason is why a cell of the table is missing or has fewer rounds.
type reason struct {
	Row    string `json:"row"`
	Column string `json:"column"`
	Text   string `json:"text"`
}

// say prints a line of progress.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

// run makes the temporary directory, measures, prints and takes everything down.
func (b *bench) run(ctx context.Context) (err error) {
	parent := b.dir
	if parent == "" {
		parent = os.TempDir()
	}
	if err := b.removeLeftovers(ctx, parent); err != nil {
		return err
	}
	var lock *os.File
	if b.work, lock, err = makeWork(parent); err != nil {
		return err
	}
	defer lock.Close()
	defer func() { err = errors.Join(err, b.takeDown()) }()
	if err := b.setUp(ctx); err != nil {
		return err
	}
	for _, g := range groups() {
		if err := b.group(ctx, g); err != nil {
			return err
		}
	}
	if b.figures {
		if err := b.measureFigures(ctx); err != nil {
			return err
		}
	}
	return b.print(os.Stdout)
}

// setUp makes what all sessions share.
func (b *bench) setUp(ctx context.Context) error {
	for _, d := range []string{"ram", "home"} {
		if err := os.Mkdir(filepath.Join(b.work, d), 0o755); err != nil {
			return err
		}
	}
	// Repositories, programs and archives are read from memory, whatever the backing is.
	if err := run(ctx, "mount", "-t", "tmpfs", "-o", "size=12g", "benchfs", filepath.Join(b.work, "ram")); err != nil {
		return err
	}
	if b.gitEnv == "" {
		found, err := exec.LookPath("git-env")
		if err != nil {
			return fmt.Errorf("%w; give its path with --git-env", err)
		}
		b.gitEnv = found
	}
	bin := filepath.Join(b.work, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		return err
	}
	if err := run(ctx, "cp", b.gitEnv, filepath.Join(bin, "git-env")); err != nil {
		return err
	}
	b.path = bin + ":" + os.Getenv("PATH")
	return nil
}

// baseEnv is the environment of every command: the user's configuration and
// caches have no part in it.
func (b *bench) baseEnv() []string {
	return []string{"PATH=" + b.path, "HOME=" + filepath.Join(b.work, "home"), "LC_ALL=C", "GIT_PAGER=cat",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=Bench", "GIT_AUTHOR_EMAIL=bench@example.com",
		"GIT_COMMITTER_NAME=Bench", "GIT_COMMITTER_EMAIL=bench@example.com"}
}

// fixture is the bare repository of that name, made when it is first asked for.
func (b *bench) fixture(ctx context.Context, name string) (string, error) {
	dir := filepath.Join(b.work, "ram", "fixture-"+name+".git")
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	b.say("making the %s repository", name)
	if name == "module" {
		from, err := filepath.Abs(b.module)
		if err != nil {
			return "", err
		}
		return dir, moduleRepository(ctx, b.baseEnv(), from, dir)
	}
	fill := map[string]func(fileMaker) error{"tiny": fillTiny, "tree": fillTree, "many": fillMany,
		"1000": fillCount(1000), "1000000": fillCount(1_000_000)}[name]
	return dir, repository(ctx, b.baseEnv(), dir, fill)
}

// makeScratch makes the files of a group that are not in the tree, this program
// among them.
func (b *bench) makeScratch(ctx context.Context, g group) (string, error) {
	dir := filepath.Join(b.work, "ram", "scratch-"+g.name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if err := run(ctx, "cp", self, filepath.Join(dir, "benchfs")); err != nil {
		return "", err
	}
	if g.scratch == nil {
		return dir, nil
	}
	return dir, g.scratch(dir)
}

// group measures one group in all rounds and columns.
func (b *bench) group(ctx context.Context, g group) error {
	var rows []workload
	chosen := false
	for _, w := range workloads() {
		if w.group == g.name {
			rows = append(rows, w)
			chosen = chosen || b.only.MatchString(w.name)
		}
	}
	if !chosen {
		return nil
	}
	fixture, err := b.fixture(ctx, g.fixture)
	if err != nil {
		return err
	}
	scratch, err := b.makeScratch(ctx, g)
	if err != nil {
		return err
	}
	rounds := b.rounds
	if g.slow {
		rounds = min(rounds, b.slowRounds)
	}
	for round := range rounds {
		for i := range b.columns {
			// Nobody is always the first after the others' caches.
			name := b.columns[(i+round)%len(b.columns)]
			start := time.Now()
			err := b.session(ctx, name, fixture, scratch, rows, round == 0)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			b.say("%s, round %d of %d, %s: %.1f s", g.name, round+1, rounds, name, time.Since(start).Seconds())
			if err != nil {
				b.fail(g.name, name, err)
				b.because(rows, name, err)
			}
		}
	}
	return os.RemoveAll(scratch)
}

// because keeps the reason for every row that was asked for.
func (b *bench) because(rows []workload, column string, err error) {
	for _, w := range rows {
		if b.only.MatchString(w.name) {
			b.reasons = append(b.reasons, reason{Row: w.name, Column: column, Text: tail(err.Error())})
		}
	}
}

func (b *bench) fail(what, column string, err error) {
	b.failed = append(b.failed, what+" in "+column)
	b.say("error: %s in %s: %v", what, column, err)
}

// session sets up a column, runs the rows and takes it down.
func (b *bench) session(ctx context.Context, name, fixture, scratch string, rows []workload, first bool) (err error) {
	s := &session{bench: b, fixture: fixture, scratch: scratch}
	if s.back, err = newBacking(ctx, b.backing, b.work); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(), s.back.close()) }()
	c := newColumn(name)
	if err := c.open(ctx, s); err != nil {
		return err
	}
	var t *tracer
	if b.requests && first && strings.HasPrefix(name, "ours") {
		if t, err = newTracer(ctx, s); err != nil {
			return err
		}
		s.later(t.close)
	}
	last := lastWanted(rows, b.only)
	for i, w := range rows {
		if i > last {
			break
		}
		if !w.makes && !b.only.MatchString(w.name) {
			continue
		}
		if err := s.row(ctx, c, name, w, t); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			b.fail(w.name, name, err)
			b.because([]workload{w}, name, err)
		}
	}
	return nil
}

// row runs one workload. One that was not asked for runs for what it makes; its
// times are not kept.
func (s *session) row(ctx context.Context, c column, name string, w workload, t *tracer) error {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	size := fmt.Sprint(s.sizeMiB << 20)
	if w.prepare != nil {
		if _, err := c.work(ctx, s, "-bytes", size, "-phase", "prepare", w.name); err != nil {
			return err
		}
	}
	// What the step before left to be written back is not this one's.
	if err := run(ctx, "sync", "-f", s.back.dir); err != nil {
		return err
	}
	if w.cold && s.drop > 0 {
		if err := os.WriteFile("/proc/sys/vm/drop_caches", fmt.Append(nil, s.drop), 0o200); err != nil {
			return err
		}
	}
	if err := t.reset(); err != nil {
		return err
	}
	out, err := c.work(ctx, s, "-bytes", size, w.name)
	if err != nil {
		return err
	}
	var took []float64
	if err := json.Unmarshal([]byte(out), &took); err != nil {
		return fmt.Errorf("output of the work: %w: %s", err, tail(out))
	}
	if !s.only.MatchString(w.name) {
		return nil
	}
	if s.samples[w.name] == nil {
		s.samples[w.name] = map[string][]float64{}
	}
	s.samples[w.name][name] = append(s.samples[w.name][name], took...)
	if t != nil {
		s.counts[w.name+" ("+name+")"], err = t.read()
	}
	return err
}
