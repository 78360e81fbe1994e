package notes

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
)

type repo struct {
	t       testing.TB
	dir     string
	g       *gitcmd.Git
	r       *objects.Reader
	w       *objects.Writer
	commits []string
}

// newRepo has n commits.
func newRepo(t testing.TB, format string, n int) *repo {
	t.Helper()
	for _, kv := range os.Environ() {
		if name, value, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "GIT_") {
			t.Setenv(name, value) // restores it afterwards
			os.Unsetenv(name)
		}
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	r := &repo{t: t, dir: filepath.Join(t.TempDir(), "repo")}
	if out, err := exec.Command("git", "init", "-q", "-b", "main", "--object-format="+format, r.dir).CombinedOutput(); err != nil {
		t.Fatalf("git init: %v %s", err, out)
	}
	var stream strings.Builder
	for i := range n {
		fmt.Fprintf(&stream, "commit refs/heads/main\ncommitter a <a@x> %d +0000\ndata 2\nm\n\n", 1700000000+i)
	}
	r.git(stream.String(), "fast-import", "--quiet", "--force")
	r.commits = strings.Fields(r.git("", "rev-list", "--reverse", "main"))
	r.open()
	return r
}

func (r *repo) open() {
	r.t.Helper()
	gitDir := filepath.Join(r.dir, ".git")
	r.g = gitcmd.New(gitDir)
	w, err := objects.NewWriter(filepath.Join(gitDir, "objects"), r.git("", "rev-parse", "--show-object-format"))
	if err != nil {
		r.t.Fatal(err)
	}
	r.w = w
	r.r = objects.NewReader(r.g, 2)
	r.t.Cleanup(func() { r.r.Close() })
}

func (r *repo) ref() *Ref { return NewRef("refs/notes/env", r.g, r.r, r.w) }

func (r *repo) try(stdin string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@x", "GIT_COMMITTER_NAME=c", "GIT_COMMITTER_EMAIL=c@x")
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return strings.TrimSuffix(string(out), "\n"), err
}

func (r *repo) git(stdin string, args ...string) string {
	r.t.Helper()
	out, err := r.try(stdin, args...)
	if err != nil {
		r.t.Fatalf("git %v: %v %s", args, err, out)
	}
	return out
}

func (r *repo) append(n *Ref, commit string, text string) {
	r.t.Helper()
	if err := n.Append(r.t.Context(), map[string][]byte{commit: []byte(text)}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *repo) read(n *Ref, commit string) string {
	r.t.Helper()
	note, err := n.Read(r.t.Context(), commit)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(note)
}

func formats(t *testing.T, commits int, f func(t *testing.T, r *repo)) {
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) { f(t, newRepo(t, format, commits)) })
	}
}

func block(id int) string {
	r := sample()
	r.ID = fmt.Sprintf("01JDXYZ6W3K8ABCDEFGH%06d", id)
	return string(r.Encode())
}

func TestAppend(t *testing.T) {
	formats(t, 3, func(t *testing.T, r *repo) {
		n := r.ref()
		head := r.commits[2]
		if note, err := n.Read(t.Context(), head); note != nil || err != nil {
			t.Fatalf("no ref: %q, %v", note, err)
		}
		r.append(n, head, block(1))
		r.git("", "pack-refs", "--all", "--prune")
		r.append(n, head, block(2))
		r.append(n, head, block(2)) // again, as after a crash
		r.append(n, head, block(1)+"\n"+block(3))
		want := block(1) + "\n" + block(2) + "\n" + block(3)
		if got := r.read(n, head); got != want {
			t.Errorf("got\n%s", got)
		}
		if got := r.git("", "notes", "--ref=env", "show", head); got != strings.TrimSuffix(want, "\n") {
			t.Errorf("git reads\n%s", got)
		}
		log := r.git("", "log", "-1", "--notes=env", "--format=%s%n%N", head)
		if !strings.Contains(log, "command go test ./...\n") || !strings.Contains(log, "    ok  \texample.com/x") {
			t.Errorf("log\n%s", log)
		}
		if who := r.git("", "log", "--format=%an <%ae>", "refs/notes/env"); who != strings.TrimSuffix(strings.Repeat("git env <git-env@localhost>\n", 3), "\n") {
			t.Errorf("authors\n%s", who)
		}
		if tree := r.git("", "ls-tree", "-r", "--name-only", "refs/notes/env"); tree != head[:2]+"/"+head[2:] {
			t.Errorf("tree\n%s", tree)
		}
		r.append(n.WithIdentity("me", "me@x"), r.commits[0], "foreign, no newline")
		r.append(n, r.commits[0], block(4))
		if got := r.read(n, r.commits[0]); got != "foreign, no newline\n\n"+block(4) {
			t.Errorf("got\n%s", got)
		}
		if got := r.read(n, r.commits[1]); got != "" {
			t.Errorf("note of another commit: %s", got)
		}
		r.git("", "fsck", "--strict")
	})
}

