package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
)

func TestSizes(t *testing.T) {
	formats(t, func(t *testing.T, r *repo) {
		var ids []string
		for i := range 50 {
			ids = append(ids, r.blob(strings.Repeat("x", i)))
		}
		many := make([]string, 0, 10_000)
		for len(many) < 10_000 {
			many = append(many, ids...)
		}
		sizes := must(r.r.Sizes(t.Context(), many))(t)
		for i, s := range sizes {
			if s != int64(i%50) {
				t.Fatalf("size %d is %d", i, s)
			}
		}
		absent := strings.Repeat("1", len(ids[0]))
		if _, err := r.r.Sizes(t.Context(), []string{ids[0], absent, ids[1]}); !errors.Is(err, ErrNotFound) {
			t.Errorf("absent: %v", err)
		}
		if _, err := r.r.Sizes(t.Context(), []string{ids[0][:8]}); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("short id: %v", err)
		}
		if got := must(r.r.Sizes(t.Context(), nil))(t); len(got) != 0 {
			t.Errorf("none: %v", got)
		}
		if got := must(r.r.Size(t.Context(), ids[3]))(t); got != 3 {
			t.Errorf("out of step: %d", got)
		}
	})
}

func TestKind(t *testing.T) {
	r := newRepo(t, SHA1)
	blob := r.blob("hello")
	tree := must(r.w.Tree([]TreeEntry{{"a b missing", ModeFile, blob}}))(t)
	who := "a <a@x> 1 +0000"
	commit := must(r.w.Commit(&Commit{Tree: tree, Author: who, Committer: who, Message: "m"}))(t)
	r.git("", "update-ref", "--create-reflog", "refs/heads/main", commit)
	for _, c := range []struct {
		rev, id string
		kind    Kind
	}{
		{commit, commit, KindCommit}, {"refs/heads/main", commit, KindCommit}, {"main^{tree}", tree, KindTree},
		{"main:a b missing", blob, KindBlob}, {commit[:10], commit, KindCommit},
		{"", "", ""}, {"nothing", "", ""}, {"main:x y", "", ""}, {"main@{77}", "", ""}, {"a\nb", "", ""},
		{"--all", "", ""}, {strings.Repeat("2", 40), "", ""},
	} {
		id, kind, _, err := r.r.Kind(t.Context(), c.rev)
		if id != c.id || kind != c.kind || errors.Is(err, ErrNotFound) != (c.id == "") {
			t.Errorf("Kind(%q) = %s, %s, %v", c.rev, id, kind, err)
		}
	}
}

func TestPath(t *testing.T) {
	formats(t, func(t *testing.T, r *repo) {
		blob := r.blob("hello")
		root := must(EditTree(t.Context(), r.r, r.w, "", []Edit{{"a/b/c", ModeExec, blob}, {"f", ModeFile, blob}}))(t)
		who := "a <a@x> 1 +0000"
		r.git("", "update-ref", "refs/heads/main", must(r.w.Commit(&Commit{Tree: root, Author: who, Committer: who}))(t))
		for _, treeish := range []string{"main", root, root} {
			for path, want := range map[string]Mode{
				"": ModeTree, "a": ModeTree, "a/b/c": ModeExec, "f": ModeFile, "a/b/": ModeTree,
				"x": 0, "f/x": 0, "a/x/c": 0, "a/b/c/d": 0,
			} {
				e, err := r.r.Path(t.Context(), treeish, path)
				if e.Mode != want || errors.Is(err, ErrNotFound) != (want == 0) {
					t.Errorf("Path(%s, %q) = %v, %v", treeish, path, e, err)
				}
			}
		}
		if _, err := r.r.Path(t.Context(), "nothing", "a"); !errors.Is(err, ErrNotFound) {
			t.Errorf("no such tree: %v", err)
		}
	})
}

func TestWrongKind(t *testing.T) {
	r := newRepo(t, SHA1)
	blob, tree := r.blob("hello"), must(r.w.Tree(nil))(t)
	big := r.blob(strings.Repeat("x", drainLimit+1))
	for range 2 { // a process that was given up is replaced
		for name, f := range map[string]func() error{
			"tree of blob":   func() error { _, err := r.r.Tree(t.Context(), blob); return err },
			"tree of big":    func() error { _, err := r.r.Tree(t.Context(), big); return err },
			"commit of tree": func() error { _, err := r.r.Commit(t.Context(), tree); return err },
			"blob of tree":   func() error { _, err := r.r.Blob(t.Context(), tree, io.Discard); return err },
			"too large":      func() error { _, err := r.r.Bytes(t.Context(), blob, 4); return err },
			"far too large":  func() error { _, err := r.r.Bytes(t.Context(), big, 4); return err },
			"no id":          func() error { _, err := r.r.Blob(t.Context(), "main", io.Discard); return err },
			"full":           func() error { _, err := r.r.Blob(t.Context(), blob, fullWriter{}); return err },
			"full, big":      func() error { _, err := r.r.Blob(t.Context(), big, fullWriter{}); return err },
		} {
			err := f()
			if err == nil || errors.Is(err, ErrNotFound) || strings.Contains(err.Error(), "cat-file") {
				t.Errorf("%s: %v", name, err)
			}
			if strings.HasPrefix(name, "full") && !errors.Is(err, errFull) {
				t.Errorf("%s: %v", name, err)
			}
			if string(must(r.r.Bytes(t.Context(), blob, 5))(t)) != "hello" {
				t.Fatalf("%s: out of step", name)
			}
		}
	}
	if _, err := r.r.Tree(t.Context(), strings.Repeat("3", 40)); !errors.Is(err, ErrNotFound) {
		t.Errorf("absent: %v", err)
	}
}

