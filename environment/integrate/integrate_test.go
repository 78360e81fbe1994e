package integrate

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/internal/gitcmd"
)

// fixture is a repository with a base commit on main and an environment's branch
// env/e, changed in its own linked work tree so that the user's is not touched.
type fixture struct {
	t         *testing.T
	dir, env  string
	base      string
	environ   []string
	out, errs bytes.Buffer
}

func newFixture(t *testing.T, files map[string]string) *fixture {
	t.Helper()
	top := t.TempDir()
	f := &fixture{t: t, dir: filepath.Join(top, "repo"), env: filepath.Join(top, "env")}
	f.environ = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + top, "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C"}
	must(t, os.Mkdir(f.dir, 0o755))
	f.git(f.dir, "init", "-q", "-b", "main")
	f.git(f.dir, "config", "user.name", "User")
	f.git(f.dir, "config", "user.email", "user@example.com")
	f.write(f.dir, files)
	f.git(f.dir, "add", "-A", "-f")
	f.git(f.dir, "commit", "-q", "--allow-empty", "-m", "base")
	f.base = f.git(f.dir, "rev-parse", "HEAD")
	f.git(f.dir, "worktree", "add", "-q", "-b", "env/e", f.env)
	return f
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) git(dir string, args ...string) string {
	f.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env = dir, f.environ
	out, err := cmd.CombinedOutput()
	if err != nil {
		f.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// write creates files; the content "-" deletes one.
func (f *fixture) write(dir string, files map[string]string) {
	f.t.Helper()
	for name, content := range files {
		p := filepath.Join(dir, name)
		if content == "-" {
			must(f.t, os.RemoveAll(p))
			continue
		}
		must(f.t, os.MkdirAll(filepath.Dir(p), 0o755))
		must(f.t, os.WriteFile(p, []byte(content), 0o644))
	}
}

func (f *fixture) commit(dir string, files map[string]string) {
	f.t.Helper()
	f.write(dir, files)
	f.git(dir, "add", "-A", "-f")
	f.git(dir, "commit", "-q", "-m", "change")
}

func (f *fixture) tree() *Tree {
	f.t.Helper()
	repo, err := gitcmd.Discover(context.Background(), f.dir, f.environ)
	must(f.t, err)
	tr, err := Open(repo, f.environ, IO{Stdout: &f.out, Stderr: &f.errs})
	must(f.t, err)
	return tr
}

func (f *fixture) source() Source {
	return Source{Name: "e", Ref: "refs/heads/env/e", Tip: f.git(f.dir, "rev-parse", "env/e"), Base: f.base}
}

func (f *fixture) read(name string) string {
	f.t.Helper()
	data, err := os.ReadFile(filepath.Join(f.dir, name))
	if err != nil {
		return "<" + filepath.Base(name) + " is absent>"
	}
	return string(data)
}

// state is everything a refusal must not change: all files with their bytes and
// modes, the index byte for byte, HEAD and the stash.
func (f *fixture) state() string {
	f.t.Helper()
	var lines []string
	err := filepath.WalkDir(f.dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(f.dir, p)
		if rel == ".git" {
			return fs.SkipDir
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		content := ""
		switch {
		case fi.Mode().IsRegular():
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			content = string(data)
		case fi.Mode()&fs.ModeSymlink != 0:
			content, _ = os.Readlink(p)
		}
		lines = append(lines, fmt.Sprintf("%s %v %q", rel, fi.Mode(), content))
		return nil
	})
	must(f.t, err)
	index, _ := os.ReadFile(filepath.Join(f.dir, ".git", "index"))
	lines = append(lines, fmt.Sprintf("index %x", index))
	for _, extra := range []string{"MERGE_MSG", "MERGE_HEAD", "AUTO_MERGE", mergeFile, applyDir} {
		if _, err := os.Lstat(filepath.Join(f.dir, ".git", extra)); err == nil {
			lines = append(lines, "has "+extra)
		}
	}
	cmd := exec.Command("git", "rev-parse", "-q", "--symbolic-full-name", "HEAD", "HEAD", "refs/stash")
	cmd.Dir, cmd.Env = f.dir, f.environ
	refs, _ := cmd.Output()
	lines = append(lines, string(refs))
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func (f *fixture) wantSame(before string) {
	f.t.Helper()
	if after := f.state(); after != before {
		f.t.Errorf("something changed\n--- before\n%s\n--- after\n%s", before, after)
	}
}

func wantCode(t *testing.T, err error, want int) {
	t.Helper()
	if got := environment.ExitCode(err); got != want {
		t.Fatalf("exit code %d, want %d: %v", got, want, err)
	}
}

func numbered(n int, change map[int]string) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		if s, ok := change[i]; ok {
			fmt.Fprintln(&b, s)
		} else {
			fmt.Fprintln(&b, "line", i)
		}
	}
	return b.String()
}
