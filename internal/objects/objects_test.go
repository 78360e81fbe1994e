package objects

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/git-env/git-env/internal/gitcmd"
)

// repo is a repository with a reader and a writer.
type repo struct {
	t   testing.TB
	dir string
	r   *Reader
	w   *Writer
}

func newRepo(t testing.TB, format string) *repo {
	t.Helper()
	for _, kv := range os.Environ() {
		if name, value, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "GIT_") {
			t.Setenv(name, value) // restores it afterwards
			os.Unsetenv(name)
		}
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	dir := filepath.Join(t.TempDir(), "repo.git")
	if out, err := exec.Command("git", "init", "-q", "--bare", "--object-format="+format, dir).CombinedOutput(); err != nil {
		t.Fatalf("git init: %v %s", err, out)
	}
	w, err := NewWriter(filepath.Join(dir, "objects"), format)
	if err != nil {
		t.Fatal(err)
	}
	r := NewReader(gitcmd.New(dir), 2)
	t.Cleanup(func() { r.Close() })
	return &repo{t, dir, r, w}
}

func (r *repo) git(stdin string, args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", append([]string{"--git-dir=" + r.dir}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("git %v: %v %s", args, err, stderr.Bytes())
	}
	return strings.TrimSuffix(string(out), "\n")
}

func (r *repo) blob(content string) string {
	r.t.Helper()
	return must(r.w.Write(KindBlob, []byte(content)))(r.t)
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func formats(t *testing.T, f func(t *testing.T, r *repo)) {
	for _, format := range []string{SHA1, SHA256} {
		t.Run(format, func(t *testing.T) { f(t, newRepo(t, format)) })
	}
}

func TestBlobs(t *testing.T) {
	formats(t, func(t *testing.T, r *repo) {
		big := bytes.Repeat([]byte("0123456789abcdef\x00\n"), 200_000)
		for _, content := range [][]byte{nil, []byte("hello\n"), []byte("\x00\xff"), big[:smallBlob], big[:smallBlob+1], big} {
			id := must(r.w.Blob(iotest.HalfReader(bytes.NewReader(content)), int64(len(content))))(t)
			if want := r.git(string(content), "hash-object", "--stdin"); id != want {
				t.Fatalf("blob of %d bytes: %s, want %s", len(content), id, want)
			}
			if again := must(r.w.Write(KindBlob, content))(t); again != id {
				t.Errorf("Write gives %s", again)
			}
			if h := must(HashReader(r.w.Format(), KindBlob, bytes.NewReader(content), int64(len(content))))(t); h != id {
				t.Errorf("HashReader gives %s", h)
			}
			var out bytes.Buffer
			n := must(r.r.Blob(t.Context(), id, &out))(t)
			if n != int64(len(content)) || !bytes.Equal(out.Bytes(), content) {
				t.Errorf("Blob gives %d other bytes", n)
			}
			if data := must(r.r.Bytes(t.Context(), id, int64(len(content))))(t); !bytes.Equal(data, content) {
				t.Error("Bytes gives other bytes")
			}
			if size := must(r.r.Size(t.Context(), id))(t); size != int64(len(content)) {
				t.Errorf("size %d", size)
			}
			if !r.w.Has(id) {
				t.Error("Has says no")
			}
		}
		if err := r.w.Sync(); err != nil {
			t.Fatal(err)
		}
		r.git("", "fsck", "--strict")
		leftovers, _ := filepath.Glob(filepath.Join(r.dir, "objects", "tmp_*"))
		if len(leftovers) > 0 {
			t.Errorf("left behind: %v", leftovers)
		}
	})
}

func TestBlobOfOtherSize(t *testing.T) {
	r := newRepo(t, SHA1)
	content := bytes.Repeat([]byte("x"), smallBlob+10)
	for _, n := range []int64{5, smallBlob, smallBlob + 5} {
		if _, err := r.w.Blob(bytes.NewReader(content[:n]), n+1); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("short of %d: %v", n+1, err)
		}
		if _, err := r.w.Blob(bytes.NewReader(content[:n]), n-1); err == nil {
			t.Errorf("long of %d: no error", n-1)
		}
		if _, err := r.w.Blob(iotest.ErrReader(fs.ErrPermission), n); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("failing reader: %v", err)
		}
	}
	if _, err := r.w.Blob(nil, -1); err == nil {
		t.Error("negative size: no error")
	}
	entries := must(os.ReadDir(filepath.Join(r.dir, "objects")))(t)
	if len(entries) != 2 { // info, pack
		t.Errorf("left behind: %v", entries)
	}
}

