package objects

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
)

// list gives a tree as "path=content" lines.
func (r *repo) list(tree string) string {
	r.t.Helper()
	var out []string
	for _, line := range strings.FieldsFunc(r.git("", "ls-tree", "-r", "-z", tree), func(c rune) bool { return c == 0 }) {
		meta, path, _ := strings.Cut(line, "\t")
		mode, _, _ := strings.Cut(meta, " ")
		out = append(out, mode[3:]+" "+path)
	}
	return strings.Join(out, ",")
}

func TestEditTree(t *testing.T) {
	formats(t, func(t *testing.T, r *repo) {
		b := r.blob("x")
		sub := must(r.w.Tree([]TreeEntry{{"in", ModeFile, b}}))(t)
		add := func(path string) Edit { return Edit{path, ModeFile, b} }
		del := func(path string) Edit { return Edit{Path: path} }
		base := must(EditTree(t.Context(), r.r, r.w, "", []Edit{add("a/b/c"), add("a/d"), add("f")}))(t)
		for _, c := range []struct {
			edits []Edit
			want  string
		}{
			{nil, "644 a/b/c,644 a/d,644 f"},
			{[]Edit{add("a/b/c")}, "644 a/b/c,644 a/d,644 f"},
			{[]Edit{{"f", ModeExec, b}}, "644 a/b/c,644 a/d,755 f"},
			{[]Edit{add("x/y/z")}, "644 a/b/c,644 a/d,644 f,644 x/y/z"},
			{[]Edit{del("a/b/c")}, "644 a/d,644 f"},
			{[]Edit{del("a/b")}, "644 a/d,644 f"},
			{[]Edit{del("a")}, "644 f"},
			{[]Edit{del("a"), del("f")}, ""},
			{[]Edit{del("a/b/c"), del("a/d"), del("f")}, ""},
			{[]Edit{del("gone"), del("gone/x"), del("f/x"), del("a/b/c/d/e")}, "644 a/b/c,644 a/d,644 f"},
			{[]Edit{add("a")}, "644 a,644 f"},
			{[]Edit{add("f/g")}, "644 a/b/c,644 a/d,644 f/g"},
			{[]Edit{add("f/g"), del("f")}, "644 a/b/c,644 a/d"},
			{[]Edit{del("f"), add("f/g")}, "644 a/b/c,644 a/d,644 f/g"},
			{[]Edit{del("a"), add("a/n")}, "644 a/n,644 f"},
			{[]Edit{add("a"), add("a/n")}, "644 a/n,644 f"},
			{[]Edit{add("a"), del("a/n")}, "644 a,644 f"},
			{[]Edit{add("x"), del("x")}, "644 a/b/c,644 a/d,644 f"},
			{[]Edit{{"a", ModeTree, sub}}, "644 a/in,644 f"},
			{[]Edit{{"a", ModeTree, sub}, add("a/n"), del("a/in")}, "644 a/n,644 f"},
			{[]Edit{{"a", ModeTree, EmptyTree(r.w.Format())}}, "644 f"},
			{[]Edit{{"m", ModeGitlink, b}, {"l", ModeSymlink, b}}, "644 a/b/c,644 a/d,644 f,000 l,000 m"},
			{[]Edit{add("a.x"), add("a0")}, "644 a.x,644 a/b/c,644 a/d,644 a0,644 f"},
		} {
			got, err := EditTree(t.Context(), r.r, r.w, base, c.edits)
			if err != nil {
				t.Errorf("%v: %v", c.edits, err)
			} else if list := r.list(got); list != c.want {
				t.Errorf("%v: %s, want %s", c.edits, list, c.want)
			}
		}
		for _, path := range []string{"", "/", "a//b", "../x", "a/./b", ".git/config", "a/.GIT/x", "a/git~1", "a\x00b", "a/"} {
			if _, err := EditTree(t.Context(), r.r, r.w, base, []Edit{add(path)}); !errors.Is(err, ErrUnsafePath) {
				t.Errorf("%q: %v", path, err)
			}
		}
		r.git("", "fsck", "--strict")
	})
}

