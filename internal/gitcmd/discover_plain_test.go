package gitcmd

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
)

// Whatever discoverPlain answers, git must answer too.
func TestDiscoverPlainAgreesWithGit(t *testing.T) {
	tests := []struct {
		name  string
		setup string
		dir   string
		env   []string
		plain bool
	}{
		{"top", "git init -q .", ".", nil, true},
		{"subdirectory", "git init -q . && mkdir -p a/b", "a/b", nil, true},
		{"author set", "git init -q .", ".", []string{"GIT_AUTHOR_NAME=x"}, true},
		{"through a link", "git init -q real && ln -s real link && mkdir real/s", "link/s", nil, true},
		{"linked worktree", "git init -q m && cd m && git commit -q --allow-empty -m x && git worktree add -q ../w", "w", nil, false},
		{"main of a linked worktree", "git init -q m && cd m && git commit -q --allow-empty -m x && git worktree add -q ../w", "m", nil, true},
		{"bare", "git init -q --bare .", ".", nil, false},
		{"inside .git", "git init -q .", ".git/refs", nil, false},
		{"core.worktree", "git init -q . && mkdir w && git config core.worktree ../w", ".", nil, false},
		{"core.bare", "git init -q . && git config core.bare true", ".", nil, false},
		{"include", "git init -q . && git config include.path x", ".", nil, false},
		{"sha256", "git init -q --object-format=sha256 .", ".", nil, false},
		{"GIT_DIR", "git init -q a && git init -q b", "a", []string{"GIT_DIR=../b/.git"}, false},
		{"ceiling", "git init -q . && mkdir -p a", "a", []string{"GIT_CEILING_DIRECTORIES=/"}, false},
		{"submodule-like file", "git init -q r && mkdir s && echo 'gitdir: ../r/.git' > s/.git", "s", nil, false},
		{"nested bare in a work tree", "git init -q . && git init -q --bare sub", "sub", nil, false},
		{"empty .git", "git init -q . && mkdir -p d/.git", "d", nil, false},
		{"broken HEAD", "git init -q . && mkdir -p d && git init -q d && rm d/.git/HEAD", "d", nil, false},
		{"newer format", "git init -q . && git config core.repositoryformatversion 99", ".", nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			cmd := exec.Command("sh", "-c", tt.setup)
			cmd.Dir = root
			cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@x", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@x", "GIT_CONFIG_GLOBAL=/dev/null")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			dir := filepath.Join(root, tt.dir)
			environ := append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + root}, tt.env...)
			fast, ok := discoverPlain(dir, environ)
			if ok != tt.plain {
				t.Fatalf("discoverPlain = %+v, %v; want %v", fast, ok, tt.plain)
			}
			asked, err := discoverAsked(context.Background(), dir, environ)
			if ok && (err != nil || !reflect.DeepEqual(fast, asked)) {
				t.Errorf("discoverPlain = %+v, git says %+v, %v", fast, asked, err)
			}
		})
	}
}

func TestRefTransaction(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("git", "init", "-q", "--bare", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ctx := context.Background()
	g := New(dir)
	blob, err := g.Line(ctx, "hash-object", "-w", "-t", "blob", os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	tx := g.StartUpdate("test")
	defer tx.Close()
	if err := tx.Run(ctx, RefUpdate{Ref: "refs/x/a", New: blob}); err != nil {
		t.Fatal(err)
	}
	// The head start is used up; it works all the same.
	if err := tx.Run(ctx, RefUpdate{Ref: "refs/x/b", New: blob}); err != nil {
		t.Fatal(err)
	}
	unused := g.StartUpdate("test")
	unused.Close()
	changed := g.StartUpdate("test")
	defer changed.Close()
	if err := changed.Run(ctx, RefUpdate{Ref: "refs/x/a", New: blob}); err == nil {
		t.Error("a ref that exists was created")
	}
	refs, err := g.ResolveRefs(ctx, "refs/x/a", "refs/x/b")
	if err != nil || len(refs) != 2 {
		t.Errorf("refs = %v, %v", refs, err)
	}
}