// A crash before Sync can leave an empty object, which must not be relied on.
func TestBrokenObjectIsReplaced(t *testing.T) {
	r := newRepo(t, SHA1)
	id := r.blob("content")
	path := r.w.path(id)
	for _, broken := range []string{"", "garbage", string(must(os.ReadFile(r.w.path(r.blob("other"))))(t))} {
		os.Remove(path)
		if err := os.WriteFile(path, []byte(broken), 0o444); err != nil {
			t.Fatal(err)
		}
		next := must(NewWriter(r.w.dir, SHA1))(t)
		must(next.Write(KindBlob, []byte("content")))(t)
		if got := r.git("", "cat-file", "-p", id); got != "content" {
			t.Errorf("git reads %q", got)
		}
	}
}

func TestExistingObjectIsFreshened(t *testing.T) {
	r := newRepo(t, SHA1)
	id := r.git("old", "hash-object", "-w", "--stdin")
	long := time.Now().Add(-time.Hour * 24 * 365)
	if err := os.Chtimes(r.w.path(id), long, long); err != nil {
		t.Fatal(err)
	}
	before := must(os.Stat(r.w.path(id)))(t)
	r.blob("old")
	after := must(os.Stat(r.w.path(id)))(t)
	if !os.SameFile(before, after) {
		t.Error("a sound object was written again")
	}
	if time.Since(after.ModTime()) > time.Hour {
		t.Error("git prune would take the object away")
	}
}

func TestPermissions(t *testing.T) {
	r := newRepo(t, SHA1)
	if err := os.Chmod(r.w.dir, 0o770|fs.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	w := must(NewWriter(r.w.dir, SHA1))(t)
	id := must(w.Write(KindBlob, []byte("x")))(t)
	dir, file := must(os.Stat(filepath.Dir(w.path(id))))(t), must(os.Stat(w.path(id)))(t)
	if dir.Mode() != fs.ModeDir|fs.ModeSetgid|0o770 || file.Mode() != 0o440 {
		t.Errorf("modes %v, %v", dir.Mode(), file.Mode())
	}
}

func TestTree(t *testing.T) {
	formats(t, func(t *testing.T, r *repo) {
		blob := r.blob("x")
		empty := must(r.w.Tree(nil))(t)
		if empty != EmptyTree(r.w.Format()) {
			t.Errorf("empty tree %s", empty)
		}
		sub := must(r.w.Tree([]TreeEntry{{"f", ModeFile, blob}}))(t)
		entries := []TreeEntry{
			{"a", ModeTree, sub}, {"a.b", ModeFile, blob}, {"a-b", ModeExec, blob}, {"a0", ModeSymlink, blob},
			{"é\n\t\xff", ModeFile, blob}, {"sub", ModeGitlink, strings.Repeat("1", len(blob))}, {"B", 0o100664, blob},
		}
		id := must(r.w.Tree(entries))(t)
		var mktree strings.Builder
		kinds := map[Mode]string{ModeTree: "tree", ModeGitlink: "commit"}
		for _, e := range entries {
			fmt.Fprintf(&mktree, "%06o %s %s\t%s\x00", e.Mode, cmp.Or(kinds[e.Mode], "blob"), e.ID, e.Name)
		}
		if want := r.git(mktree.String(), "mktree", "-z", "--missing"); id != want {
			t.Errorf("tree %s, want %s", id, want)
		}
		got := must(r.r.Tree(t.Context(), id))(t)
		names := make([]string, len(got))
		for i, e := range got {
			names[i] = e.Name
			if !slices.Contains(entries, e) {
				t.Errorf("entry %v", e)
			}
		}
		if !slices.Equal(names, []string{"B", "a-b", "a.b", "a", "a0", "sub", "é\n\t\xff"}) {
			t.Errorf("order %q", names)
		}
		for _, bad := range [][]TreeEntry{
			{{"", ModeFile, blob}}, {{"a/b", ModeFile, blob}}, {{"a\x00", ModeFile, blob}}, {{"a", ModeFile, ""}},
			{{"a", ModeFile, strings.ToUpper(blob)}}, {{"a", ModeFile, blob + "00"}}, {{"a", 0, blob}}, {{"a", 0o644, blob}},
			{{"a", ModeFile, blob}, {"a.b", ModeFile, blob}, {"a", ModeTree, sub}},
		} {
			if _, err := r.w.Tree(bad); err == nil {
				t.Errorf("no error for %v", bad)
			}
		}
	})
}

func TestCommit(t *testing.T) {
	formats(t, func(t *testing.T, r *repo) {
		tree := must(r.w.Tree(nil))(t)
		who := Signature(" A <U>\nThor. ", "a@x", time.Unix(1700000000, 0).In(time.FixedZone("", -90*60)))
		if who != "A UThor <a@x> 1700000000 -0130" {
			t.Errorf("signature %q", who)
		}
		first := must(r.w.Commit(&Commit{Tree: tree, Author: who, Committer: who, Message: "one\n\nbody"}))(t)
		c := &Commit{
			Tree: tree, Parents: []string{first, first}, Author: who, Committer: who,
			Extra: []byte("encoding latin1\ngpgsig -----BEGIN\n \n abc\n -----END\n"), Message: "",
		}
		id := must(r.w.Commit(c))(t)
		got := must(r.r.Commit(t.Context(), id))(t)
		if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", c) {
			t.Errorf("got  %q\nwant %q", got, c)
		}
		if again := must(r.w.Commit(got))(t); again != id {
			t.Errorf("round trip gives %s", again)
		}
		if s := r.git("", "log", "-1", "--format=%an %s", first); s != "A UThor one" {
			t.Errorf("git reads %q", s)
		}
		r.git("", "fsck", "--strict")
		for _, bad := range []Commit{
			{Tree: "", Author: who, Committer: who}, {Tree: tree, Parents: []string{"x"}, Author: who, Committer: who},
			{Tree: tree, Author: "a\nb", Committer: who}, {Tree: tree, Author: who},
			{Tree: tree, Author: who, Committer: who, Message: "a\x00b"}, {Tree: tree, Author: who, Committer: who, Extra: []byte("x y\n\nz\n")},
		} {
			if _, err := r.w.Commit(&bad); err == nil {
				t.Errorf("no error for %q", bad)
			}
		}
	})
}

