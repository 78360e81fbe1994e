package gitcmd

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// isolate keeps the user's configuration and an outer git out of the tests.
func isolate(t testing.TB) {
	t.Helper()
	for _, kv := range os.Environ() {
		if name, value, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "GIT_") {
			t.Setenv(name, value) // restores it afterwards
			os.Unsetenv(name)
		}
	}
	t.Setenv("HOME", tempDir(t))
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
}

// tempDir is a temporary directory without symbolic links in its path.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@x", "GIT_COMMITTER_NAME=c", "GIT_COMMITTER_EMAIL=c@x")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// newRepo has two commits on main.
func newRepo(t testing.TB, format string) string {
	t.Helper()
	isolate(t)
	dir := filepath.Join(tempDir(t), "repo")
	git(t, ".", "init", "-q", "-b", "main", "--object-format="+format, dir)
	git(t, dir, "commit", "-q", "--allow-empty", "-m", "one")
	git(t, dir, "commit", "-q", "--allow-empty", "-m", "two")
	return dir
}

func formats(t *testing.T, f func(t *testing.T, format string)) {
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) { f(t, format) })
	}
}

func TestCommandIsShielded(t *testing.T) {
	dir := newRepo(t, "sha1")
	t.Setenv("GIT_DIR", "/nonexistent")
	t.Setenv("GIT_INDEX_FILE", "/nonexistent/index")
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "env.x")
	t.Setenv("GIT_CONFIG_VALUE_0", "leaked")
	t.Setenv("LC_ALL", "C.UTF-8")
	g := New(filepath.Join(dir, ".git"))
	cmd := g.WithEnv("GIT_AUTHOR_NAME=me").Command(t.Context(), "status")
	for _, kv := range cmd.Env {
		if strings.HasPrefix(kv, "GIT_INDEX_FILE") || strings.HasPrefix(kv, "GIT_CONFIG_COUNT") || kv == "LC_ALL=C.UTF-8" {
			t.Errorf("environment has %s", kv)
		}
	}
	for _, kv := range []string{"LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0", "GIT_AUTHOR_NAME=me", "GIT_CONFIG_NOSYSTEM=1"} {
		if !slices.Contains(cmd.Env, kv) {
			t.Errorf("environment lacks %s", kv)
		}
	}
	if slices.Contains(g.Command(t.Context()).Env, "GIT_AUTHOR_NAME=me") {
		t.Error("WithEnv changed the original")
	}
	if out, err := g.Line(t.Context(), "rev-parse", "HEAD"); err != nil || len(out) != 40 {
		t.Errorf("rev-parse HEAD: %q, %v", out, err)
	}
}

func TestHooksDoNotRun(t *testing.T) {
	dir := newRepo(t, "sha1")
	ran := filepath.Join(dir, "ran")
	hook := filepath.Join(dir, ".git/hooks/reference-transaction")
	if err := os.WriteFile(hook, []byte("#!/bin/sh\necho x >"+ran+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	g := New(filepath.Join(dir, ".git"))
	head, err := g.RevParse(t.Context(), "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	if err := g.UpdateRefs(t.Context(), "x", RefUpdate{"refs/heads/new", head, ""}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a hook ran")
	}
}

func TestFileProtocol(t *testing.T) {
	dir := newRepo(t, "sha1")
	other := filepath.Join(tempDir(t), "other.git")
	git(t, dir, "clone", "-q", "--bare", dir, other)
	g := New(other)
	if _, err := g.Output(t.Context(), nil, "fetch", dir); err == nil {
		t.Error("fetched from a local repository unasked")
	}
	if _, err := g.WithFileProtocol().Output(t.Context(), nil, "fetch", dir); err != nil {
		t.Error(err)
	}
}

func TestWorkTree(t *testing.T) {
	dir := newRepo(t, "sha1")
	tree := tempDir(t)
	if err := os.WriteFile(filepath.Join(tree, "a*"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "ab"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	g := New(filepath.Join(dir, ".git")).WithWorkTree(tree)
	out, err := g.Output(t.Context(), nil, "ls-files", "--others", "--", "a*")
	if err != nil || string(out) != "a*\n" {
		t.Errorf("ls-files: %q, %v; want the literal pathspec alone", out, err)
	}
}

func TestError(t *testing.T) {
	dir := newRepo(t, "sha1")
	g := New(filepath.Join(dir, ".git"))
	_, err := g.Output(t.Context(), nil, "cat-file", "-p", "nothing")
	var e *Error
	if !errors.As(err, &e) || e.ExitCode != 128 || e.Error() != "Not a valid object name nothing" {
		t.Errorf("got %v", err)
	}
	_, err = g.Output(t.Context(), nil, "-c", "a.b=c", "diff", "--quiet", "HEAD^", "HEAD", "--", "x")
	if err != nil {
		t.Errorf("got %v", err)
	}
	_, err = g.Output(t.Context(), nil, "-c", "a.b=c", "show-ref", "--verify", "-q", "refs/x")
	if !errors.As(err, &e) || e.Error() != "git show-ref: exit status 1" {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = g.Output(ctx, nil, "status"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want canceled", err)
	}
	e = &Error{Stderr: "warning: w\nfatal: bad thing\nhint: do this\nhint:   twice\n"}
	if e.Error() != "bad thing" || e.Hint() != "do this\n  twice" {
		t.Errorf("message %q, hint %q", e.Error(), e.Hint())
	}
}

func TestRevParse(t *testing.T) {
	formats(t, func(t *testing.T, format string) {
		dir := newRepo(t, format)
		git(t, dir, "tag", "-a", "-m", "t", "v1", "HEAD^")
		g := New(filepath.Join(dir, ".git"))
		one, two := git(t, dir, "rev-parse", "HEAD^"), git(t, dir, "rev-parse", "HEAD")
		for _, c := range []struct{ rev, want string }{
			{"HEAD", two}, {"main", two}, {"HEAD^", one}, {"v1", one}, {":/one", one},
			{two[:8], two}, {"HEAD^{/one}", one}, {"main@{1}", one},
			{"", ""}, {"nothing", ""}, {"--all", ""}, {"-x", ""}, {"^HEAD", ""}, {"HEAD^^", ""},
			{"HEAD..main", ""}, {"HEAD^{tree}", ""}, {":/never", ""}, {"main@{99}", ""}, {"a\nb", ""}, {"a\x00b", ""},
			{strings.Repeat("0", len(two)), ""},
		} {
			got, err := g.RevParse(t.Context(), c.rev)
			if got != c.want || (c.want == "") != errors.Is(err, ErrUnknownRevision) {
				t.Errorf("RevParse(%q) = %q, %v; want %q", c.rev, got, err, c.want)
			}
		}
	})
}
