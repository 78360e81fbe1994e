package integrate

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/git-env/git-env/environment"
)

func TestMergeFastForward(t *testing.T) {
	f := newFixture(t, map[string]string{"a": "1\n"})
	f.commit(f.env, map[string]string{"a": "2\n", "bin": "\x00\x01\xff"})
	m, err := f.tree().Merge(context.Background(), f.source(), MergeOptions{})
	must(t, err)
	if m.Into != f.source().Tip || f.read("bin") != "\x00\x01\xff" || m.Conflict != nil {
		t.Errorf("%+v", m)
	}
	if strings.Contains(f.out.String(), "ignored") {
		t.Error(f.out.String())
	}
	m, err = f.tree().Merge(context.Background(), f.source(), MergeOptions{})
	must(t, err)
	if !m.UpToDate || !strings.Contains(f.out.String(), "Already up to date.") {
		t.Errorf("%+v %q", m, f.out.String())
	}
}

func TestMergeMessages(t *testing.T) {
	for msg, want := range map[string]string{"": "Merge environment 'e'", "mine": "mine"} {
		f := newFixture(t, map[string]string{"a": "1\n"})
		f.commit(f.env, map[string]string{"a": "2\n"})
		_, err := f.tree().Merge(context.Background(), f.source(), MergeOptions{NoFF: true, Message: msg})
		must(t, err)
		if got := f.git(f.dir, "log", "-1", "--format=%s %an"); got != want+" User" {
			t.Errorf("subject %q", got)
		}
	}
}

func TestMergeSquash(t *testing.T) {
	for _, diverged := range []bool{false, true} {
		f := newFixture(t, map[string]string{"a": "1\n"})
		f.commit(f.env, map[string]string{"a": "2\n"})
		f.commit(f.env, map[string]string{"b": "2\n"})
		if diverged {
			f.commit(f.dir, map[string]string{"c": "3\n"})
		}
		head := f.git(f.dir, "rev-parse", "HEAD")
		m, err := f.tree().Merge(context.Background(), f.source(), MergeOptions{Squash: true})
		must(t, err)
		if f.git(f.dir, "rev-parse", "HEAD") != head || f.git(f.dir, "diff", "--cached", "--name-only") != "a\nb" {
			t.Error("a squash stages and commits nothing")
		}
		if m.Into == "" {
			t.Fatal("not verified")
		}
		f.git(f.dir, "merge-base", "--is-ancestor", f.source().Tip, m.Into)
		if f.git(f.dir, "rev-parse", m.Into+"^{tree}") != f.git(f.dir, "write-tree") {
			t.Error("another tree")
		}
	}
}

func conflicting(t *testing.T) *fixture {
	f := newFixture(t, map[string]string{"a": "1\n", "other": "o\n"})
	f.commit(f.env, map[string]string{"a": "env\n"})
	f.commit(f.dir, map[string]string{"a": "user\n"})
	return f
}

func TestMergeConflictAbort(t *testing.T) {
	for _, o := range []MergeOptions{{}, {Squash: true}, {Stash: true}, {Squash: true, Stash: true}} {
		f := conflicting(t)
		f.write(f.dir, map[string]string{"untracked": "u\n"})
		if o.Stash {
			f.write(f.dir, map[string]string{"other": "mine\n"})
		}
		before := f.read("other")
		_, err := f.tree().Merge(context.Background(), f.source(), o)
		wantCode(t, err, environment.ExitConflict)
		if !strings.Contains(f.read("a"), "<<<<<<<") || !strings.Contains(f.read("a"), "env/e") {
			t.Errorf("%+v: %s", o, f.read("a"))
		}
		_, err = f.tree().Merge(context.Background(), f.source(), o)
		wantCode(t, err, environment.ExitConflict)
		must(t, f.tree().MergeAbort(context.Background()))
		if f.read("a") != "user\n" || f.read("other") != before || f.read("untracked") != "u\n" {
			t.Errorf("%+v: %q %q", o, f.read("a"), f.read("other"))
		}
		if s := f.git(f.dir, "stash", "list"); s != "" {
			t.Error("stash left: " + s)
		}
		wantCode(t, f.tree().MergeAbort(context.Background()), environment.ExitFailed)
	}
}