func TestAppendStates(t *testing.T) {
	r := newRepo(t, "sha1", 1)
	n := NewRef("refs/notes/env-state", r.g, r.r, r.w)
	a, b := "{\"v\":1,\"env\":\"a\"}\n", "{\"v\":1,\"env\":\"b\"}\n"
	r.append(n, r.commits[0], a)
	r.append(n, r.commits[0], a+b)
	r.append(n, r.commits[0], b)
	if got := r.read(n, r.commits[0]); got != a+b {
		t.Errorf("got %q", got)
	}
}

func TestPrepare(t *testing.T) {
	r := newRepo(t, "sha1", 2)
	n := r.ref()
	first, err := n.Prepare(t.Context(), map[string][]byte{r.commits[0]: []byte(block(1)), r.commits[1]: []byte(block(2))})
	if err != nil || first.Old != "" || first.New == "" {
		t.Fatalf("got %+v, %v", first, err)
	}
	if got := r.read(n, r.commits[0]); got != "" {
		t.Error("Prepare moved the ref")
	}
	r.append(n, r.commits[0], block(3))
	if err := r.g.UpdateRefs(t.Context(), "", first); !errors.Is(err, gitcmd.ErrRefChanged) {
		t.Errorf("stale update: %v", err)
	}
	nothing, err := n.Prepare(t.Context(), map[string][]byte{r.commits[0]: []byte(block(3)), r.commits[1]: nil})
	if err != nil || nothing.New != nothing.Old || nothing.New == "" {
		t.Errorf("nothing to add: %+v, %v", nothing, err)
	}
	if err := r.g.UpdateRefs(t.Context(), "", nothing); err != nil {
		t.Error(err)
	}
	for _, id := range []string{"", "abc", "HEAD", strings.Repeat("g", 40)} {
		if _, err := n.Prepare(t.Context(), map[string][]byte{id: []byte("x")}); err == nil {
			t.Errorf("commit %q: no error", id)
		}
	}
	r.git("", "update-ref", "refs/notes/env", "main^{tree}")
	if _, err := n.Read(t.Context(), r.commits[0]); err == nil {
		t.Error("a ref to a tree: no error")
	}
}

