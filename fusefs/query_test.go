package fusefs

import (
	"bytes"
	"context"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestStatAndList(t *testing.T) {
	r := newRig(t, map[string]string{"d/file": "hello", "d/exec": "#!x", "d/link": "->file", "d/sub/x": "x", "other/y": "y"})
	ctx := context.Background()
	must(t, os.WriteFile(r.path("d/new"), []byte("new"), 0o644))
	must(t, os.WriteFile(r.path("d/empty"), nil, 0o644))
	must(t, os.Symlink("there", r.path("d/newlink")))
	entries, err := r.c.Stat(ctx, "m", []string{
		"d", "d/file", "d/exec", "d/link", "d/sub", "d/new", "d/empty", "d/newlink", "d/none", "d/file/below", "other", "", ".git",
	})
	must(t, err)
	blob := "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0"
	if git(t, r.repo, "rev-parse", "HEAD:d/file") != blob {
		t.Fatal("unexpected blob id")
	}
	type short struct {
		name     string
		kind     Kind
		exec     bool
		size     int64
		blob     string
		hasData  bool
		target   string
		unmodded bool
	}
	want := []short{
		{name: "d", kind: Dir, size: 4096},
		{name: "d/file", kind: File, size: 5, blob: blob},
		{name: "d/exec", kind: File, exec: true, size: 3, blob: git(t, r.repo, "rev-parse", "HEAD:d/exec")},
		{name: "d/link", kind: Symlink, size: 4, blob: git(t, r.repo, "rev-parse", "HEAD:d/link")},
		{name: "d/sub", kind: Dir, size: 4096, unmodded: true},
		{name: "d/new", kind: File, size: 3, hasData: true},
		{name: "d/empty", kind: File},
		{name: "d/newlink", kind: Symlink, size: 5, target: "there"},
		{name: "d/none"}, {name: "d/file/below"},
		{name: "other", kind: Dir, size: 4096, unmodded: true},
		{name: "", kind: Dir, size: 4096},
		{name: ".git"},
	}
	for i, e := range entries {
		got := short{e.Name, e.Kind, e.Exec, e.Size, e.Blob, e.Data != "", e.Target, e.Tree != ""}
		if got != want[i] {
			t.Errorf("got  %+v\nwant %+v", got, want[i])
		}
		if e.Tree != "" && e.Tree != git(t, r.repo, "rev-parse", "HEAD:"+e.Name) {
			t.Errorf("%s: tree %s", e.Name, e.Tree)
		}
	}
	lists, err := r.c.List(ctx, "m", []string{"d", "none", "d/file"})
	must(t, err)
	var names []string
	for _, e := range lists[0] {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	if got := strings.Join(names, " "); got != "empty exec file link new newlink sub" || len(lists) != 3 || len(lists[1])+len(lists[2]) > 0 {
		t.Errorf("lists: %q, %d", got, len(lists))
	}
	must(t, r.c.Sync(ctx, "m"))
}

func TestOfflineDirty(t *testing.T) {
	r := newRig(t, map[string]string{"a": "a", "d/b": "b", "d/c": "c", "e/f/g": "g"})
	layers := filepath.Join(r.dir, "layers")
	check := func(layersOf []string, want ...string) {
		t.Helper()
		n, paths, err := OfflineDirty(layers, layersOf, 100)
		must(t, err)
		if n != len(want) || !slices.Equal(paths, want) {
			t.Errorf("got %q, want %q", paths, want)
		}
	}
	check([]string{"l1"})
	check(nil)
	check([]string{"l1", "not-there-yet"})
	must(t, os.WriteFile(r.path("a"), []byte("A"), 0o644))
	must(t, os.Remove(r.path("d/b")))
	must(t, os.Rename(r.path("e"), r.path("h")))
	check([]string{"l1"}, "a", "d/b", "e", "h/")
	if n, paths, err := OfflineDirty(layers, []string{"l1"}, 2); n != 4 || len(paths) != 2 || err != nil {
		t.Errorf("limited: %d %q %v", n, paths, err)
	}
	seq, _ := r.dirtyFiles()
	must(t, r.c.Mark(context.Background(), "m", seq, "c"))
	check([]string{"l1"})
	must(t, os.Chmod(r.path("h/f/g"), 0o755))
	must(t, os.Chmod(r.path("h/f"), 0o700)) // git does not know modes of directories
	check([]string{"l1"}, "h/f/g")
	if _, _, err := OfflineDirty(layers, []string{"none", "l1"}, 2); err == nil {
		t.Error("a missing layer in the middle is no error")
	}
}

// Names that git would never write do not get out of a tree.
func TestHostileTree(t *testing.T) {
	r := newRig(t, map[string]string{"ok": "ok"})
	blob, err := hex.DecodeString(git(t, r.repo, "rev-parse", "HEAD:ok"))
	must(t, err)
	var tree bytes.Buffer
	for _, name := range []string{".", "..", ".git", "ok", strings.Repeat("n", 300)} {
		tree.WriteString("100644 " + name + "\x00")
		tree.Write(blob)
	}
	tree.WriteString("160000 submodule\x00")
	tree.Write(blob)
	cmd := exec.Command("git", "hash-object", "-t", "tree", "-w", "--literally", "--stdin")
	cmd.Dir, cmd.Stdin = r.repo, &tree
	out, err := cmd.Output()
	must(t, err)
	r.unmount()
	r.spec.Tree, r.spec.DotGit, r.spec.Layers = strings.TrimSpace(string(out)), "", []string{"l2"}
	r.mount()
	entries, err := os.ReadDir(r.spec.Dir)
	must(t, err)
	if len(entries) != 2 || entries[0].Name() != "ok" || entries[1].Name() != "submodule" {
		t.Errorf("got %v", entries)
	}
	sub, err := r.c.Stat(context.Background(), "m", []string{"submodule"})
	must(t, err)
	if sub[0].Kind != Dir || sub[0].Gitlink != hex.EncodeToString(blob) || sub[0].Tree != "" {
		t.Errorf("submodule: %+v", sub[0])
	}
	must(t, os.WriteFile(r.path("submodule/x"), []byte("x"), 0o644))
	before := snapshot(t, r.spec.Dir)
	r.unmount()
	r.mount()
	same(t, "remount", snapshot(t, r.spec.Dir), before, exact)
}
