package gitcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestUpdateRefs(t *testing.T) {
	formats(t, func(t *testing.T, format string) {
		for _, packed := range []bool{false, true} {
			t.Run(fmt.Sprintf("packed=%v", packed), func(t *testing.T) { testUpdateRefs(t, format, packed) })
		}
	})
}

func testUpdateRefs(t *testing.T, format string, packed bool) {
	dir := newRepo(t, format)
	g := New(filepath.Join(dir, ".git"))
	one, two := git(t, dir, "rev-parse", "HEAD^"), git(t, dir, "rev-parse", "HEAD")
	const a, b, c = "refs/heads/env/a", "refs/heads/env/b", "refs/notes/env"
	for i, step := range []struct {
		ups  []RefUpdate
		want error
		have map[string]string
	}{
		{nil, nil, map[string]string{}},
		{[]RefUpdate{{a, "", ""}}, nil, map[string]string{}},
		{[]RefUpdate{{a, one, ""}, {b, "", ""}, {c, two, ""}}, nil, map[string]string{a: one, c: two}},
		{[]RefUpdate{{a, two, ""}}, ErrRefChanged, map[string]string{a: one, c: two}},
		{[]RefUpdate{{a, "", ""}}, ErrRefChanged, map[string]string{a: one, c: two}},
		{[]RefUpdate{{b, two, ""}, {a, two, two}}, ErrRefChanged, map[string]string{a: one, c: two}},
		{[]RefUpdate{{a, two, one}, {c, two, two}}, nil, map[string]string{a: two, c: two}},
		{[]RefUpdate{{b, two, one}}, ErrRefChanged, map[string]string{a: two, c: two}},
		{[]RefUpdate{{a, "", one}}, ErrRefChanged, map[string]string{a: two, c: two}},
		{[]RefUpdate{{a, "", two}, {b, one, ""}}, nil, map[string]string{b: one, c: two}},
		{[]RefUpdate{{a, "", two}}, ErrRefChanged, map[string]string{b: one, c: two}},
	} {
		if packed {
			git(t, dir, "pack-refs", "--all", "--prune")
		}
		err := g.UpdateRefs(t.Context(), "some\nmessage "+strings.Repeat("ä", 1000), step.ups...)
		if !errors.Is(err, step.want) || (step.want == nil) != (err == nil) {
			t.Fatalf("step %d: %v, want %v", i, err, step.want)
		}
		have, err := g.ResolveRefs(t.Context(), a, b, c, "refs/heads/env", "refs/heads/ma*n")
		if err != nil || fmt.Sprint(have) != fmt.Sprint(step.have) {
			t.Fatalf("step %d: have %v, %v, want %v", i, have, err, step.have)
		}
	}
	if log := git(t, dir, "reflog", "refs/heads/env/b"); !strings.Contains(log, "some message ä") {
		t.Errorf("reflog: %s", log)
	}
}

func TestUpdateRefsRefused(t *testing.T) {
	dir := newRepo(t, "sha1")
	g := New(filepath.Join(dir, ".git"))
	two := git(t, dir, "rev-parse", "HEAD")
	git(t, dir, "branch", "env/a")
	for _, packed := range []bool{false, true} {
		if packed {
			git(t, dir, "pack-refs", "--all", "--prune")
		}
		for _, c := range []struct{ ref, id, want string }{
			{"refs/heads/env/a/b", two, "cannot create ref 'refs/heads/env/a/b': 'refs/heads/env/a' exists"},
			{"refs/heads/env", two, "cannot create ref 'refs/heads/env': 'refs/heads/env/a' exists"},
			{"refs/heads/a..b", two, "a..b"},
			{"refs/heads/x", strings.Repeat("1", 40), "nonexistent object"},
			{"refs/heads/x\x00y", two, "invalid ref name"},
		} {
			err := g.UpdateRefs(t.Context(), "", RefUpdate{c.ref, c.id, ""})
			if err == nil || errors.Is(err, ErrRefChanged) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %s", c.ref, err, c.want)
			}
		}
	}
}

