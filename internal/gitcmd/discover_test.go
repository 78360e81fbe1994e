package gitcmd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestDiscover(t *testing.T) {
	dir := newRepo(t, "sha1")
	gitDir := filepath.Join(dir, ".git")
	sub := filepath.Join(dir, "sub dir")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	root := filepath.Dir(dir)
	linked := filepath.Join(root, "linked")
	git(t, dir, "worktree", "add", "-q", "--detach", linked)
	linkedDir := filepath.Join(gitDir, "worktrees/linked")
	bare := filepath.Join(root, "bare.git")
	git(t, root, "init", "-q", "--bare", "--object-format=sha256", bare)
	odd := filepath.Join(root, "new\nline")
	git(t, root, "init", "-q", odd)
	link := filepath.Join(root, "link")
	if err := os.Symlink(sub, link); err != nil {
		t.Fatal(err)
	}

	normal := Repo{GitDir: gitDir, CommonDir: gitDir, WorkTree: dir, ObjectFormat: "sha1"}
	inSub := normal
	inSub.Prefix = "sub dir/"
	inLinked := Repo{GitDir: linkedDir, CommonDir: gitDir, WorkTree: linked, ObjectFormat: "sha1"}
	for _, c := range []struct {
		name, dir string
		env       []string
		want      Repo
	}{
		{"top", dir, nil, normal},
		{"subdirectory", sub, nil, inSub},
		{"through a link", link, nil, inSub},
		{"linked", linked, nil, inLinked},
		{"bare", bare, nil, Repo{GitDir: bare, CommonDir: bare, Bare: true, ObjectFormat: "sha256"}},
		{"inside bare", filepath.Join(bare, "refs"), nil, Repo{GitDir: bare, CommonDir: bare, Bare: true, ObjectFormat: "sha256"}},
		{"inside .git", filepath.Join(gitDir, "refs"), nil, normal},
		{"newline", odd, nil, Repo{GitDir: odd + "/.git", CommonDir: odd + "/.git", WorkTree: odd, ObjectFormat: "sha1"}},
		{"--git-dir bare", dir, []string{"GIT_DIR=../bare.git"}, Repo{GitDir: bare, CommonDir: bare, Bare: true, ObjectFormat: "sha256"}},
		{"--git-dir", dir, []string{"GIT_DIR=.git"}, normal},
		{"--git-dir --work-tree", root, []string{"GIT_DIR=repo/.git", "GIT_WORK_TREE=repo"}, normal},
		{"--git-dir from elsewhere with work tree", sub, []string{"GIT_DIR=" + gitDir, "GIT_WORK_TREE=" + dir}, inSub},
		{"hook", dir, []string{"GIT_DIR=.git", "GIT_INDEX_FILE=.git/index.lock", "GIT_PREFIX=sub dir/"}, inSub},
		{"alias", dir, []string{"GIT_PREFIX=sub dir/"}, inSub},
		{"stale prefix", dir, []string{"GIT_PREFIX=gone/"}, normal},
		{"outside prefix", dir, []string{"GIT_PREFIX=../"}, normal},
		{"hook in linked", linked, []string{"GIT_DIR=" + linkedDir, "GIT_INDEX_FILE=x"}, inLinked},
		{"hook of a push", gitDir, []string{"GIT_DIR=.", "GIT_QUARANTINE_PATH=x", "GIT_OBJECT_DIRECTORY=y"}, normal},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Discover(t.Context(), c.dir, append(os.Environ(), c.env...))
			if err != nil {
				t.Fatal(err)
			}
			if *got != c.want {
				t.Errorf("got  %+v\nwant %+v", *got, c.want)
			}
		})
	}
}

