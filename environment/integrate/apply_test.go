package integrate

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/git-env/git-env/environment"
)

// rich has one of everything that an environment can do to files.
func rich(t *testing.T) *fixture {
	f := newFixture(t, map[string]string{
		"mod": numbered(20, nil), "gone": "g\n", "exec": "x\n", "dir/file": "d\n", "plain": "p\n",
		"moved-by-user": numbered(30, nil), "weird \"\n\tname": "w\n", "other": "o\n",
	})
	f.write(f.env, map[string]string{
		"mod": numbered(20, map[int]string{3: "env"}), "gone": "-", "dir": "-", "plain": "-",
		"deep/er/new": "n\n", "bin": "\x00\x01\xfe", "moved-by-user": numbered(30, map[int]string{4: "env"}),
		"weird \"\n\tname": "W\n",
	})
	f.write(f.env, map[string]string{"dir": "now a file\n", "plain/inside": "now a directory\n"})
	must(t, os.Chmod(filepath.Join(f.env, "exec"), 0o755))
	must(t, os.Symlink("/etc/passwd", filepath.Join(f.env, "link")))
	f.commit(f.env, nil)
	f.git(f.dir, "mv", "moved-by-user", "moved")
	f.git(f.dir, "commit", "-qam", "moved")
	f.write(f.dir, map[string]string{"untracked": "u\n"})
	return f
}

func TestApplyAndAbort(t *testing.T) {
	f := rich(t)
	before := f.state()
	a, err := f.tree().Apply(context.Background(), f.source(), ApplyOptions{})
	must(t, err)
	if a.Changed == 0 || a.Conflict != nil {
		t.Errorf("%+v", a)
	}
	if got := f.git(f.dir, "diff", "--name-only"); got != "" {
		t.Error("not staged: " + got)
	}
	if f.read("moved") != numbered(30, map[int]string{4: "env"}) || f.read("plain/inside") != "now a directory\n" || f.read("dir") != "now a file\n" {
		t.Error("not all applied")
	}
	if fi, err := os.Stat(filepath.Join(f.dir, "exec")); err != nil || fi.Mode()&0o100 == 0 {
		t.Error("the executable bit is lost")
	}
	must(t, f.tree().ApplyAbort(context.Background()))
	f.wantSame(before)
	wantCode(t, f.tree().ApplyAbort(context.Background()), environment.ExitFailed)
}

func TestApplyPaths(t *testing.T) {
	f := rich(t)
	before := f.state()
	must(t, os.Mkdir(filepath.Join(f.dir, "sub"), 0o755))
	tr := f.tree()
	tr.dir = filepath.Join(f.dir, "sub")
	a, err := tr.Apply(context.Background(), f.source(), ApplyOptions{Paths: []string{"../deep", ":(top)*in*ide"}})
	must(t, err)
	if got := f.git(f.dir, "diff", "--cached", "--name-only"); got != "deep/er/new\nplain/inside" && got != "deep/er/new\nplain\nplain/inside" {
		t.Errorf("staged %q, %+v", got, a)
	}
	must(t, tr.ApplyAbort(context.Background()))
	must(t, os.Remove(tr.dir))
	f.wantSame(before)
	_, err = f.tree().Apply(context.Background(), f.source(), ApplyOptions{Paths: []string{"nothing"}})
	wantCode(t, err, environment.ExitFailed)
	f.wantSame(before)
}

func TestApplyConflictAbort(t *testing.T) {
	f := rich(t)
	f.commit(f.dir, map[string]string{"mod": numbered(20, map[int]string{3: "user"}), "gone": "changed\n"})
	f.write(f.dir, map[string]string{"other": "staged\n"})
	f.git(f.dir, "add", "other")
	f.write(f.dir, map[string]string{"other": "dirty\n", "untracked": "u\n"})
	before := f.state()
	_, err := f.tree().Apply(context.Background(), f.source(), ApplyOptions{})
	wantCode(t, err, environment.ExitConflict)
	if !strings.Contains(f.read("mod"), "<<<<<<<") || f.read("other") != "dirty\n" {
		t.Error(f.read("mod"))
	}
	_, err = f.tree().Apply(context.Background(), f.source(), ApplyOptions{})
	wantCode(t, err, environment.ExitConflict)
	must(t, f.tree().ApplyAbort(context.Background()))
	f.wantSame(before)
}

func TestApplyStash(t *testing.T) {
	f := rich(t)
	f.write(f.dir, map[string]string{"mod": numbered(20, map[int]string{17: "mine"}), "other": "staged\n", "added": "a\n"})
	f.git(f.dir, "add", "other", "added")
	f.write(f.dir, map[string]string{"other": "unstaged\n"})
	before := f.state()
	a, err := f.tree().Apply(context.Background(), f.source(), ApplyOptions{Stash: true})
	must(t, err)
	if a.Conflict != nil || f.read("mod") != numbered(20, map[int]string{3: "env", 17: "mine"}) || f.read("other") != "unstaged\n" {
		t.Errorf("%v\n%s", a.Conflict, f.read("mod"))
	}
	if f.git(f.dir, "show", ":other") != "staged" || f.git(f.dir, "show", ":bin") == "" || f.git(f.dir, "stash", "list") != "" {
		t.Error("staged state or stash is wrong")
	}
	must(t, f.tree().ApplyAbort(context.Background()))
	f.wantSame(before)
}