var errFull = errors.New("full")

type fullWriter struct{}

func (fullWriter) Write([]byte) (int, error) { return 0, errFull }

func TestCorruptObject(t *testing.T) {
	r := newRepo(t, SHA1)
	id, other := r.blob("hello"), r.blob("other")
	os.Remove(r.w.path(id))
	if err := os.WriteFile(r.w.path(id), []byte("garbage"), 0o444); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := r.r.Bytes(t.Context(), id, 10); err == nil {
			t.Error("no error")
		}
		if string(must(r.r.Bytes(t.Context(), other, 5))(t)) != "other" {
			t.Error("out of step")
		}
	}
}

func TestProcessDies(t *testing.T) {
	r := newRepo(t, SHA1)
	id := r.blob("hello")
	for range 5 {
		for range r.r.size { // whichever is next
			p := <-r.r.slots
			if p != nil {
				p.kill()
				p.cmd.Process.Wait()
			}
			r.r.slots <- p
		}
		if string(must(r.r.Bytes(t.Context(), id, 5))(t)) != "hello" {
			t.Error("wrong answer")
		}
	}
}

func TestCancel(t *testing.T) {
	r := newRepo(t, SHA1)
	big := r.blob(strings.Repeat("x", 8<<20))
	ctx, cancel := context.WithCancel(t.Context())
	// The receiver cancels in the middle, then takes the rest.
	n, err := r.r.Blob(ctx, big, writerFunc(func(b []byte) (int, error) { cancel(); return len(b), nil }))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if _, err := r.r.Size(ctx, big); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: %v", err)
	}
	if must(r.r.Size(t.Context(), big))(t) != 8<<20 {
		t.Error("wrong size")
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestReaderConcurrent(t *testing.T) {
	r := newRepo(t, SHA1)
	var ids []string
	for i := range 100 {
		ids = append(ids, r.blob(fmt.Sprint(i)))
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i, id := range ids {
				if (i+g)%10 == 0 {
					ctx, cancel := context.WithCancel(t.Context())
					cancel()
					r.r.Bytes(ctx, id, 10)
				}
				data, err := r.r.Bytes(t.Context(), id, 10)
				if err != nil || string(data) != fmt.Sprint(i) {
					t.Errorf("%d: %q, %v", i, data, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestPackedAndClosed(t *testing.T) {
	formats(t, func(t *testing.T, r *repo) {
		tree := must(r.w.Tree([]TreeEntry{{"f", ModeFile, r.blob("hello")}}))(t)
		who := "a <a@x> 1 +0000"
		commit := must(r.w.Commit(&Commit{Tree: tree, Author: who, Committer: who}))(t)
		r.git("", "update-ref", "refs/heads/main", commit)
		must(r.r.Commit(t.Context(), commit))(t)
		r.git("", "repack", "-q", "-a", "-d")
		if r.w.Has(commit) {
			t.Fatal("still loose")
		}
		must(r.r.Commit(t.Context(), commit))(t)
		must(r.r.Tree(t.Context(), tree))(t)
		other := NewReader(r.r.git, 1)
		must(other.Tree(t.Context(), tree))(t)
		for range 2 {
			if err := other.Close(); err != nil {
				t.Error(err)
			}
		}
		if _, err := other.Commit(t.Context(), commit); !errors.Is(err, errClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestTreeCacheIsBounded(t *testing.T) {
	c := newTreeCache(100)
	for i := range 1000 {
		c.put(fmt.Sprint(i), make([]TreeEntry, i%30))
	}
	sum := 0
	for e := c.order.Front(); e != nil; e = e.Next() {
		sum += len(e.Value.(*cachedTree).entries) + 1
	}
	if sum != c.count || sum > 100 || len(c.byID) != c.order.Len() {
		t.Errorf("%d entries counted as %d", sum, c.count)
	}
	if _, ok := c.get("0"); ok {
		t.Error("the oldest is still there")
	}
}

func benchTree(b *testing.B, n int) (*repo, []string) {
	r := newRepo(b, SHA1)
	blob := r.blob("x")
	var ids []string
	for i := range 64 {
		entries := []TreeEntry{{fmt.Sprint("t", i), ModeFile, blob}}
		for j := range n {
			entries = append(entries, TreeEntry{fmt.Sprintf("file%05d.go", j), ModeFile, blob})
		}
		ids = append(ids, must(r.w.Tree(entries))(b))
	}
	return r, ids
}

func BenchmarkTree(b *testing.B) {
	for _, n := range []int{20, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r, ids := benchTree(b, n)
			r.r.trees = newTreeCache(0)
			i := 0
			for b.Loop() {
				must(r.r.Tree(b.Context(), ids[i%len(ids)]))(b)
				i++
			}
		})
	}
	b.Run("cached", func(b *testing.B) {
		r, ids := benchTree(b, 20)
		for b.Loop() {
			must(r.r.Tree(b.Context(), ids[0]))(b)
		}
	})
}

func BenchmarkSizes(b *testing.B) {
	r := newRepo(b, SHA1)
	var ids []string
	for i := range 4000 {
		ids = append(ids, r.blob(fmt.Sprint(i)))
	}
	for _, packed := range []bool{false, true} {
		b.Run(fmt.Sprintf("packed=%v", packed), func(b *testing.B) {
			if packed {
				r.git(strings.Join(ids, "\n"), "pack-objects", "-q", r.dir+"/objects/pack/pack")
				r.git("", "prune-packed")
			}
			for b.Loop() {
				must(r.r.Sizes(b.Context(), ids))(b)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(ids)), "ns/id")
		})
	}
}