func TestMergeConflictContinue(t *testing.T) {
	f := conflicting(t)
	f.write(f.dir, map[string]string{"other": "mine\n"})
	_, err := f.tree().Merge(context.Background(), f.source(), MergeOptions{Stash: true})
	wantCode(t, err, environment.ExitConflict)
	wantCode(t, f.tree().MergeContinue(context.Background()), environment.ExitConflict)
	f.write(f.dir, map[string]string{"a": "both\n"})
	f.git(f.dir, "add", "a")
	must(t, f.tree().MergeContinue(context.Background()))
	if f.read("other") != "mine\n" || f.git(f.dir, "log", "-1", "--format=%s") != "Merge environment 'e'" {
		t.Error(f.read("other"))
	}
	if f.git(f.dir, "stash", "list") != "" {
		t.Error("stash left")
	}
	wantCode(t, f.tree().MergeContinue(context.Background()), environment.ExitFailed)
}

// A user may finish a stopped merge with git alone; the edits set aside are not
// forgotten.
func TestMergeFinishedWithGit(t *testing.T) {
	f := conflicting(t)
	f.write(f.dir, map[string]string{"other": "mine\n"})
	_, err := f.tree().Merge(context.Background(), f.source(), MergeOptions{Stash: true})
	wantCode(t, err, environment.ExitConflict)
	f.write(f.dir, map[string]string{"a": "both\n"})
	f.git(f.dir, "commit", "-qam", "resolved")
	_, err = f.tree().Merge(context.Background(), f.source(), MergeOptions{})
	wantCode(t, err, environment.ExitConflict)
	wantCode(t, f.tree().MergeAbort(context.Background()), environment.ExitFailed)
	must(t, f.tree().MergeContinue(context.Background()))
	if f.read("other") != "mine\n" {
		t.Error(f.read("other"))
	}
}

func TestMergeRefusals(t *testing.T) {
	type change = map[string]string
	cases := map[string]struct {
		base, env, user, dirty change
		setup                  func(f *fixture)
		o                      MergeOptions
		want                   int
	}{
		"dirty overlap":           {base: change{"a": "1\n"}, env: change{"a": "2\n"}, dirty: change{"a": "3\n"}, want: 12},
		"dirty overlap no-ff":     {base: change{"a": "1\n"}, env: change{"a": "2\n"}, dirty: change{"a": "3\n"}, o: MergeOptions{NoFF: true}, want: 12},
		"dirty overlap diverged":  {base: change{"a": "1\n"}, env: change{"a": "2\n"}, user: change{"b": "2\n"}, dirty: change{"a": "3\n"}, want: 12},
		"untracked in the way":    {base: change{"a": "1\n"}, env: change{"n": "2\n"}, dirty: change{"n": "mine\n"}, want: 12},
		"ignored in the way":      {base: change{"a": "1\n", ".gitignore": "n\n"}, env: change{"n": "2\n"}, dirty: change{"n": "mine\n"}, want: 12},
		"untracked dir in way":    {base: change{"a": "1\n", ".gitignore": "n\n"}, env: change{"n": "2\n"}, dirty: change{"n/x": "mine\n"}, want: 12},
		"untracked parent in way": {base: change{"a": "1\n", ".gitignore": "n\n"}, env: change{"n/y": "2\n"}, dirty: change{"n": "mine\n"}, want: 12},
		"staged, true merge": {base: change{"a": "1\n"}, env: change{"a": "2\n"}, user: change{"b": "2\n"}, dirty: change{"s": "3\n"},
			setup: func(f *fixture) { f.git(f.dir, "add", "s") }, want: 12},
		"intent to add with stash": {base: change{"a": "1\n"}, env: change{"a": "2\n"}, dirty: change{"s": "3\n"},
			setup: func(f *fixture) { f.git(f.dir, "add", "-N", "s") }, o: MergeOptions{Stash: true}, want: 12},
		"ff only by config": {base: change{"a": "1\n"}, env: change{"a": "2\n"}, user: change{"b": "2\n"},
			setup: func(f *fixture) { f.git(f.dir, "config", "merge.ff", "only") }, want: 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, c.base)
			f.commit(f.env, c.env)
			if c.user != nil {
				f.commit(f.dir, c.user)
			}
			f.write(f.dir, c.dirty)
			if c.setup != nil {
				c.setup(f)
			}
			f.git(f.dir, "status")
			before := f.state()
			_, err := f.tree().Merge(context.Background(), f.source(), c.o)
			wantCode(t, err, c.want)
			f.wantSame(before)
		})
	}
}

