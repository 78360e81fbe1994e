package environment

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// seedFiles is a tree with rules of every sort. What is in its files stays the
// same under each of them: git would convert again what is only moved.
func seedFiles() map[string]string {
	return map[string]string{
		".gitignore": "*.o\n/out/\n!keep.o\n", ".gitattributes": "*.txt text=auto\n*.up filter=up\n*.crlf eol=crlf\n*.id ident\n",
		"a.txt": "ONE\nTWO\n", "bin.txt": "A\x00B\n", "tracked.o": "O\n", "out/tracked": "T\n",
		"dir/b.txt": "B\n", "dir/.gitignore": "!*.o\ntmp*\n", "dir/sub/c": "C\n", "dir/sub/deep/d": "D\n",
		"x.up": "UP\n", "y.crlf": "Y\n", "n/.gitattributes": "*.txt -text\n", "n/raw.txt": "R\n",
	}
}

// mutator changes two trees in the same way.
type mutator struct {
	t     *testing.T
	rnd   *rand.Rand
	clock int64
	roots [2]string
}

func (m *mutator) pick(s ...string) string { return s[m.rnd.IntN(len(s))] }

func (m *mutator) dir() string {
	return m.pick("", "dir", "dir/sub", "dir/sub/deep", "n", "out", "new", "new/er", "a.txt", "tmpdir", "dir/tmpdir")
}

func (m *mutator) name() string {
	return filepath.Join(m.dir(), m.pick("a.txt", "crlf.txt", "bin.txt", "x.o", "keep.o", "tracked.o", "tracked", "b.txt", "c", "d",
		"x.up", "y.crlf", "z.id", "raw.txt", "tmp1", "sub", "dir", "new", ":x", ":!y", ":(top)z", "*", "sp ace", " lead", "new\nline", "q\"uote", "l\xe4tin",
		"-n", "#c", "!b", "back\\slash", ".gitignore", ".gitattributes"))
}

func (m *mutator) text(name string) string {
	switch filepath.Base(name) {
	case ".gitignore":
		return m.pick("", "*.o\n", "*\n!*.txt\n!*/\n", "tmp*\n!tmp1\n", "/new\n", "sub/\n", "\\:x\n\\!b\n", ".gitignore\n*.up\n", "**/deep\n", "x.o \n")
	case ".gitattributes":
		return m.pick("", "* text=auto\n", "*.txt text\n", "*.txt -text\n", "* eol=lf\n", "*.o filter=up\n", "[attr]x filter=up\nc x\n", "* !filter\n")
	}
	return m.pick("one\ntwo\n", "one\r\ntwo\r\n", "mixed\r\nlines\n", "a\x00b\r\n", "", "no newline", "$Id$\n", "$Id: 0 $\r\n", "lone\rcr\r\n") + m.pick("", fmt.Sprint(m.rnd.IntN(9), "\n"))
}

// step makes one change; one that cannot be made must be so in both trees.
func (m *mutator) step() {
	name, other := m.name(), m.name()
	text, kind := m.text(name), m.rnd.IntN(16)
	if base := filepath.Base(name); strings.HasPrefix(base, ".git") && kind > 6 && kind != 7 {
		return // rules are files
	}
	if strings.HasPrefix(filepath.Base(other), ".git") {
		other += "x"
	}
	var errs [2]error
	m.clock++
	for i, root := range m.roots {
		file := filepath.Join(root, name)
		errs[i] = change(kind, file, filepath.Join(root, other), text)
		if fi, err := os.Lstat(file); errs[i] == nil && kind < 7 && err == nil && fi.Mode().IsRegular() {
			// Long past and different, so that git never looks at it without need.
			errs[i] = os.Chtimes(file, time.Unix(1e9+m.clock, 0), time.Unix(1e9+m.clock, 0))
		}
	}
	if (errs[0] == nil) != (errs[1] == nil) {
		m.t.Fatalf("step %d %q %q: %v, but %v", kind, name, other, errs[0], errs[1])
	}
}

