package environment

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/git-env/git-env/environment/api"
)

// manyFiles are files in directories, to give an index some weight.
func manyFiles(n int) map[string]string {
	files := map[string]string{"f": "start\n"}
	for i := range n {
		files[fmt.Sprintf("d%d/f%d", i/50, i)] = "x\n"
	}
	return files
}

func (r *rig) prepareInside(v *Env) {
	r.t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, err := v.gitMounts(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// insideStatus is what git says whose git directory is the inside one.
func (r *rig) insideStatus(v *Env) string {
	r.t.Helper()
	out, err := gitTry(v.st.Workspace, []string{"GIT_DIR=" + v.insideDir(), "GIT_WORK_TREE=" + v.st.Workspace,
		"GIT_ALTERNATE_OBJECT_DIRECTORIES=" + filepath.Join(r.repo, ".git/objects")}, "status", "--porcelain", "-b")
	if err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
	return out
}

// TestNobodySeesAnOldIndex asks git on the host right after each commit.
func TestNobodySeesAnOldIndex(t *testing.T) {
	r := newRig(t, manyFiles(1500))
	v := r.env("e")
	r.prepareInside(v)
	for i := range 25 {
		write(t, filepath.Join(v.st.Workspace, "f"), fmt.Sprint("round ", i, "\n"))
		write(t, filepath.Join(v.st.Workspace, fmt.Sprintf("d1/new%d", i)), "n\n")
		if i > 0 {
			if err := os.Remove(filepath.Join(v.st.Workspace, fmt.Sprintf("d1/new%d", i-1))); err != nil {
				t.Fatal(err)
			}
		}
		r.commit(v)
		if st := git(t, v.st.Workspace, "status", "--porcelain"); st != "" {
			t.Fatalf("round %d: status on the host: %s", i, st)
		}
		r.settled(v)
		if st := r.insideStatus(v); st != "## env/e\n" {
			t.Fatalf("round %d: status inside: %s", i, st)
		}
	}
}

// TestIndexAfterCrash: the daemon dies after it moved the branch and before the
// indexes followed.
func TestIndexAfterCrash(t *testing.T) {
	r := newRig(t, manyFiles(100))
	v := r.env("e")
	r.prepareInside(v)
	old := map[string][]byte{}
	files := []string{v.indexPath(), v.standingPath(), filepath.Join(v.insideDir(), "index"), filepath.Join(v.insideDir(), v.st.Branch())}
	write(t, filepath.Join(v.st.Workspace, "f"), "one\n")
	r.commit(v)
	r.settled(v)
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		old[f] = data
	}
	write(t, filepath.Join(v.st.Workspace, "f"), "two\n")
	write(t, filepath.Join(v.st.Workspace, "g"), "two\n")
	r.commit(v)
	r.settled(v)
	// Each on its own, and all: whichever was written before the end.
	for _, part := range [][]string{files, files[:2], files[1:], files[1:2]} {
		r.crash()
		for _, f := range part {
			write(t, f, string(old[f]))
		}
		r.open()
		v = r.up("e")
		if st := git(t, v.st.Workspace, "status", "--porcelain"); st != "" {
			t.Errorf("%q: status on the host: %s", part, st)
		}
		r.settled(v)
		if st := r.insideStatus(v); st != "## env/e\n" {
			t.Errorf("%q: status inside: %s", part, st)
		}
	}
	// After a reboot nothing is known of files that nobody flushed.
	r.crash()
	write(t, files[0], string(old[files[0]]))
	if err := os.WriteFile(files[1], []byte(strings.Replace(string(old[files[1]]), bootID(), "another", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	r.open()
	v = r.up("e")
	if st := git(t, v.st.Workspace, "status", "--porcelain"); st != "" {
		t.Errorf("after a reboot: status on the host: %s", st)
	}
	r.settled(v)
	if st := r.insideStatus(v); st != "## env/e\n" {
		t.Errorf("after a reboot: status inside: %s", st)
	}
}

// TestLockedIndex: a git of the user's holds the index while something is
// committed. Inside is not kept back, and the index follows when it is free.
func TestLockedIndex(t *testing.T) {
	r := newRig(t, manyFiles(10))
	v := r.env("e")
	r.prepareInside(v)
	lock := v.indexPath() + ".lock"
	write(t, lock, "")
	write(t, filepath.Join(v.st.Workspace, "f"), "two\n")
	res := r.commit(v)
	for v.standing(res.tip).Inside != res.tip {
		time.Sleep(time.Millisecond)
	}
	if st := r.insideStatus(v); st != "## env/e\n" {
		t.Errorf("status inside: %s", st)
	}
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	r.settled(v)
	if st := git(t, v.st.Workspace, "status", "--porcelain"); st != "" {
		t.Errorf("status on the host: %s", st)
	}
}

// TestIndexThatOnlyGitCanChange: version 4, and one that is damaged.
func TestIndexThatOnlyGitCanChange(t *testing.T) {
	r := newRig(t, manyFiles(100))
	v := r.env("e")
	r.prepareInside(v)
	git(t, v.st.Workspace, "update-index", "--index-version", "4")
	for i, spoil := range []func(){func() {}, func() { write(t, v.indexPath(), "rubbish") }, func() { write(t, v.indexPath(), "") }} {
		spoil()
		write(t, filepath.Join(v.st.Workspace, "f"), fmt.Sprint("round ", i, "\n"))
		if err := os.RemoveAll(filepath.Join(v.st.Workspace, fmt.Sprintf("d%d", i))); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		r.commit(v)
		if st := git(t, v.st.Workspace, "status", "--porcelain"); st != "" {
			t.Errorf("%d: status on the host: %s", i, st)
		}
		r.settled(v)
		if st := r.insideStatus(v); st != "## env/e\n" {
			t.Errorf("%d: status inside: %s", i, st)
		}
	}
}

// TestCommittedUnseen: git inside commits on the commit before ours, because it
// was at it while ours was made. What ours had is not undone.
func TestCommittedUnseen(t *testing.T) {
	in := newInside(t)
	in.edit("h", "h\n")
	in.commit(in.v)
	was := in.git("rev-parse", "HEAD")
	in.git("tag", "was")
	in.edit("f", "ours\n")
	if err := os.Remove(filepath.Join(in.v.st.Workspace, "h")); err != nil {
		t.Fatal(err)
	}
	in.commit(in.v)
	// As it was before ours: git inside did not see it yet.
	in.git("update-ref", BranchRef("e"), was)
	in.git("read-tree", was)
	in.v.stands(func(s *standing) { s.Inside = was })
	in.edit("theirs", "theirs\n")
	in.git("add", "theirs")
	in.git("commit", "-qm", "theirs")
	in.commit(in.v)
	if got := git(t, in.repo, "show", "env/e:f"); got != "ours" {
		t.Errorf("f is %q in the branch", got)
	}
	if list := git(t, in.repo, "ls-tree", "--name-only", "env/e"); list != "f\ntheirs" {
		t.Errorf("the branch has %q", list)
	}
	in.agree()
}

// TestTwoAtOnce commits from two sides while git on the host looks.
func TestTwoAtOnce(t *testing.T) {
	r := newRig(t, manyFiles(500))
	v := r.env("e")
	r.prepareInside(v)
	var wg sync.WaitGroup
	for side := range 2 {
		wg.Go(func() {
			for i := range 10 {
				name := filepath.Join(v.st.Workspace, fmt.Sprintf("side%d", side))
				if err := os.WriteFile(name, fmt.Append(nil, i), 0o644); err != nil {
					t.Error(err)
				}
				if _, err := r.e.Commit(t.Context(), api.Commit{Env: "e"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if st := git(t, v.st.Workspace, "status", "--porcelain"); st != "" {
		t.Errorf("status on the host: %s", st)
	}
	r.settled(v)
	if st := r.insideStatus(v); st != "## env/e\n" {
		t.Errorf("status inside: %s", st)
	}
}
