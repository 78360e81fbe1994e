package conversion

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
)

// repo is a repository for one test.
type repo struct {
	t   *testing.T
	dir string
	g   *gitcmd.Git
	r   *objects.Reader
}

func newRepo(t *testing.T) *repo {
	t.Helper()
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	r := &repo{t: t, dir: filepath.Join(home, "repo")}
	if out, err := exec.Command("git", "init", "-q", r.dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r.g = gitcmd.New(filepath.Join(r.dir, ".git"))
	r.r = objects.NewReader(r.g, 1)
	t.Cleanup(func() { r.r.Close() })
	return r
}

func (r *repo) git(in string, args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Stdin = r.dir, strings.NewReader(in)
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("git %v: %v", args, err)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// tree writes a tree of files, as they are, and returns its id.
func (r *repo) tree(files map[string]string) string {
	r.t.Helper()
	r.git("", "read-tree", "--empty")
	for name, content := range files {
		id := r.git(content, "hash-object", "-w", "--stdin")
		r.git("100644 "+id+"\t"+name+"\x00", "update-index", "-z", "--index-info")
	}
	return r.git("", "write-tree")
}

func (r *repo) open(tree string) *Tree {
	r.t.Helper()
	c, err := NewSource(r.g).Config(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	t := NewTree(r.g, r.r, tree, c, filepath.Join(r.dir, "tmp"), log.New(io.Discard, "", 0))
	r.t.Cleanup(func() {
		if err := t.Close(); err != nil {
			r.t.Error(err)
		}
		if left, _ := filepath.Glob(filepath.Join(r.dir, "tmp", "*")); len(left) > 0 {
			r.t.Errorf("left behind: %v", left)
		}
	})
	return t
}

// What no rule is about, git writes as it is; what one is about comes out as git
// writes it, whatever the attributes and the configuration.
func TestRulesAgreeWithGit(t *testing.T) {
	attributes := []string{"", "text", "-text", "text=auto", "text=input", "!text", "crlf", "-crlf", "crlf=input", "eol=crlf", "eol=lf", "eol=odd",
		"text eol=crlf", "-text eol=crlf", "text=auto eol=crlf", "text=auto eol=lf", "text=odd", "text=odd eol=crlf", "crlf=odd", "text=auto crlf",
		"-crlf eol=crlf", "binary", "ident", "-ident", "filter=f", "-filter", "filter", "filter=unknown", "filter=p eol=crlf", "working-tree-encoding=UTF-16",
		"working-tree-encoding=UTF-8", "ident eol=crlf filter=f working-tree-encoding=UTF-16LE-BOM text", "filter=clean", "filter=needed"}
	contents := map[string]string{"lf": "a $Id$\nb\n", "crlf": "a\r\nb\r\n", "mixed": "a\r\nb\n", "binary": "a\x00b\n", "empty": "", "none": "abc"}
	for _, config := range []string{"", "core.autocrlf=true", "core.autocrlf=input", "core.eol=crlf", "core.eol=lf", "core.autocrlf=input core.eol=crlf", "core.autocrlf=1 core.eol=lf"} {
		t.Run(config, func(t *testing.T) {
			r := newRepo(t)
			for _, kv := range append(strings.Fields(config), "filter.f.smudge=tr a-z A-Z", "filter.clean.clean=cat", "filter.p.process=", "filter.needed.required=true") {
				k, v, _ := strings.Cut(kv, "=")
				r.git("", "config", k, v)
			}
			files := map[string]string{}
			var rules strings.Builder
			for i, a := range attributes {
				fmt.Fprintf(&rules, "*.%d %s\n", i, a)
				for kind, content := range contents {
					files[fmt.Sprintf("d/%s.%d", kind, i)] = content
				}
			}
			files["d/.gitattributes"] = rules.String()
			tree := r.open(r.tree(files))
			for path, content := range files {
				r.agree(tree, path, content)
			}
		})
	}
}

// agree compares with what git itself, with the attributes in its index, writes.
func (r *repo) agree(tree *Tree, path, content string) {
	r.t.Helper()
	ctx := context.Background()
	want, wantErr := exec.Command("git", "-C", r.dir, "cat-file", "--filters", ":"+path).Output()
	rule, err := tree.Rule(ctx, path)
	if err != nil {
		r.t.Fatal(err)
	}
	if rule == nil {
		if wantErr != nil || string(want) != content {
			r.t.Errorf("%s: no rule, and git writes %q, %v for %q", path, want, wantErr, content)
		}
		return
	}
	var got bytes.Buffer
	_, err = tree.Convert(ctx, r.git("", "rev-parse", ":"+path), path, &got)
	if (err != nil) != (wantErr != nil) || err == nil && got.String() != string(want) {
		r.t.Errorf("%s: %q, %v; git writes %q, %v", path, got.Bytes(), err, want, wantErr)
	}
}

func TestNothingToConvert(t *testing.T) {
	r := newRepo(t)
	tree := r.open(r.tree(map[string]string{"a": "x\n", "d/b": "y\n"}))
	rules, err := tree.Rules(context.Background(), "d", "", []string{"b"})
	if rules != nil || err != nil {
		t.Errorf("Rules = %v, %v", rules, err)
	}
	if tree.scratch != "" || tree.check != nil {
		t.Error("something was started for nothing")
	}
}

func TestConfigChanges(t *testing.T) {
	r := newRepo(t)
	ctx := context.Background()
	s := NewSource(r.g)
	get := func() *Config {
		t.Helper()
		c, err := s.Config(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := get()
	if get() != first || first.Global() || first.Fingerprint() != "" {
		t.Errorf("%+v", first)
	}
	seen := map[string]bool{"": true}
	for i, change := range []func(){
		func() { r.git("", "config", "core.autocrlf", "true") },
		func() { r.git("", "config", "core.autocrlf", "false") },
		func() {
			r.git("", "config", "--global", "core.attributesFile", "~/mine")
			write(t, filepath.Join(filepath.Dir(r.dir), "mine"), "*.z eol=crlf\n")
		},
		func() { write(t, filepath.Join(filepath.Dir(r.dir), "mine"), "*.x eol=crlf\n") },
		func() { write(t, filepath.Join(r.dir, ".git/info/attributes"), "*.y ident\n") },
		func() { r.git("", "config", "filter.x.smudge", "cat") },
	} {
		before := get()
		change()
		now := get()
		if now == before || seen[now.Fingerprint()] {
			t.Errorf("change %d is not seen: %+v", i, now)
		}
		seen[now.Fingerprint()] = true
	}
	if below, above := get().AttributeFiles(); !strings.HasSuffix(below[len(below)-1], "/mine") || !strings.HasSuffix(above, "info/attributes") {
		t.Errorf("attribute files: %v, %v", below, above)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// A process that dies is replaced; one that hangs ends with the tree.
func TestProcessEnds(t *testing.T) {
	r := newRepo(t)
	fifo := filepath.Join(t.TempDir(), "fifo")
	if out, err := exec.Command("mkfifo", fifo).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r.git("", "config", "filter.hang.smudge", "echo begun >'"+fifo+"'; cat '"+fifo+"'")
	tree := r.open(r.tree(map[string]string{".gitattributes": "*.crlf eol=crlf\n*.hang filter=hang\n", "a.crlf": "a\n", "a.hang": "x"}))
	ctx := context.Background()
	convert := func(path string) (string, error) {
		if _, err := tree.Rule(ctx, path); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		_, err := tree.Convert(ctx, r.git("", "rev-parse", ":"+path), path, &got)
		return got.String(), err
	}
	for range 2 {
		if got, err := convert("a.crlf"); got != "a\r\n" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		tree.mu.Lock()
		for c := range tree.live {
			c.kill()
			c.cmd.Process.Wait()
		}
		tree.check.kill()
		tree.mu.Unlock()
	}
	ended := make(chan error)
	go func() {
		_, err := convert("a.hang")
		ended <- err
	}()
	if _, err := os.ReadFile(fifo); err != nil { // it has begun
		t.Fatal(err)
	}
	if err := tree.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("a conversion outlived its tree")
	}
	if _, err := convertClosed(tree); !errors.Is(err, errClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func convertClosed(tree *Tree) (int64, error) {
	return tree.Convert(context.Background(), strings.Repeat("0", 40), "a.crlf", io.Discard)
}
