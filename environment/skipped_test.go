package environment

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// branchHas fails the test unless the branch has exactly these files besides the
// ones it began with.
func (r *rig) branchHas(what string, want ...string) {
	r.t.Helper()
	if got := git(r.t, r.repo, "diff", "--name-only", "HEAD", "env/e"); got != strings.Join(want, "\n") {
		r.t.Errorf("%s: the branch has %q, want %q", what, got, want)
	}
}

// TestRulesOutsideTheTree: what was ignored by info/exclude or the user's own file
// is committed when these change, and that in a new daemon too.
func TestRulesOutsideTheTree(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x", "dir/f": "x", "dir/deep/f": "x", "other/f": "x"})
	exclude := filepath.Join(r.repo, ".git/info/exclude")
	write(t, exclude, "*.o\nbuild/\n")
	v := r.env("e")
	put := func(names ...string) {
		for _, n := range names {
			write(t, filepath.Join(v.st.Workspace, n), "x")
		}
	}
	put("a.o", "dir/deep/b.o", "dir/c.o", "dir/build/x/y", "dir/build/z.o", "new/d.o", "new/d.c")
	r.commit(v)
	r.branchHas("ignored", "new/d.c")
	put("dir/deep/seen")
	r.commit(v)
	r.branchHas("ignored for longer", "dir/deep/seen", "new/d.c")
	write(t, exclude, "*.o\n")
	r.commit(v) // nothing else has changed
	r.branchHas("build is not", "dir/build/x/y", "dir/deep/seen", "new/d.c")

	r.crash()
	own := filepath.Join(os.Getenv("HOME"), ".config/git/ignore")
	write(t, exclude, "")
	write(t, own, "dir/c.o\n")
	r.open()
	v = r.up("e")
	r.commit(v)
	all := []string{"a.o", "dir/build/x/y", "dir/build/z.o", "dir/c.o", "dir/deep/b.o", "dir/deep/seen", "new/d.c", "new/d.o"}
	r.branchHas("the user's own rules", append(append([]string{}, all[:3]...), all[4:]...)...)

	git(t, r.repo, "config", "core.excludesFile", filepath.Join(r.repo, "nowhere"))
	put("f2")
	r.commit(v)
	r.branchHas("another file of rules", append(append([]string{}, all[:6]...), "f2", "new/d.c", "new/d.o")...)
}

// TestManyIgnored: what is ignored is listed nowhere, however much it is, and is
// committed when the tree's rules change.
func TestManyIgnored(t *testing.T) {
	r := newRig(t, map[string]string{".gitignore": "*.o\n/node_modules/\n", "src/f": "x"})
	v := r.env("e")
	var want []string
	for i := range 300 {
		write(t, filepath.Join(v.st.Workspace, fmt.Sprintf("src/%03d.o", i)), "x")
		want = append(want, fmt.Sprintf("src/%03d.o", i))
	}
	for i := range 50 {
		write(t, filepath.Join(v.st.Workspace, fmt.Sprintf("node_modules/%d/x", i)), "x")
	}
	write(t, filepath.Join(v.st.Workspace, "src/f"), "y")
	r.commit(v)
	r.branchHas("ignored", "src/f")
	if fi, err := os.Stat(filepath.Join(v.dir(), "skipped.json")); err != nil || fi.Size() > 512 {
		t.Errorf("skipped.json: %v, %v", fi, err)
	}
	write(t, filepath.Join(v.st.Workspace, ".gitignore"), "/node_modules/\n")
	r.commit(v)
	r.branchHas("no longer", append(append([]string{".gitignore"}, want...), "src/f")...)
	if err := os.Remove(filepath.Join(v.st.Workspace, ".gitignore")); err != nil {
		t.Fatal(err)
	}
	if res := r.commit(v); res.changed != 51 {
		t.Errorf("%d paths changed without any rules, want 51", res.changed)
	}
}

// TestManyHeldBack: only so many paths are named, and all come in the end.
func TestManyHeldBack(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	git(t, r.repo, "config", "env.maxFileSize", "10")
	v := r.env("e")
	const n = maxHeld + 200
	for i := range n {
		write(t, filepath.Join(v.st.Workspace, fmt.Sprintf("big/%d", i)), "more than ten bytes\n")
	}
	if res := r.commit(v); res.commit != "" || len(res.warnings) != maxWarnings+1 {
		t.Errorf("%+v", res)
	}
	left, err := v.loadSkipped()
	if err != nil || len(left.Held) != maxHeld || !left.More {
		t.Errorf("%d are named, %v, %v", len(left.Held), left.More, err)
	}
	v.mu.Lock()
	_, held, err := v.uncommitted(t.Context())
	v.mu.Unlock()
	if err != nil || len(held) != n {
		t.Errorf("%d are told of, %v", len(held), err)
	}
	// The named ones become small enough, which makes room for the others.
	for _, p := range plainPaths(left.Held)[:maxHeld-100] {
		write(t, filepath.Join(v.st.Workspace, p), "few\n")
	}
	if res := r.commit(v); res.changed != maxHeld-100 {
		t.Errorf("%d changed", res.changed)
	}
	if left, err = v.loadSkipped(); err != nil || len(left.Held) != 300 || left.More {
		t.Errorf("%d are named, %v, %v", len(left.Held), left.More, err)
	}
	git(t, r.repo, "config", "env.maxFileSize", "100")
	if res := r.commit(v); res.changed != 300 {
		t.Errorf("%d changed", res.changed)
	}
}
