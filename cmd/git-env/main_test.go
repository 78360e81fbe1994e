package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/internal/gitcmd"
)

type result struct {
	code        int
	out, stderr string
}

// call runs a command in dir, the way Main does.
func call(t *testing.T, dir string, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	a := newApp(strings.NewReader(""), &out, &errs)
	a.dir = dir
	a.environ = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_CEILING_DIRECTORIES=" + filepath.Dir(dir)}
	defer a.close()
	code := a.main(args)
	return result{code, out.String(), errs.String()}
}

// newRepo makes a repository with one commit.
func newRepo(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"},
		{"-c", "user.name=U", "-c", "user.email=u@example.com", "commit", "-q", "--allow-empty", "-m", "base"},
	} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return dir
}

func TestHelpGoesToStdout(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{
		{"-h"}, {"--help"}, {"help"}, {"create", "-h"}, {"run", "e", "--help"}, {"run", "-m", "x", "-h"}, {"daemon", "-h"},
		{"daemon", "stop", "--help"}, {"diff", "-h"}, {"diff", "e", "--help"}, {"apply", "-h", "--", "x"},
	} {
		r := call(t, dir, args...)
		if r.code != 0 || r.stderr != "" || !strings.HasPrefix(r.out, "usage: git env ") {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

func TestUsageErrors(t *testing.T) {
	dir := newRepo(t)
	for _, c := range []struct {
		args []string
		say  string
	}{
		{nil, "no command given"},
		{[]string{"frobnicate"}, "'frobnicate' is not a git env command"},
		{[]string{"daemon", "frobnicate"}, "'frobnicate' is not a git env daemon command"},
		{[]string{"create", "--frobnicate"}, "unknown flag --frobnicate"},
		{[]string{"create", "a", "b"}, "unexpected argument b"},
		{[]string{"create", "a..b"}, "not a valid environment name"},
		{[]string{"create", "--", "-x"}, "not a valid environment name"},
		{[]string{"create", "--dirty", "--from", "nothing-like-it"}, "bad revision"},
		{[]string{"run", "e"}, "no command given"},
		{[]string{"run", "e", "ls"}, "comes after '--'"},
		{[]string{"run", "e", "ls", "-l"}, "comes after '--'"},
		{[]string{"run", "e", "--"}, "no command given"},
		{[]string{"run", "-c", "x", "e", "--", "y"}, "-c takes one line"},
		{[]string{"run", "-e", "=x", "e", "--", "y"}, "names no variable"},
		{[]string{"run", "--timeout", "-1s", "e", "--", "y"}, "negative"},
		{[]string{"run", "--timeout", "soon", "e", "--", "y"}, "soon"},
		{[]string{"merge", "--no-ff", "--squash"}, "--no-ff and --squash"},
		{[]string{"merge", "--continue", "e"}, "take no other argument"},
		{[]string{"apply", "--abort", "--", "x"}, "takes no other argument"},
		{[]string{"delete"}, "<env>"},
		{[]string{"daemon"}, "expected"},
		{[]string{"log", "-p", "--oneline"}, "can't be used together"},
		{[]string{"fork", "e", "x@y"}, "not a valid environment name"},
	} {
		r := call(t, dir, c.args...)
		want := environment.ExitUsage
		if c.say == "bad revision" {
			want = environment.ExitRepository
		}
		if r.code != want || r.out != "" || !strings.Contains(r.stderr, c.say) {
			t.Errorf("%v: %+v", c.args, r)
		}
	}
}

func TestUsageErrorShowsUsageAndHint(t *testing.T) {
	r := call(t, t.TempDir(), "run", "e", "ls")
	for _, want := range []string{"error: ", "usage: git env run [<env>]", "hint: the command to run comes after '--'"} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("no %q in %s", want, r.stderr)
		}
	}
}

func TestOutsideARepository(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{
		{"list"}, {"status"}, {"create", "x"}, {"run", "x", "--", "true"}, {"shell", "x"}, {"log", "x"}, {"show", "x"}, {"diff", "x"},
		{"path", "x"}, {"checkout", "x"}, {"merge", "x"}, {"merge", "--abort"}, {"apply", "x"}, {"apply", "--abort"}, {"fork", "x"},
		{"delete", "x"}, {"daemon", "status"}, {"daemon", "stop"},
	} {
		r := call(t, dir, args...)
		if r.code != environment.ExitRepository || r.out != "" || !strings.HasPrefix(r.stderr, "fatal: not a git repository") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if r := call(t, dir, "version"); r.code != 0 || !strings.HasPrefix(r.out, "git-env ") {
		t.Errorf("%+v", r)
	}
}

func TestNoSuchEnvironment(t *testing.T) {
	dir := newRepo(t)
	for _, args := range [][]string{
		{"status", "x"}, {"run", "x", "--", "true"}, {"shell", "x"}, {"log", "x"}, {"show", "x"}, {"diff", "x"}, {"diff", "x", "--stat"},
		{"path", "x"}, {"checkout", "x"}, {"merge", "x"}, {"apply", "x"}, {"fork", "x"}, {"delete", "x", "y"},
	} {
		r := call(t, dir, args...)
		if r.code != environment.ExitNoEnv || r.out != "" || !strings.Contains(r.stderr, "no environment 'x'") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if r := call(t, dir, "delete", "x", "y"); strings.Count(r.stderr, "error: no environment") != 2 {
		t.Errorf("both are told: %+v", r)
	}
	if _, err := os.Stat(filepath.Join(dir, ".git", "env")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a command that found nothing wrote something")
	}
}

func TestOmittedEnvironment(t *testing.T) {
	dir := newRepo(t)
	r := call(t, dir, "run", "--", "true")
	if r.code != environment.ExitUsage || !strings.Contains(r.stderr, "hint: make one with 'git env create'") {
		t.Errorf("%+v", r)
	}
	for _, n := range []string{"one", "two/deep"} {
		env := filepath.Join(dir, ".git", "env", "envs", n)
		if err := os.MkdirAll(env, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(env, "env.json"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r = call(t, dir, "log")
	if r.code != environment.ExitUsage || !strings.Contains(r.stderr, "one, two/deep") {
		t.Errorf("%+v", r)
	}
	// Damaged ones are listed as such, and only what needs them fails.
	if r = call(t, dir, "list"); r.code != 0 || strings.Count(r.out, "damaged") < 2 {
		t.Errorf("%+v", r)
	}
	if r = call(t, dir, "status"); r.code != 0 || strings.Count(r.out, "damaged") < 2 {
		t.Errorf("%+v", r)
	}
	if r = call(t, dir, "status", "one", "--json"); r.code != 0 || !strings.Contains(r.out, `"state":"damaged"`) {
		t.Errorf("%+v", r)
	}
	if r = call(t, dir, "list", "-q"); r.out != "one\ntwo/deep\n" {
		t.Errorf("%+v", r)
	}
	if r = call(t, dir, "merge", "one"); r.code != environment.ExitRepository {
		t.Errorf("%+v", r)
	}
	if r = call(t, dir, "create", "one"); r.code != environment.ExitBusy {
		t.Errorf("%+v", r)
	}
}

func TestDaemonNotRunning(t *testing.T) {
	dir := newRepo(t)
	if r := call(t, dir, "daemon", "status"); r.code != environment.ExitFailed || r.out != "" {
		t.Errorf("%+v", r)
	}
	if r := call(t, dir, "daemon", "stop"); r.code != 0 {
		t.Errorf("%+v", r)
	}
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
		say  string
	}{
		{nil, 0, ""},
		{exitStatus(137), 137, ""},
		{errors.New("x"), 1, "error: x\n"},
		{&environment.Error{Code: 12, Msg: "x", Hint: "a\nb"}, 12, "error: x\nhint: a\nhint: b\n"},
		{fmt.Errorf("x: %w", &environment.Error{Code: 20, Msg: "y"}), 20, "error: x: y\n"},
		{errors.Join(&environment.Error{Code: 11, Msg: "x"}), 11, "error: x\n"},
		{usagef("x").withHint("h"), 129, "error: x\nhint: h\n"},
		{discoverError(gitcmd.ErrNotRepo), 128, "fatal: not a git repository\n"},
		{ours(errors.New("x")), 125, "error: x\n"},
		{ours(&environment.Error{Code: 10, Msg: "x"}), 10, "error: x\n"},
	} {
		var out, errs bytes.Buffer
		a := newApp(nil, &out, &errs)
		if got := a.exit(c.err); got != c.want || errs.String() != c.say || out.Len() > 0 {
			t.Errorf("%v: %d %q", c.err, got, errs.String())
		}
	}
	a := newApp(nil, nil, &bytes.Buffer{})
	a.caught.Store(15)
	if got := a.exit(context.Canceled); got != 143 {
		t.Error(got)
	}
}
