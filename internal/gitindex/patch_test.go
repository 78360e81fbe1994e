package gitindex

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

type repo struct {
	t   testing.TB
	dir string
	hex int
}

func (r *repo) git(stdin string, args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return string(out)
}

func newRepo(t testing.TB, format string) *repo {
	t.Helper()
	r := &repo{t: t, dir: t.TempDir(), hex: map[string]int{"sha1": 40, "sha256": 64}[format]}
	r.git("", "init", "-q", "--object-format="+format)
	return r
}

func (r *repo) index() string { return filepath.Join(r.dir, ".git", "index") }

func (r *repo) blob(text string) string {
	return strings.TrimSpace(r.git(text, "hash-object", "-w", "--stdin"))
}

// patch applies edits to the repository's index.
func (r *repo) patch(edits []Edit) error {
	r.t.Helper()
	f, err := os.Open(r.index())
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		r.t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Patch(&out, f, fi.Size(), r.hex, edits); err != nil {
		return err
	}
	if err := os.WriteFile(r.index(), out.Bytes(), 0o644); err != nil {
		r.t.Fatal(err)
	}
	return nil
}

// byGit applies edits as git does.
func (r *repo) byGit(edits []Edit) {
	r.t.Helper()
	var in strings.Builder
	for _, e := range edits {
		if e.ID == "" {
			fmt.Fprintf(&in, "0 %s\t%s\x00", strings.Repeat("0", r.hex), e.Path)
		} else {
			fmt.Fprintf(&in, "%o %s\t%s\x00", e.Mode, e.ID, e.Path)
		}
	}
	r.git(in.String(), "update-index", "--add", "--remove", "--replace", "-z", "--index-info")
}

func (r *repo) entries() string { return r.git("", "ls-files", "-s", "-z") }

// TestPatchLikeGit compares random edits, one after the other, with git's own.
func TestPatchLikeGit(t *testing.T) {
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			r := newRepo(t, format)
			rnd := rand.New(rand.NewPCG(7, 11))
			blobs := []string{r.blob("1"), r.blob("2"), r.blob("3")}
			r.git("", "update-index", "--add", "--cacheinfo", "100644,"+blobs[0]+",keep/this")
			for round := range 25 {
				var edits []Edit
				taken := map[string]bool{}
				for range 1 + rnd.IntN(6) {
					parts := []string{"a", "b", "c"}[:1+rnd.IntN(3)]
					for i := range parts {
						parts[i] = string(rune('a'+rnd.IntN(3))) + []string{"", ".x", "-"}[rnd.IntN(3)]
					}
					e := Edit{Path: strings.Join(parts, "/")}
					if clashes(taken, e.Path) {
						continue
					}
					taken[e.Path] = true
					if rnd.IntN(3) > 0 {
						e.Mode, e.ID = 0o100644, blobs[rnd.IntN(3)]
					}
					edits = append(edits, e)
				}
				if rnd.IntN(2) == 0 {
					r.git("", "write-tree") // leaves the trees in the index
				}
				before, err := os.ReadFile(r.index())
				if err != nil {
					t.Fatal(err)
				}
				r.byGit(edits)
				want := r.entries()
				if err := os.WriteFile(r.index(), before, 0o644); err != nil {
					t.Fatal(err)
				}
				if err := r.patch(edits); err != nil {
					t.Fatalf("round %d: %v: %v", round, edits, err)
				}
				if got := r.entries(); got != want {
					t.Fatalf("round %d: %v\n got %q\nwant %q", round, edits, got, want)
				}
				r.git("", "fsck", "--cache", "--no-dangling")
				tree := r.git("", "write-tree") // believes the trees in the index
				os.Remove(r.index())
				r.git("", "read-tree", strings.TrimSpace(tree))
				if got := r.entries(); got != want {
					t.Fatalf("round %d: %v: the trees are wrong\n got %q\nwant %q", round, edits, got, want)
				}
			}
		})
	}
}

// clashes says that one of the paths would be below the other.
func clashes(taken map[string]bool, p string) bool {
	for q := range taken {
		if q == p || strings.HasPrefix(q, p+"/") || strings.HasPrefix(p, q+"/") {
			return true
		}
	}
	return false
}

func TestPatchKeepsTheRest(t *testing.T) {
	r := newRepo(t, "sha1")
	long := strings.Repeat("d/", 2100) + "f" // longer than the length field holds
	b := r.blob("x")
	r.git(fmt.Sprintf("100644 %s 0\t%s\n100644 %s 1\tc\n100644 %s 2\tc\n100644 %s 3\tc\n100755 %s 0\tz\n", b, long, b, b, b, b),
		"update-index", "--index-info")
	if err := os.WriteFile(filepath.Join(r.dir, "later"), []byte("later"), 0o644); err != nil {
		t.Fatal(err)
	}
	r.git("", "add", "-N", "later") // version 3
	if err := r.patch([]Edit{{"a", 0o100644, b, true}, {"c", 0o120000, b, false}}); err != nil {
		t.Fatal(err)
	}
	want := "100644 " + b + " 0\ta\x00120000 " + b + " 0\tc\x00100644 " + b + " 0\t" + long + "\x00"
	if got := r.entries(); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "100755 "+b+" 0\tz\x00") {
		t.Errorf("got %q", got)
	}
	if got := r.git("", "diff", "--name-only"); !strings.Contains(got, "later") {
		t.Errorf("what is to be added is forgotten: %q", got)
	}
	if got := r.git("", "ls-files", "-t", "a", "c"); got != "S a\nH c\n" {
		t.Errorf("marked: %q", got)
	}
	r.git("", "fsck", "--cache")
}

func TestPatchRefuses(t *testing.T) {
	r := newRepo(t, "sha1")
	b := r.blob("x")
	r.git("", "update-index", "--add", "--cacheinfo", "100644,"+b+",f")
	good, err := os.ReadFile(r.index())
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--index-version", "4"}, {"--split-index"}, {"--force-untracked-cache"}} {
		r.git("", append([]string{"update-index"}, args...)...)
		if err := r.patch([]Edit{{Path: "g", Mode: 0o100644, ID: b}}); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%v: %v", args, err)
		}
		if err := os.WriteFile(r.index(), good, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for n := range good {
		src := bytes.NewReader(good[:n])
		if err := Patch(&bytes.Buffer{}, src, int64(n), 40, nil); err == nil {
			t.Errorf("%d of %d bytes are taken for an index", n, len(good))
		}
	}
	for i := range good[:len(good)-20] { // whatever it is, no panic
		bad := bytes.Clone(good)
		bad[i] ^= 0xff
		_ = Patch(&bytes.Buffer{}, bytes.NewReader(bad), int64(len(bad)), 40, []Edit{{Path: "g", Mode: 0o100644, ID: b}})
	}
}

func BenchmarkPatch(b *testing.B) {
	r := newRepo(b, "sha1")
	id := r.blob("x")
	var in strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&in, "100644 %s 0\td%04d/f%05d\n", id, i/100, i)
	}
	r.git(in.String(), "update-index", "--index-info")
	data, err := os.ReadFile(r.index())
	if err != nil {
		b.Fatal(err)
	}
	out := filepath.Join(b.TempDir(), "out")
	for b.Loop() {
		f, err := os.Create(out)
		if err != nil {
			b.Fatal(err)
		}
		if err := Patch(f, bytes.NewReader(data), int64(len(data)), 40, []Edit{{Path: "d0500/f50000", Mode: 0o100644, ID: id}}); err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}