func TestSync(t *testing.T) {
	r := newRepo(t, SHA1)
	for _, n := range []int{0, 1, maxPending, maxPending + 1, 300} {
		for i := range n {
			r.blob(fmt.Sprint(n, i))
		}
		if more := r.w.pending.more; more != (n > maxPending) {
			t.Errorf("%d objects: more = %v", n, more)
		}
		if err := r.w.Sync(); err != nil {
			t.Fatal(err)
		}
		if r.w.pending.paths != nil || r.w.pending.more || r.w.pending.fresh {
			t.Errorf("%d objects: something is left", n)
		}
	}
	// An object that git has packed meanwhile is not ours to flush.
	r.git("", "update-ref", "refs/tags/x", r.blob("packed"))
	r.git("", "repack", "-q", "-a", "-d")
	if err := r.w.Sync(); err != nil {
		t.Error(err)
	}
}

func TestWriterConcurrent(t *testing.T) {
	r := newRepo(t, SHA1)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				id, err := r.w.Write(KindBlob, []byte(fmt.Sprint(i)))
				if err == nil {
					_, err = r.r.Size(t.Context(), id)
				}
				if err == nil && i%20 == g {
					err = r.w.Sync()
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	r.git("", "fsck")
}

func TestNewWriterFails(t *testing.T) {
	dir := t.TempDir()
	if _, err := NewWriter(dir, "md5"); err == nil {
		t.Error("unknown format: no error")
	}
	if _, err := NewWriter(filepath.Join(dir, "missing"), SHA1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
}

func BenchmarkWrite(b *testing.B) {
	r := newRepo(b, SHA1)
	data := bytes.Repeat([]byte("some text to compress\n"), 50)
	i := 0
	for b.Loop() {
		i++
		must(r.w.Write(KindBlob, fmt.Append(data, i)))(b)
	}
}

func BenchmarkSync(b *testing.B) {
	for _, n := range []int{1, 3, 20, 64, 500} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := newRepo(b, SHA1)
			i := 0
			for b.Loop() {
				for range n {
					i++
					r.blob(fmt.Sprint(i))
				}
				if err := r.w.Sync(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkBlob(b *testing.B) {
	r := newRepo(b, SHA1)
	buf := make([]byte, 16<<20)
	i := 0
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		i++
		copy(buf, fmt.Sprint(i))
		for j := 16; j < len(buf); j += 7 {
			buf[j] = byte(j * i >> 3)
		}
		must(r.w.Blob(bytes.NewReader(buf), int64(len(buf))))(b)
	}
}