func TestDiscoverNothing(t *testing.T) {
	dir := newRepo(t, "sha1")
	root := filepath.Dir(dir)
	empty := filepath.Join(root, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dir  string
		env  []string
		want string
	}{
		{empty, nil, "not a git repository (or any of the parent directories): .git"},
		{dir, []string{"GIT_DIR=" + empty}, "not a git repository: '" + empty + "'"},
	} {
		_, err := Discover(t.Context(), c.dir, append(os.Environ(), append(c.env, "GIT_CEILING_DIRECTORIES="+root)...))
		if !errors.Is(err, ErrNotRepo) || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	if _, err := Discover(t.Context(), filepath.Join(root, "missing"), os.Environ()); err == nil || errors.Is(err, ErrNotRepo) {
		t.Errorf("missing directory: %v", err)
	}
}

func TestDiscoverRefused(t *testing.T) {
	dir := newRepo(t, "sha1")
	if os.Getuid() != 0 {
		if os.Getenv("GITENV_TEST_REQUIRE") == "1" {
			t.Fatal("not root")
		}
		t.Skip("needs root to give a repository to another user")
	}
	for _, p := range []string{dir, filepath.Join(dir, ".git")} {
		if err := os.Lchown(p, 12345, 12345); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Discover(t.Context(), dir, os.Environ())
	var e *Error
	if !errors.Is(err, ErrNotRepo) || !errors.As(err, &e) ||
		!strings.Contains(err.Error(), "dubious ownership") || !strings.Contains(e.Hint(), "safe.directory") {
		t.Errorf("got %v", err)
	}
}

// TestDiscoverUnderGit has git itself hand down its variables.
func TestDiscoverUnderGit(t *testing.T) {
	dir := newRepo(t, "sha1")
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	bin := tempDir(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nGITENV_TEST_DISCOVER=1 exec '%s' -test.run '^TestDiscoverChild$' -test.v\n", exe)
	if err := os.WriteFile(filepath.Join(bin, "git-discover"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	git(t, dir, "config", "alias.viaplain", "discover")
	git(t, dir, "config", "alias.viashell", "!git discover")
	hook := "#!/bin/sh\nexec git discover >&2\n"
	if err := os.WriteFile(filepath.Join(dir, ".git/hooks/pre-commit"), []byte(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("[%s] [%s] ", filepath.Join(dir, ".git"), dir)
	for _, c := range []struct {
		dir    string
		args   []string
		prefix string
	}{
		{dir, []string{"discover"}, ""},
		{sub, []string{"discover"}, "sub/"},
		{sub, []string{"viaplain"}, "sub/"},
		{sub, []string{"viashell"}, "sub/"},
		{sub, []string{"commit", "--allow-empty", "-m", "x"}, "sub/"},
		{"/", []string{"-C", sub, "discover"}, "sub/"},
		{dir, []string{"--git-dir=.git", "discover"}, ""},
		{"/", []string{"--git-dir=" + dir + "/.git", "--work-tree=" + dir, "discover"}, ""},
	} {
		if out := git(t, c.dir, c.args...); !strings.Contains(out, want+"["+c.prefix+"]") {
			t.Errorf("git %s in %s: %s", c.args, c.dir, out)
		}
	}
}

// TestDiscoverChild is what the commands of TestDiscoverUnderGit run.
func TestDiscoverChild(t *testing.T) {
	if os.Getenv("GITENV_TEST_DISCOVER") == "" {
		return
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	r, err := Discover(t.Context(), dir, os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("[%s] [%s] [%s]\n", r.GitDir, r.WorkTree, r.Prefix)
}

func TestUserCommand(t *testing.T) {
	dir := newRepo(t, "sha1")
	environ := append(os.Environ(), "GIT_INDEX_FILE=/nonexistent/x", "GIT_DIR=.git", "GIT_PREFIX=a/", "GIT_AUTHOR_NAME=me")
	cmd := UserCommand(t.Context(), environ, dir, "status", "--short")
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("status: %s, %v", out, err)
	}
	all := strings.Join(cmd.Env, "\n")
	if strings.Contains(all, "GIT_INDEX_FILE") || !strings.Contains(all, "GIT_DIR=.git") || !strings.Contains(all, "GIT_AUTHOR_NAME=me") {
		t.Errorf("environment %s", all)
	}
	r, err := Discover(t.Context(), dir, environ)
	if err != nil {
		t.Fatal(err)
	}
	moved := exec.Command("git", "rev-parse", "--show-toplevel")
	moved.Dir, moved.Env = t.TempDir(), r.Environ(environ)
	if out, err := moved.Output(); err != nil || strings.TrimSpace(string(out)) != dir {
		t.Errorf("elsewhere: %s, %v", out, err)
	}
}
