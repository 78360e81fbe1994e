package environment

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/fusefs"
)

// oddNames are names that mean something in git's patterns.
var oddNames = []string{"keep.txt", "sp ace", "trail ", "trail  ", "*", "a?b", "[z]", "back\\slash", "#c", "!b", "new\nline", "-n",
	"\"q\"", ":x", "é", "\\ "}

func newSparse(t *testing.T, files map[string]string, paths ...string) *inside {
	t.Helper()
	r := newRig(t, files)
	needFuse(t)
	st := r.state("e")
	var err error
	if st.Paths, err = r.e.sparsePaths(t.Context(), st.Tree, paths); err != nil {
		t.Fatal(err)
	}
	if err := r.e.bringIntoBeing(t.Context(), st, nil); err != nil {
		t.Fatal(err)
	}
	in := &inside{rig: r, v: r.up("e")}
	in.dir = filepath.Join(in.v.dir(), "git")
	in.prepare()
	return in
}

func oddFiles() map[string]string {
	files := map[string]string{"shown/f": "f\n", "part/shown": "s\n", "top": "t\n"}
	for _, n := range oddNames {
		files[n], files["part/"+n], files["d"+n+"/in"] = n, n, n
		files["shown/"+n] = n
	}
	return files
}

// Both views of git agree that nothing is changed, whatever is hidden is called.
func TestSparseIsCleanAtOnce(t *testing.T) {
	in := newSparse(t, oddFiles(), "shown", "part/shown")
	in.agree()
	shown := map[string]bool{}
	for line := range strings.SplitSeq(in.git("ls-files", "-t", "-z"), "\x00") {
		if p, ok := strings.CutPrefix(line, "H "); ok {
			shown[p] = true
		}
	}
	if len(shown) != len(oddNames)+2 || !shown["shown/f"] || !shown["part/shown"] {
		t.Errorf("not marked as hidden: %v", shown)
	}
	// By the patterns alone git comes to the same.
	in.git("read-tree", "-m", "-u", "HEAD")
	in.agree()
	// Should its index get lost, it is made anew as it was.
	in.edit("shown/f", "2\n")
	in.commit(in.v)
	discard(in.v.indexPath())
	in.prepare()
	in.agree()
}

// A commit has everything that is hidden, the workspace's changes, and what git
// inside did.
func TestSparseCommitsAreComplete(t *testing.T) {
	files := oddFiles()
	files[".gitignore"] = "*.o\n"
	files[".gitattributes"] = "*.crlf text\n"
	in := newSparse(t, files, "shown", "part/shown")
	before := lsTree(in)
	in.edit("shown/f", "changed\n")
	in.edit("shown/x.o", "ignored\n")
	in.edit("part/a.crlf", "one\r\n")
	in.edit("fresh/new", "new\n")
	if err := os.Remove(filepath.Join(in.v.st.Workspace, "part/shown")); err != nil {
		t.Fatal(err)
	}
	if res := in.commit(in.v); res.changed != 4 {
		t.Errorf("%d paths changed", res.changed)
	}
	in.agree()
	in.edit("shown/g", "g\n")
	in.git("add", "-A")
	in.git("commit", "-qm", "inside")
	in.commit(in.v)
	in.agree()
	after := lsTree(in)
	for p, id := range before {
		if p != "shown/f" && p != "part/shown" && after[p] != id {
			t.Errorf("%q was %s, is %s", p, id, after[p])
		}
	}
	if len(after) != len(before)+2 { // fresh/new, part/a.crlf, shown/g, less part/shown
		t.Errorf("%d files, were %d", len(after), len(before))
	}
	if got := git(t, in.repo, "cat-file", "-p", BranchRef("e")+":part/a.crlf"); got != "one" {
		t.Errorf("hidden attributes do not hold: %q", got)
	}
}

func lsTree(in *inside) map[string]string {
	all := map[string]string{}
	for line := range strings.SplitSeq(strings.TrimSuffix(git(in.t, in.repo, "ls-tree", "-r", "-z", BranchRef("e")), "\x00"), "\x00") {
		id, p, _ := strings.Cut(line, "\t")
		all[p] = id
	}
	return all
}