func TestMergeStashGivenBack(t *testing.T) {
	f := newFixture(t, map[string]string{"a": numbered(20, nil), "s": "1\n"})
	f.commit(f.env, map[string]string{"a": numbered(20, map[int]string{2: "env"})})
	f.write(f.dir, map[string]string{"a": numbered(20, map[int]string{18: "mine"}), "s": "staged\n", "u": "u\n"})
	f.git(f.dir, "add", "s")
	f.write(f.dir, map[string]string{"s": "unstaged\n"})
	m, err := f.tree().Merge(context.Background(), f.source(), MergeOptions{Stash: true})
	must(t, err)
	if m.Conflict != nil || f.read("a") != numbered(20, map[int]string{2: "env", 18: "mine"}) {
		t.Errorf("%v %s", m.Conflict, f.read("a"))
	}
	if f.git(f.dir, "show", ":s") != "staged" || f.read("s") != "unstaged\n" || f.read("u") != "u\n" {
		t.Error("staged and unstaged edits are not what they were")
	}
	if f.git(f.dir, "stash", "list") != "" {
		t.Error("stash left")
	}
}

// git's autostash reports this as success.
func TestMergeStashConflict(t *testing.T) {
	for _, auto := range []bool{false, true} {
		for _, squash := range []bool{false, true} {
			f := newFixture(t, map[string]string{"a": "1\n", "b": "1\n"})
			f.commit(f.env, map[string]string{"a": "env\n"})
			f.write(f.dir, map[string]string{"a": "mine\n", "b": "mine\n"})
			if auto {
				f.git(f.dir, "config", "merge.autoStash", "true")
			}
			m, err := f.tree().Merge(context.Background(), f.source(), MergeOptions{Stash: !auto, Squash: squash})
			must(t, err)
			wantCode(t, m.Conflict, environment.ExitConflict)
			if f.read("a") != "env\n" || f.git(f.dir, "diff", "--name-only") != "" {
				t.Errorf("the tree is not the clean result: %q", f.read("a"))
			}
			if squash != (f.git(f.dir, "diff", "--cached", "--name-only") == "a") {
				t.Error("staged: " + f.git(f.dir, "diff", "--cached", "--name-only"))
			}
			if f.git(f.dir, "show", "stash@{0}:a") != "mine" || f.git(f.dir, "show", "stash@{0}:b") != "mine" {
				t.Error("the edits are not in the stash")
			}
			if !strings.Contains(m.Conflict.Error(), "stash@{0}") {
				t.Error(m.Conflict)
			}
		}
	}
}

func TestMergeHookRefuses(t *testing.T) {
	f := newFixture(t, map[string]string{"a": "1\n"})
	f.commit(f.env, map[string]string{"a": "2\n"})
	hook := filepath.Join(f.dir, ".git", "hooks", "pre-merge-commit")
	must(t, os.MkdirAll(filepath.Dir(hook), 0o755))
	must(t, os.WriteFile(hook, []byte("#!/bin/sh\nexit 1\n"), 0o755))
	_, err := f.tree().Merge(context.Background(), f.source(), MergeOptions{NoFF: true})
	wantCode(t, err, environment.ExitFailed)
	must(t, f.tree().MergeAbort(context.Background()))
	if f.read("a") != "1\n" || f.git(f.dir, "status", "--porcelain") != "" {
		t.Error("not given back")
	}
}

func TestMergeDetachedAndLinked(t *testing.T) {
	f := newFixture(t, map[string]string{"a": "1\n"})
	f.commit(f.env, map[string]string{"a": "2\n"})
	linked := filepath.Join(filepath.Dir(f.dir), "linked")
	f.git(f.dir, "worktree", "add", "-q", "--detach", linked)
	f.dir = linked
	m, err := f.tree().Merge(context.Background(), f.source(), MergeOptions{})
	must(t, err)
	if m.Into == "" || f.read("a") != "2\n" {
		t.Error("not merged")
	}
}

func TestMergeUnborn(t *testing.T) {
	f := newFixture(t, map[string]string{"a": "1\n"})
	f.commit(f.env, map[string]string{"b": "2\n"})
	f.git(f.dir, "checkout", "-q", "--orphan", "fresh")
	f.git(f.dir, "rm", "-rqf", ".")
	m, err := f.tree().Merge(context.Background(), f.source(), MergeOptions{})
	must(t, err)
	if m.Into != f.source().Tip || f.read("b") != "2\n" {
		t.Errorf("%+v", m)
	}
}