// TestEditTreeLikeIndex compares random edits with git's own index.
func TestEditTreeLikeIndex(t *testing.T) {
	r := newRepo(t, SHA1)
	rnd := rand.New(rand.NewPCG(1, 2))
	blobs := []string{r.blob("1"), r.blob("2")}
	index := filepath.Join(r.dir, "index")
	tree := ""
	for round := range 30 {
		var edits []Edit
		files := map[string]Edit{}
		for range 1 + rnd.IntN(6) {
			parts := []string{"a", "b", "c.d"}[:1+rnd.IntN(3)]
			for i := range parts {
				parts[i] = string(rune('a'+rnd.IntN(3))) + []string{"", ".x"}[rnd.IntN(2)]
			}
			e := Edit{Path: strings.Join(parts, "/")}
			if rnd.IntN(3) > 0 {
				e.Mode, e.ID = ModeFile, blobs[rnd.IntN(2)]
			}
			edits = append(edits, e)
		}
		if tree != "" {
			for _, line := range strings.FieldsFunc(r.git("", "ls-tree", "-r", "-z", tree), func(c rune) bool { return c == 0 }) {
				meta, path, _ := strings.Cut(line, "\t")
				files[path] = Edit{path, ModeFile, meta[len("100644 blob "):]}
			}
		}
		for _, e := range edits {
			model(files, e)
		}
		got := must(EditTree(t.Context(), r.r, r.w, tree, edits))(t)
		os.Remove(index)
		var input strings.Builder
		for _, f := range sorted(files) {
			fmt.Fprintf(&input, "%06o %s 0\t%s\n", f.Mode, f.ID, f.Path)
		}
		r.git(input.String(), "update-index", "--index-info")
		if want := r.git("", "write-tree"); got != want {
			t.Fatalf("round %d: %v gives %s, want %s", round, edits, r.list(got), r.list(want))
		}
		tree = got
	}
}

// model applies an edit to a set of files.
func model(files map[string]Edit, e Edit) {
	under := func(dir, p string) bool { return strings.HasPrefix(p, dir+"/") }
	for p := range files {
		if p == e.Path || under(e.Path, p) {
			delete(files, p)
		} else if e.ID != "" && under(p, e.Path) {
			delete(files, p)
		}
	}
	if e.ID != "" {
		files[e.Path] = e
	}
}

func sorted(files map[string]Edit) []Edit {
	var out []Edit
	for _, f := range files {
		out = append(out, f)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Path < out[j].Path })
	return out
}

func TestUnsafeName(t *testing.T) {
	for _, name := range []string{
		"", ".", "..", "a/b", "a\x00", ".git", ".GIT", ".gIt", "git~1", "GIT~1", ".git.", ".git ", ".git . .",
		".git::$INDEX_ALLOCATION", ".git:x", `a\.git`, `.git\x`, `x\git~1\y`, ".g\u200cit", "\ufeff.git", ".git\u200f",
	} {
		if !UnsafeName(name) {
			t.Errorf("%q is safe", name)
		}
	}
	for _, name := range []string{
		"a", "...", ".gitx", ".gitignore", ".gitmodules", "git", "git~2", "git~10", "x.git", ".git~1", " .git", `a\b`, "\xff.git", "ü", "a:b", "-x", "a\nb",
	} {
		if UnsafeName(name) {
			t.Errorf("%q is unsafe", name)
		}
	}
	for name, want := range map[string]bool{
		".gitmodules": true, ".GitModules ": true, "gitmod~1": true, "GI7EBA~1": true, ".gitmodules:x": true, ".gitmod\u200cules": true, ".git": true,
		"a": false, "gitmodules": false, ".gitignore": false, "gitmod~": false,
	} {
		if UnsafeLink(name) != want {
			t.Errorf("UnsafeLink(%q) = %v", name, !want)
		}
	}
}