func TestApplyStashConflict(t *testing.T) {
	f := rich(t)
	f.write(f.dir, map[string]string{"mod": numbered(20, map[int]string{3: "mine"}), "other": "dirty\n"})
	before := f.state()
	a, err := f.tree().Apply(context.Background(), f.source(), ApplyOptions{Stash: true})
	must(t, err)
	wantCode(t, a.Conflict, environment.ExitConflict)
	if f.read("mod") != numbered(20, map[int]string{3: "env"}) || f.git(f.dir, "show", "stash@{0}:other") != "dirty" {
		t.Error("neither the clean result nor the edits in the stash")
	}
	if f.git(f.dir, "diff", "--name-only") != "" || f.git(f.dir, "ls-files", "-u") != "" || f.read("untracked") != "u\n" {
		t.Error("the tree is not the clean result")
	}
	must(t, f.tree().ApplyAbort(context.Background()))
	f.wantSame(before)
}

func TestApplyRefusals(t *testing.T) {
	cases := map[string]func(f *fixture){
		"dirty":            func(f *fixture) { f.write(f.dir, map[string]string{"mod": "mine\n"}) },
		"staged":           func(f *fixture) { f.write(f.dir, map[string]string{"mod": "mine\n"}); f.git(f.dir, "add", "mod") },
		"dirty in replace": func(f *fixture) { f.write(f.dir, map[string]string{"dir/file": "mine\n"}) },
		"untracked":        func(f *fixture) { f.write(f.dir, map[string]string{"bin": "mine\n"}) },
		"ignored": func(f *fixture) {
			f.write(f.dir, map[string]string{".git/info/exclude": "bin\n", "bin": "mine\n"})
		},
		"deleted":         func(f *fixture) { f.write(f.dir, map[string]string{"mod": "-"}) },
		"untracked below": func(f *fixture) { f.write(f.dir, map[string]string{"dir/mine": "mine\n"}) },
		"linked parent": func(f *fixture) {
			must(f.t, os.Symlink(f.env, filepath.Join(f.dir, "deep")))
		},
		"dirty where the change moves to": func(f *fixture) { f.write(f.dir, map[string]string{"moved": "mine\n"}) },
	}
	for name, setup := range cases {
		t.Run(name, func(t *testing.T) {
			f := rich(t)
			setup(f)
			before := f.state()
			_, err := f.tree().Apply(context.Background(), f.source(), ApplyOptions{})
			wantCode(t, err, environment.ExitConflict)
			f.wantSame(before)
		})
	}
}

func TestApplyAbortRefusals(t *testing.T) {
	f := rich(t)
	_, err := f.tree().Apply(context.Background(), f.source(), ApplyOptions{})
	must(t, err)
	f.write(f.dir, map[string]string{"bin": "edited since\n"})
	before := f.state()
	wantCode(t, f.tree().ApplyAbort(context.Background()), environment.ExitConflict)
	f.wantSame(before)
	f.git(f.dir, "commit", "-qam", "kept")
	before = f.state()
	wantCode(t, f.tree().ApplyAbort(context.Background()), environment.ExitFailed)
	f.wantSame(before)
}

func TestApplyMerged(t *testing.T) {
	f := newFixture(t, map[string]string{"a": "1\n"})
	f.commit(f.env, map[string]string{"a": "2\n"})
	f.git(f.dir, "merge", "-q", "env/e")
	before := f.state()
	a, err := f.tree().Apply(context.Background(), f.source(), ApplyOptions{})
	must(t, err)
	if a.Changed != 0 {
		t.Errorf("%+v", a)
	}
	f.wantSame(before)
}

// Bytes that git would not reproduce (it considers such a file clean) come back
// as they were.
func TestApplyAbortKeepsBytes(t *testing.T) {
	f := newFixture(t, map[string]string{"a": "1\n2\n"})
	f.commit(f.env, map[string]string{"a": "1\n3\n"})
	f.git(f.dir, "config", "core.autocrlf", "input")
	f.write(f.dir, map[string]string{"a": "1\r\n2\r\n"})
	f.git(f.dir, "add", "a")
	before := f.state()
	_, err := f.tree().Apply(context.Background(), f.source(), ApplyOptions{})
	must(t, err)
	must(t, f.tree().ApplyAbort(context.Background()))
	f.wantSame(before)
}

// A kill -9 in the middle of an apply leaves the snapshot, and an abort gives
// back what was there.
func TestApplyAbortAfterCrash(t *testing.T) {
	ctx := context.Background()
	for _, picked := range []bool{false, true} {
		f := rich(t)
		before := f.state()
		tr, src := f.tree(), f.source()
		st := &applyState{Version: 1, Env: "e", Tip: src.Tip, Phase: phaseStarted}
		var err error
		st.Head, st.Ref, err = tr.Head(ctx)
		must(t, err)
		base, ds, err := tr.whatToApply(ctx, src, st.Head, nil)
		must(t, err)
		pick, err := tr.pickCommit(ctx, src, base, ds, false)
		must(t, err)
		must(t, tr.save(ctx, st, pathsOf(ds, nil)))
		if picked {
			_, err = tr.pick(ctx, pick)
			must(t, err)
		} else {
			f.write(f.dir, map[string]string{"mod": "half writ", "gone": "-"})
		}
		must(t, f.tree().ApplyAbort(ctx))
		f.wantSame(before)
	}
}