// TestLayouts reads and appends in every fan-out, and keeps what is no note.
func TestLayouts(t *testing.T) {
	formats(t, 4, func(t *testing.T, r *repo) {
		who := "a <a@x> 1 +0000"
		layouts := map[string]func(string) string{
			"flat":     func(c string) string { return c },
			"2/38":     func(c string) string { return c[:2] + "/" + c[2:] },
			"2/2/36":   func(c string) string { return c[:2] + "/" + c[2:4] + "/" + c[4:] },
			"2/2/2/34": func(c string) string { return c[:2] + "/" + c[2:4] + "/" + c[4:6] + "/" + c[6:] },
		}
		for name, path := range layouts {
			t.Run(name, func(t *testing.T) {
				blob, err := r.w.Write(objects.KindBlob, []byte("old\n"))
				if err != nil {
					t.Fatal(err)
				}
				var edits []objects.Edit
				for _, p := range []string{path(r.commits[0]), path(r.commits[1]), "README", "ab/cd/x", "zz"} {
					edits = append(edits, objects.Edit{Path: p, Mode: objects.ModeFile, ID: blob})
				}
				tree, err := objects.EditTree(t.Context(), r.r, r.w, "", edits)
				if err != nil {
					t.Fatal(err)
				}
				tip, err := r.w.Commit(&objects.Commit{Tree: tree, Author: who, Committer: who})
				if err != nil {
					t.Fatal(err)
				}
				r.git("", "update-ref", "refs/notes/env", tip)
				n := r.ref()
				for i, want := range []string{"old\n\nnew\n", "old\n\nnew\n", "new\n"} {
					r.append(n, r.commits[i], "new\n")
					if got := r.read(n, r.commits[i]); got != want {
						t.Errorf("commit %d: %q", i, got)
					}
					if got := r.git("", "notes", "--ref=env", "show", r.commits[i]); got+"\n" != want {
						t.Errorf("commit %d: git reads %q", i, got)
					}
				}
				files := r.git("", "ls-tree", "-r", "--name-only", "refs/notes/env")
				for _, p := range []string{path(r.commits[0]), path(r.commits[1]), "README", "ab/cd/x", "zz"} {
					if !strings.Contains("\n"+files+"\n", "\n"+p+"\n") {
						t.Errorf("%s is gone:\n%s", p, files)
					}
				}
				if count := strings.Count(files, "\n") + 1; count != 6 {
					t.Errorf("%d files:\n%s", count, files)
				}
				// git takes over what we wrote.
				r.git("", "notes", "--ref=env", "append", "-m", "git", r.commits[2])
				r.append(n, r.commits[2], "more\n")
				if got := r.read(n, r.commits[2]); got != "new\n\ngit\n\nmore\n" {
					t.Errorf("after git: %q", got)
				}
			})
		}
	})
}

// TestMixedLayout has parts of one note in two places, which git joins.
func TestMixedLayout(t *testing.T) {
	r := newRepo(t, "sha1", 1)
	c := r.commits[0]
	r.git("commit refs/notes/env\ncommitter a <a@x> 1 +0000\ndata 0\nM 644 inline "+c+"\ndata 2\na\n\nM 644 inline "+c[:2]+"/"+c[2:]+"\ndata 2\nb\n\n", "fast-import", "--quiet")
	n := r.ref()
	if got := r.read(n, c); got != "a\n\nb\n" {
		t.Errorf("got %q", got)
	}
	r.append(n, c, "c\n")
	if got := r.git("", "notes", "--ref=env", "show", c); got != "a\n\nb\n\nc" {
		t.Errorf("git reads %q", got)
	}
	if files := r.git("", "ls-tree", "-r", "--name-only", "refs/notes/env"); files != c[:2]+"/"+c[2:] {
		t.Errorf("files\n%s", files)
	}
}

// TestManyNotes goes back and forth with git, which changes the layout.
func TestManyNotes(t *testing.T) {
	r := newRepo(t, "sha1", 600)
	n := r.ref()
	add := map[string][]byte{}
	for i, c := range r.commits[:590] {
		add[c] = []byte(block(i))
	}
	if err := n.Append(t.Context(), add); err != nil {
		t.Fatal(err)
	}
	r.git("", "notes", "--ref=env", "add", "-m", "x", r.commits[595])
	for i, c := range r.commits[:590] {
		if i%50 == 0 {
			r.append(n, c, "more\n")
			if got := r.read(n, c); got != block(i)+"\nmore\n" {
				t.Errorf("note %d: %q", i, got)
			}
		}
	}
	if got := strings.Count(r.git("", "notes", "--ref=env", "list"), "\n") + 1; got != 591 {
		t.Errorf("git lists %d notes", got)
	}
}

func TestLargeNote(t *testing.T) {
	r := newRepo(t, "sha256", 1)
	n := r.ref()
	big := strings.Repeat("0123456789abcde\n", 300_000)
	r.append(n, r.commits[0], big)
	r.append(n, r.commits[0], block(1))
	if got := r.read(n, r.commits[0]); got != big+"\n"+block(1) {
		t.Errorf("%d bytes", len(got))
	}
	if got := r.git("", "notes", "--ref=env", "show", r.commits[0]); got+"\n" != big+"\n"+block(1) {
		t.Errorf("git reads %d bytes", len(got))
	}
}

