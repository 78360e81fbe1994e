package environment

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/internal/gitcmd"
)

// The test binary is also the file server.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "watchdog" {
		os.Exit(fusefs.WatchdogMain(context.Background(), os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "fusefs" {
		os.Exit(fusefs.ServerMain(context.Background(), os.Args[2:]))
	}
	os.Exit(m.Run())
}

// needFuse skips a test where nothing can be mounted, unless that is required.
func needFuse(t testing.TB) {
	t.Helper()
	err := CheckHost()
	if err == nil {
		return
	}
	if os.Getenv("GITENV_TEST_REQUIRE") == "1" {
		t.Fatal(err)
	}
	t.Skip(err)
}

// rig is a repository with an engine on it.
type rig struct {
	t    testing.TB
	repo string
	e    *Engine
}

func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := gitTry(dir, nil, args...)
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSuffix(out, "\n")
}

func gitTry(dir string, env []string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "LC_ALL=C"), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		stdout.Write(stderr.Bytes())
	}
	return stdout.String(), err
}

// newRepo makes a repository of the files, in a home of its own.
func newRepo(t testing.TB, files map[string]string) string {
	t.Helper()
	home := t.TempDir()
	for k, v := range map[string]string{"HOME": home, "XDG_DATA_HOME": filepath.Join(home, "data"), "XDG_CONFIG_HOME": "",
		"XDG_RUNTIME_DIR": filepath.Join(home, "run"), "GIT_CONFIG_NOSYSTEM": "1"} {
		if tt, ok := t.(*testing.T); ok {
			tt.Setenv(k, v)
		}
	}
	conf := "[user]\n\tname = A\n\temail = a@example.com\n[init]\n\tdefaultBranch = main\n"
	if err := os.WriteFile(filepath.Join(home, ".gitconfig"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	repo := filepath.Join(home, "repo")
	git(t, home, "init", "-q", repo)
	for name, text := range files {
		write(t, filepath.Join(repo, name), text)
	}
	git(t, repo, "add", "-A", "-f")
	git(t, repo, "commit", "-q", "--allow-empty", "-m", "base")
	return repo
}

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func newRig(t testing.TB, files map[string]string) *rig {
	t.Helper()
	r := &rig{t: t, repo: newRepo(t, files)}
	r.open()
	t.Cleanup(func() {
		if r.e == nil {
			return
		}
		if err := r.e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return r
}

// open starts an engine, as the next daemon does.
func (r *rig) open() {
	r.t.Helper()
	repo, err := gitcmd.Discover(r.t.Context(), r.repo, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	store, err := OpenStore(r.t.Context(), repo)
	if err != nil {
		r.t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	if r.e, err = OpenEngine(r.t.Context(), store, EngineOptions{Exe: exe, Log: log}); err != nil {
		r.t.Fatal(err)
	}
}

// crash leaves an engine behind as kill -9 does, but for its processes.
func (r *rig) crash() {
	r.t.Helper()
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	if r.e.files != nil {
		_ = r.e.files.Close()
	}
	_ = r.e.store.Close()
	r.e = nil
}

// state is that of a new environment on HEAD.
func (r *rig) state(name string) *State {
	r.t.Helper()
	ctx := r.t.Context()
	set, err := r.e.store.readSettings(ctx, "")
	if err != nil {
		r.t.Fatal(err)
	}
	st, err := r.e.newState(ctx, name, git(r.t, r.repo, "rev-parse", "HEAD"), set)
	if err != nil {
		r.t.Fatal(err)
	}
	st.Image = ImageRef{Ref: "host"}
	if st.Tree, err = r.e.treeOf(ctx, st.First); err != nil {
		r.t.Fatal(err)
	}
	return st
}

// env makes an environment and mounts it.
func (r *rig) env(name string) *Env {
	r.t.Helper()
	needFuse(r.t)
	if err := r.e.bringIntoBeing(r.t.Context(), r.state(name), nil); err != nil {
		r.t.Fatal(err)
	}
	return r.up(name)
}

// up mounts an environment.
func (r *rig) up(name string) *Env {
	r.t.Helper()
	v, err := r.e.env(name)
	if err != nil {
		r.t.Fatal(err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.mount(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	return v
}

func (r *rig) commit(v *Env) *commitResult {
	r.t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	res, err := v.commit(r.t.Context(), commitRequest{message: "work"})
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

// settled waits until the indexes have followed the branch.
func (r *rig) settled(v *Env) {
	r.t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.awaitIndexes(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) delete(name string, force bool) (*api.Deleted, error) {
	return r.e.Delete(r.t.Context(), api.Delete{Env: name, Force: force, Into: git(r.t, r.repo, "rev-parse", "HEAD")})
}

// left fails the test for whatever of an environment is still in the repository.
func (r *rig) left(name string) {
	r.t.Helper()
	if refs := git(r.t, r.repo, "for-each-ref", "refs/heads/env/", "refs/env/"); refs != "" {
		r.t.Errorf("refs left: %s", refs)
	}
	if list := git(r.t, r.repo, "worktree", "list", "--porcelain"); strings.Count(list, "worktree ") != 1 {
		r.t.Errorf("worktrees left: %s", list)
	}
	dir := filepath.Join(r.repo, ".git")
	for _, p := range []string{"env/envs/" + name, "worktrees", "env/layers/*", "env/tmp/*"} {
		if found, _ := filepath.Glob(filepath.Join(dir, p)); len(found) > 0 {
			r.t.Errorf("left: %s", found)
		}
	}
	if found, _ := filepath.Glob(filepath.Join(DataHome(), "git-env", "*")); len(found) > 0 {
		r.t.Errorf("left: %s", found)
	}
}