func change(kind int, name, other, text string) error {
	switch kind {
	case 0, 1, 2, 3, 4, 5, 6:
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if fi, err := os.Lstat(name); err == nil && !fi.Mode().IsRegular() {
			return os.ErrExist
		}
		return os.WriteFile(name, []byte(text), 0o644)
	case 7, 8:
		return os.Remove(name)
	case 9:
		return os.RemoveAll(filepath.Dir(name) + "/" + filepath.Base(name))
	case 10, 11:
		return os.Rename(name, other)
	case 12:
		return os.Chmod(name, 0o755)
	case 13:
		return os.Symlink("a.txt", name)
	case 14: // a file becomes a directory
		if err := os.Remove(name); err != nil {
			return err
		}
		return os.MkdirAll(name+"/inner", 0o755)
	default: // a directory becomes a file
		dir := filepath.Dir(name)
		if filepath.Base(dir) == "data" || len(dir) < len(other)-len(filepath.Base(other)) && strings.HasPrefix(other, dir+"/") && !strings.HasPrefix(name, dir) {
			return os.ErrInvalid
		}
		if fi, err := os.Lstat(name); err != nil || !fi.IsDir() {
			return os.ErrInvalid
		}
		if err := os.RemoveAll(name); err != nil {
			return err
		}
		return os.WriteFile(name, []byte("was a directory\n"), 0o644)
	}
}

// TestCommitLikeGit makes random changes in a workspace and in a plain work tree:
// each commit must have the tree that git add -A gives.
func TestCommitLikeGit(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := newRig(t, seedFiles())
			git(t, r.repo, "config", "filter.up.clean", "tr a-z A-Z")
			v := r.env("e")
			plain := filepath.Join(t.TempDir(), "plain")
			git(t, r.repo, "-c", "core.autocrlf=false", "clone", "-q", "--no-checkout", r.repo, plain)
			git(t, plain, "config", "filter.up.clean", "tr a-z A-Z")
			git(t, plain, "reset", "-q", "--hard")
			for name, text := range seedFiles() { // as the workspace shows them: without conversion
				write(t, filepath.Join(plain, name), text)
				if err := os.Chtimes(filepath.Join(plain, name), time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
					t.Fatal(err)
				}
			}
			git(t, plain, "add", "-A")
			m := &mutator{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), roots: [2]string{v.st.Workspace, plain}}
			for round := range 12 {
				for range 1 + m.rnd.IntN(12) {
					m.step()
				}
				res := r.commit(v)
				git(t, plain, "add", "-A")
				want, got := git(t, plain, "write-tree"), git(t, r.repo, "rev-parse", res.tip+"^{tree}")
				if want != got {
					git(t, plain, "fetch", "-q", r.repo, res.tip)
					t.Fatalf("round %d differs from git add -A:\n%s", round, git(t, plain, "diff-tree", "-r", want, got))
				}
				if again := r.commit(v); again.commit != "" {
					t.Fatalf("round %d: committed again without a change", round)
				}
			}
			if st := git(t, v.st.Workspace, "status", "--porcelain"); st != "" && v.ensureIndex(t.Context()) == nil {
				t.Logf("host status: %s", st)
			}
		})
	}
}

// TestFreshIndex has git find nothing changed, and nothing to look into.
func TestFreshIndex(t *testing.T) {
	r := newRig(t, seedFiles())
	v := r.env("e")
	v.mu.Lock()
	err := v.ensureIndex(t.Context())
	v.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if st := git(t, v.st.Workspace, "status", "--porcelain"); st != "" {
		t.Errorf("a fresh workspace is dirty: %s", st)
	}
	if st := git(t, v.st.Workspace, "diff-files", "--name-only"); st != "" {
		t.Errorf("git has to look into: %s", st)
	}
	write(t, filepath.Join(v.st.Workspace, "dir/b.txt"), "changed\n")
	write(t, filepath.Join(v.st.Workspace, "fresh"), "new\n")
	r.commit(v)
	if st := git(t, v.st.Workspace, "status", "--porcelain"); st != "" {
		t.Errorf("after a commit: %s", st)
	}
}
