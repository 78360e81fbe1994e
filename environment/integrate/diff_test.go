package integrate

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/internal/gitcmd"
)

func TestDiff(t *testing.T) {
	f := newFixture(t, map[string]string{"a": "1\n", "d/b": "1\n"})
	f.commit(f.env, map[string]string{"a": "2\n", "d/b": "2\n"})
	f.commit(f.dir, map[string]string{"mine": "1\n"})
	diff := func(args ...string) string {
		f.out.Reset()
		rc, err := f.tree().Diff(context.Background(), f.source(), args)
		must(t, err)
		if rc != 0 {
			t.Fatalf("exit %d: %s", rc, f.errs.String())
		}
		return f.out.String()
	}
	if got := diff("--name-only"); got != "a\nd/b\n" {
		t.Errorf("%q", got)
	}
	if got := diff("--name-only", "--", "d"); got != "d/b\n" {
		t.Errorf("%q", got)
	}
	if got := diff("--name-only", "-S", "2", "d"); got != "d/b\n" {
		t.Errorf("%q", got)
	}
	f.git(f.dir, "merge", "-q", "-m", "m", "env/e")
	if got := diff("--name-only"); got != "a\nd/b\n" {
		t.Errorf("after a merge: %q", got)
	}
	if rc, err := f.tree().Diff(context.Background(), f.source(), []string{"--quiet"}); err != nil || rc != 1 {
		t.Error(rc, err)
	}
}

func TestCheckout(t *testing.T) {
	f := newFixture(t, map[string]string{"a": "1\n"})
	f.commit(f.env, map[string]string{"a": "2\n"})
	must(t, f.tree().Checkout(context.Background(), f.source(), "e"))
	if f.read("a") != "2\n" || f.git(f.dir, "symbolic-ref", "HEAD") != "refs/heads/e" {
		t.Error("not switched")
	}
	f.commit(f.env, map[string]string{"a": "3\n"})
	must(t, f.tree().Checkout(context.Background(), f.source(), "e")) // current, behind
	if f.read("a") != "3\n" {
		t.Error("not forwarded")
	}
	f.git(f.dir, "checkout", "-q", "main")
	f.commit(f.env, map[string]string{"a": "4\n"})
	must(t, f.tree().Checkout(context.Background(), f.source(), "e")) // another, behind
	if f.read("a") != "4\n" {
		t.Error("not forwarded")
	}
	f.commit(f.dir, map[string]string{"a": "5\n"})
	f.git(f.dir, "checkout", "-q", "main")
	must(t, f.tree().Checkout(context.Background(), f.source(), "e")) // ahead
	if f.read("a") != "5\n" {
		t.Error("not switched")
	}
}

func TestCheckoutRefusals(t *testing.T) {
	f := newFixture(t, map[string]string{"a": "1\n"})
	f.git(f.dir, "branch", "old")
	f.git(f.dir, "branch", "taken")
	f.git(f.dir, "worktree", "add", "-q", filepath.Join(filepath.Dir(f.dir), "w"), "taken")
	f.git(f.dir, "branch", "div", f.git(f.dir, "commit-tree", "-p", "HEAD", "-m", "d", "HEAD^{tree}"))
	f.commit(f.env, map[string]string{"a": "2\n"})
	f.write(f.dir, map[string]string{"a": "mine\n"})
	f.git(f.dir, "status")
	before := f.state()
	for branch, want := range map[string]int{
		"div": environment.ExitConflict, "new": environment.ExitConflict, "old": environment.ExitConflict,
		"taken": environment.ExitBusy, "..": environment.ExitUsage, "env/e": environment.ExitUsage,
	} {
		err := f.tree().Checkout(context.Background(), f.source(), branch)
		if got := environment.ExitCode(err); got != want {
			t.Errorf("%s: exit %d, want %d: %v", branch, got, want, err)
		}
		f.wantSame(before)
	}
	if err := f.tree().Checkout(context.Background(), f.source(), "div"); !strings.Contains(err.Error(), "1 ahead, 1 behind") {
		t.Error(err)
	}
	if got := f.git(f.dir, "branch", "--list", "new"); got != "" {
		t.Error("a branch was made")
	}
}

func TestBareIsRefused(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command("git", "init", "-q", "--bare", dir)
	must(t, cmd.Run())
	repo, err := gitcmd.Discover(context.Background(), dir, os.Environ())
	must(t, err)
	_, err = Open(repo, nil, IO{Stdout: &bytes.Buffer{}})
	wantCode(t, err, environment.ExitRepository)
}

func TestWorkTree(t *testing.T) {
	f := newFixture(t, map[string]string{"a": "1\n", "gone": "g\n", ".gitignore": "ign\n", "sub/x": "x\n"})
	f.write(f.dir, map[string]string{"a": "2\n", "gone": "-", "ign": "i\n", "sub/new": "n\n", "staged": "s\n"})
	f.git(f.dir, "add", "staged")
	f.write(f.dir, map[string]string{"staged": "t\n"})
	before := f.state()
	tr := f.tree()
	tr.dir = filepath.Join(f.dir, "sub") // the whole tree, wherever the user is
	tree, err := tr.WorkTree(context.Background())
	must(t, err)
	f.wantSame(before)
	if got := f.git(f.dir, "ls-tree", "-r", "--name-only", tree); got != ".gitignore\na\nstaged\nsub/new\nsub/x" {
		t.Error(got)
	}
	if f.git(f.dir, "show", tree+":staged") != "t" {
		t.Error("not the file as it is")
	}
	changes, err := tr.Uncommitted(context.Background(), true)
	must(t, err)
	if len(changes) != 4 {
		t.Errorf("%+v", changes)
	}
}