// A merge, by us or by git inside, brings what is hidden along and writes only
// what is shown.
func TestSparseMergesAreComplete(t *testing.T) {
	in := newSparse(t, oddFiles(), "shown", "part/shown")
	for _, how := range []string{"into", "inside"} {
		git(t, in.repo, "merge", "-q", "--ff-only", BranchRef("e"))
		for _, p := range []string{"top", "shown/f", "part/[z]", "d#c/in", "added-" + how + "/x"} {
			write(t, filepath.Join(in.repo, p), how+"\n")
		}
		git(t, in.repo, "add", "-A")
		git(t, in.repo, "commit", "-qm", how)
		if how == "into" {
			in.v.mu.Lock()
			err := in.v.advance(t.Context(), api.Merge{From: "x", Into: "e"}, in.tip(), git(t, in.repo, "rev-parse", "HEAD"))
			in.v.mu.Unlock()
			if err != nil {
				t.Fatal(err)
			}
			in.settled(in.v)
		} else {
			in.git("merge", "-q", "--ff-only", git(t, in.repo, "rev-parse", "HEAD"))
			in.commit(in.v)
		}
		in.agree()
		if tree := git(t, in.repo, "rev-parse", BranchRef("e")+"^{tree}"); tree != git(t, in.repo, "rev-parse", "HEAD^{tree}") {
			t.Errorf("%s: another tree", how)
		}
		for _, p := range []string{"shown/f", "added-" + how + "/x"} {
			if data, err := os.ReadFile(filepath.Join(in.v.st.Workspace, p)); err != nil || string(data) != how+"\n" {
				t.Errorf("%s: %s: %q %v", how, p, data, err)
			}
		}
		if _, err := os.Lstat(filepath.Join(in.v.st.Workspace, "top")); !os.IsNotExist(err) {
			t.Errorf("%s: what is hidden was written: %v", how, err)
		}
	}
}

// A directory that has to stay cannot become a file.
func TestSparseMergeInTheWay(t *testing.T) {
	in := newSparse(t, map[string]string{"d/a": "a", "d/b": "b"}, "d/a")
	git(t, in.repo, "rm", "-qr", "d")
	write(t, filepath.Join(in.repo, "d"), "file\n")
	git(t, in.repo, "add", "-A")
	git(t, in.repo, "commit", "-qm", "file")
	in.v.mu.Lock()
	err := in.v.advance(t.Context(), api.Merge{From: "x", Into: "e"}, in.tip(), git(t, in.repo, "rev-parse", "HEAD"))
	in.v.mu.Unlock()
	if ExitCode(err) != ExitConflict || !strings.Contains(err.Error(), "hidden") {
		t.Errorf("got %v", err)
	}
	in.agree()
}

func TestSparsePathsOfACreate(t *testing.T) {
	r := newRig(t, map[string]string{"a/b": "1", "c,d": "2", "e": "3", "f*": "4"})
	tree := r.state("x").Tree
	for _, c := range []struct {
		asked []string
		want  string
		code  int
	}{
		{[]string{"a"}, "a", 0},
		{[]string{"e", "./a/b/", "a//b"}, "a/b e", 0},
		{[]string{"c,d"}, "c,d", 0},
		{[]string{"a,e"}, "a e", 0},
		{[]string{"f*"}, "f*", 0},
		{[]string{"a", "."}, "", 0},
		{[]string{"a", "no"}, "", ExitFailed},
		{[]string{"a/*"}, "", ExitUsage},
		{[]string{":(top)a"}, "", ExitUsage},
	} {
		got, err := r.e.sparsePaths(t.Context(), tree, c.asked)
		if strings.Join(got, " ") != c.want || err != nil && ExitCode(err) != c.code || err == nil && c.code != 0 {
			t.Errorf("%q: %q %v", c.asked, got, err)
		}
	}
}

func TestHiddenNotices(t *testing.T) {
	n := fusefs.Notices{Refusals: []fusefs.Refusal{{Path: "w"}, {Path: "s", Sought: true}, {Path: "l", Leads: true}}, MoreRefusals: 2}
	if got := hiddenNotices(n, true); len(got) != 3 || !strings.HasPrefix(got[0], "'w' is hidden in this environment") {
		t.Errorf("got %q", got)
	}
	only := fusefs.Notices{Refusals: []fusefs.Refusal{{Path: "s", Sought: true}, {Path: "dir/.gitignore", Sought: true}}}
	if got := hiddenNotices(only, false); got != nil {
		t.Errorf("told of a command that succeeded: %q", got)
	}
	if got := hiddenNotices(only, true); len(got) != 1 || !strings.HasPrefix(got[0], "'s' is hidden in this environment") {
		t.Errorf("got %q", got)
	}
}