// A lock held by another process is waited for, and a cancelled wait leaves no
// lock behind.
func TestUpdateRefsLocked(t *testing.T) {
	dir := newRepo(t, "sha1")
	g := New(filepath.Join(dir, ".git"))
	one, two := git(t, dir, "rev-parse", "HEAD^"), git(t, dir, "rev-parse", "HEAD")
	lock := filepath.Join(dir, ".git/refs/heads/b.lock")
	if err := os.WriteFile(lock, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := g.UpdateRefs(ctx, "", RefUpdate{"refs/heads/a", one, ""}, RefUpdate{"refs/heads/b", one, ""})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want deadline exceeded", err)
	}
	if _, err := os.Stat(filepath.Join(dir, ".git/refs/heads/a.lock")); err == nil {
		t.Fatal("git left a lock behind")
	}
	time.AfterFunc(150*time.Millisecond, func() { os.Remove(lock) })
	if err := g.UpdateRefs(t.Context(), "", RefUpdate{"refs/heads/b", two, ""}); err != nil {
		t.Fatal(err)
	}
}

// TestUpdateRefsConcurrent counts: of many writers with the same old value
// exactly one wins, while git packs refs.
func TestUpdateRefsConcurrent(t *testing.T) {
	dir := newRepo(t, "sha1")
	g := New(filepath.Join(dir, ".git"))
	one, two := git(t, dir, "rev-parse", "HEAD^"), git(t, dir, "rev-parse", "HEAD")
	const writers, rounds = 4, 5
	for round := range rounds {
		old, next := one, two
		ref := fmt.Sprintf("refs/heads/race%d", round)
		if err := g.UpdateRefs(t.Context(), "", RefUpdate{ref, old, ""}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		errs := make([]error, writers)
		for i := range writers {
			wg.Go(func() { errs[i] = g.UpdateRefs(t.Context(), "", RefUpdate{ref, next, old}) })
		}
		wg.Go(func() { git(t, dir, "pack-refs", "--all", "--prune") })
		wg.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else if !errors.Is(err, ErrRefChanged) {
				t.Errorf("writer: %v", err)
			}
		}
		if won != 1 {
			t.Errorf("%d writers won, want 1", won)
		}
	}
}

func TestResolveManyRefs(t *testing.T) {
	dir := newRepo(t, "sha1")
	g := New(filepath.Join(dir, ".git"))
	two := git(t, dir, "rev-parse", "HEAD")
	var ups []RefUpdate
	var names []string
	for i := range 300 {
		names = append(names, fmt.Sprintf("refs/heads/env/n%d", i))
		if i%2 == 0 {
			ups = append(ups, RefUpdate{names[i], two, ""})
		}
	}
	if err := g.UpdateRefs(t.Context(), "", ups...); err != nil {
		t.Fatal(err)
	}
	have, err := g.ResolveRefs(t.Context(), names...)
	if err != nil || len(have) != 150 || have[names[0]] != two {
		t.Errorf("%d refs, %v", len(have), err)
	}
}

func BenchmarkUpdateRefs(b *testing.B) {
	dir := newRepo(b, "sha1")
	g := New(filepath.Join(dir, ".git"))
	one, two := git(b, dir, "rev-parse", "HEAD^"), git(b, dir, "rev-parse", "HEAD")
	ref := "refs/heads/env/x"
	if err := g.UpdateRefs(b.Context(), "", RefUpdate{ref, one, ""}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := g.UpdateRefs(b.Context(), "m", RefUpdate{ref, two, one}); err != nil {
			b.Fatal(err)
		}
		one, two = two, one
	}
}

func BenchmarkDiscover(b *testing.B) {
	dir := newRepo(b, "sha1")
	for b.Loop() {
		if _, err := Discover(b.Context(), dir, os.Environ()); err != nil {
			b.Fatal(err)
		}
	}
}