// TestConcurrentAppends has several Refs, each as another process would have,
// and git itself append to the same notes: nothing is lost.
func TestConcurrentAppends(t *testing.T) {
	r := newRepo(t, "sha1", 3)
	const writers, each = 4, 6
	const byGit = 20
	var wg sync.WaitGroup
	var refs []*Ref
	for i := range writers {
		n := r.ref()
		refs = append(refs, n)
		wg.Go(func() {
			for j := range each {
				id := i*each + j
				err := n.Append(t.Context(), map[string][]byte{
					r.commits[id%3]:     []byte(block(id)),
					r.commits[(id+1)%3]: []byte(block(1000 + id)),
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for j := range byGit {
			// git does not retry; a failure has written nothing.
			for {
				if _, err := r.try("", "notes", "--ref=env", "append", "-m", fmt.Sprintf("from git %d", j), r.commits[j%3]); err == nil {
					break
				}
			}
		}
	})
	wg.Wait()
	for _, n := range refs {
		if err := n.Settle(t.Context()); err != nil {
			t.Error(err)
		}
	}
	n := r.ref()
	var all []string
	for _, c := range r.commits {
		all = append(all, r.read(n, c))
	}
	count := 0
	for i, note := range all {
		for _, rec := range Parse([]byte(note)) {
			count++
			var id int
			fmt.Sscanf(rec.ID[20:], "%d", &id)
			if want := (id%1000 + id/1000) % 3; want != i {
				t.Errorf("record %d is on commit %d", id, i)
			}
		}
	}
	if count != 2*writers*each {
		t.Errorf("%d records, want %d", count, 2*writers*each)
	}
	for j := range byGit {
		if !strings.Contains(all[j%3], fmt.Sprintf("from git %d\n", j)) {
			t.Errorf("git's note %d is lost", j)
		}
	}
	r.git("", "fsck", "--strict")
}

// TestGitOverwrites has git notes write back a tree it read before we appended.
func TestGitOverwrites(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		note int // which commit git notes, ours being 0 and 1
		want [3]string
	}{
		"edit another":   {[]string{"edit"}, 2, [3]string{"base\n\n" + block(1), block(2), "by git\n"}},
		"append another": {[]string{"append", "-m", "by git"}, 2, [3]string{"base\n\n" + block(1), block(2), "by git\n"}},
		"append same":    {[]string{"append", "-m", "by git"}, 0, [3]string{"base\n\nby git\n\n" + block(1), block(2), ""}},
		"append new":     {[]string{"append", "-m", "by git"}, 1, [3]string{"base\n\n" + block(1), "by git\n\n" + block(2), ""}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepo(t, "sha1", 3)
			n := r.ref()
			r.append(n, r.commits[0], "base\n")
			stale := r.git("", "rev-parse", "refs/notes/env")
			r.append(n, r.commits[0], block(1))
			r.append(n, r.commits[1], block(2))
			parent := r.git("", "rev-parse", "refs/notes/env")
			// What git makes on the stale tip, on top of the new one.
			r.git("", "update-ref", "refs/notes/env", stale)
			args := append([]string{"-c", "core.editor=echo by git >", "notes", "--ref=env"}, c.args...)
			r.git("", append(args, r.commits[c.note])...)
			tree := r.git("", "rev-parse", "refs/notes/env^{tree}")
			message := r.git("", "log", "-1", "--format=%B", "refs/notes/env")
			made := r.git("", "commit-tree", tree, "-p", parent, "-m", message)
			r.git("", "update-ref", "refs/notes/env", made)
			// Another process finds out, and no second time.
			for range 2 {
				if err := r.ref().Settle(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for i, want := range c.want {
				if got := r.read(n, r.commits[i]); got != want {
					t.Errorf("note %d: %q, want %q", i, got, want)
				}
			}
			if got := r.git("", "rev-parse", "refs/notes/env^"); got != made {
				t.Errorf("parent %s, want %s", got, made)
			}
			// In neither tree nor history: only the writer can know.
			r.git("", "update-ref", "refs/notes/env", r.git("", "commit-tree", tree, "-p", stale, "-m", message))
			if err := n.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
			for i, want := range c.want {
				if got := r.read(n, r.commits[i]); got != want {
					t.Errorf("out of history, note %d: %q, want %q", i, got, want)
				}
			}
		})
	}
}

// TestDeliberateRemoval keeps notes away that the user took away.
func TestDeliberateRemoval(t *testing.T) {
	for name, args := range map[string][]string{
		"remove": {"notes", "--ref=env", "remove", "@", "@^"},
		"rewind": {"update-ref", "refs/notes/env", "refs/notes/env~2"},
		"delete": {"update-ref", "-d", "refs/notes/env"},
		"edit":   {"-c", "core.editor=echo nothing >", "notes", "--ref=env", "edit", "@"},
		"add":    {"notes", "--ref=env", "add", "-f", "-m", "nothing", "@"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepo(t, "sha1", 3)
			n := r.ref()
			for i := range 3 {
				r.append(n, r.commits[2-i%2], block(i))
			}
			r.git("", args...)
			before, _ := r.try("", "rev-parse", "refs/notes/env")
			if err := n.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
			if after, _ := r.try("", "rev-parse", "refs/notes/env"); after != before {
				t.Errorf("something came back:\n%s", r.git("", "show", after))
			}
			r.append(n, r.commits[0], block(9))
			if got := r.read(n, r.commits[2]); strings.Contains(got, block(2)) {
				t.Errorf("the note came back: %s", got)
			}
		})
	}
}

// TestMerge lets a plain git notes merge join the notes of two machines.
func TestMerge(t *testing.T) {
	r := newRepo(t, "sha1", 2)
	if err := EnsureMergeStrategy(t.Context(), r.g); err != nil {
		t.Fatal(err)
	}
	head := r.commits[1]
	state := func(env string) string { return `{"v":1,"env":"` + env + `"}` + "\n" }
	for name, text := range map[string][3]string{
		"env":       {block(1), block(2), block(3)},
		"env-state": {state("a"), state("c"), state("b")},
	} {
		n := NewRef("refs/notes/"+name, r.g, r.r, r.w)
		r.append(n, head, text[0])
		r.git("", "update-ref", "refs/notes/"+name+"-theirs", "refs/notes/"+name)
		theirs := NewRef("refs/notes/"+name+"-theirs", r.g, r.r, r.w)
		r.append(n, head, text[1])
		r.append(theirs, head, text[2])
		r.git("", "notes", "--ref="+name, "merge", name+"-theirs")
	}
	note := r.read(r.ref(), head)
	if got := Parse([]byte(note)); len(got) != 3 {
		t.Errorf("%d records in\n%s", len(got), note)
	}
	r.append(r.ref(), head, block(3))
	if again := r.read(r.ref(), head); again != note {
		t.Errorf("a block was added twice:\n%s", again)
	}
	states := r.read(NewRef("refs/notes/env-state", r.g, r.r, r.w), head)
	if states != state("a")+state("b")+state("c") {
		t.Errorf("states\n%s", states)
	}
}

func TestEnsureMergeStrategy(t *testing.T) {
	r := newRepo(t, "sha1", 1)
	r.git("", "config", "notes.env.mergeStrategy", "theirs")
	for range 2 {
		if err := EnsureMergeStrategy(t.Context(), r.g); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.git("", "config", "--get-all", "notes.env.mergeStrategy"); got != "theirs" {
		t.Errorf("the user's choice became %s", got)
	}
	if got := r.git("", "config", "--get-all", "notes.env-state.mergeStrategy"); got != "cat_sort_uniq" {
		t.Errorf("got %s", got)
	}
}

func BenchmarkAppend(b *testing.B) {
	r := newRepo(b, "sha1", 1000)
	n := r.ref()
	add := map[string][]byte{}
	for i, c := range r.commits {
		add[c] = []byte(block(i))
	}
	if err := n.Append(b.Context(), add); err != nil {
		b.Fatal(err)
	}
	i := 1000
	for b.Loop() {
		r.append(n, r.commits[i%1000], block(i))
		i++
	}
}

func BenchmarkParse(b *testing.B) {
	note := bytes.Repeat([]byte(block(1)+"\n"), 1000)
	b.SetBytes(int64(len(note)))
	for b.Loop() {
		Parse(note)
	}
}
