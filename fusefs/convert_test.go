package fusefs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// convertRig is a rig whose repository converts content in every way there is,
// with a worktree of the same commit beside the mount to compare with.
type convertRig struct {
	*rig
	worktree string
	starts   string // where the long-running filter notes its starts
}

func newConvertRig(t *testing.T, config [][2]string, files map[string]string) *convertRig {
	t.Helper()
	needFuse(t)
	r := &convertRig{rig: &rig{t: t, dir: t.TempDir()}}
	r.repo, r.worktree, r.starts = filepath.Join(r.dir, "repo"), filepath.Join(r.dir, "worktree"), filepath.Join(r.dir, "starts")
	git(t, r.dir, "init", "-q", r.repo)
	// Stored exactly as given: conversions are switched on afterwards.
	for name, content := range files {
		writeFiles(t, r.repo, map[string]string{name: content})
		id := git(t, r.repo, "hash-object", "-w", "--no-filters", "--", name)
		mode := "100644"
		if strings.HasPrefix(content, "#!") {
			mode = "100755"
		}
		git(t, r.repo, "update-index", "--add", "--cacheinfo", mode+","+id+","+name)
	}
	git(t, r.repo, "commit", "-q", "-m", "base")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	config = append(config, [2]string{"filter.pkt.process", fmt.Sprintf("'%s' pkt-filter '%s'", exe, r.starts)}, [2]string{"filter.pkt.required", "true"},
		[2]string{"filter.rot.smudge", "tr a-z n-za-m"}, [2]string{"filter.rot.clean", "tr n-za-m a-z"},
		[2]string{"filter.path.smudge", "cat; echo %f"}, [2]string{"filter.path.clean", "sed '$d'"},
		[2]string{"filter.broken.smudge", "false"}, [2]string{"filter.cleanonly.clean", "cat"})
	for _, kv := range config {
		git(t, r.repo, "config", kv[0], kv[1])
	}
	git(t, r.repo, "worktree", "add", "-q", "--detach", r.worktree)
	r.spec = MountSpec{
		ID: "m", Dir: filepath.Join(r.dir, "mnt"), Tree: git(t, r.repo, "rev-parse", "HEAD^{tree}"),
		Time: time.Unix(1700000000, 0), Layers: []string{"l1"}, DotGit: "gitdir: /nowhere\n",
	}
	r.start()
	r.mount()
	t.Cleanup(func() {
		if err := r.c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if left, _ := filepath.Glob(filepath.Join(r.dir, "tmp", "*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	return r
}

// checkoutOf is what is below dir: by path, the permissions and the content.
func checkoutOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, path)
		if err != nil || d.IsDir() || rel == ".git" {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if int64(len(data)) != fi.Size() {
			t.Errorf("%q: stat says %d bytes, read %d", rel, fi.Size(), len(data))
		}
		all[rel] = fmt.Sprintf("%v %q", fi.Mode(), data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func compare(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, content := range want {
		if got[name] != content {
			t.Errorf("%q:\n got %.200s\nwant %.200s", name, got[name], content)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%q is not in a checkout", name)
		}
	}
}

var everyKind = map[string]string{
	".gitattributes": "*.crlf text eol=crlf\n*.lf text eol=lf\n*.auto text=auto\n*.txt text\n*.bin -text\n*.id ident\n" +
		"*.u16 text working-tree-encoding=UTF-16LE-BOM\n*.rot filter=rot\n*.pkt filter=pkt\n*.path filter=path\n" +
		"*.broken filter=broken\n*.none filter=undefined\n*.clean filter=cleanonly\n*.both ident filter=rot eol=crlf\n[attr]wide text eol=crlf\n*.macro wide\n",
	"a.crlf": "one\ntwo\n", "mixed.crlf": "one\r\ntwo\n", "a.lf": "one\ntwo\n", "a.auto": "one\ntwo\n", "bin.auto": "one\n\x00two\n",
	"a.txt": "one\ntwo\n", "a.bin": "one\ntwo\n", "plain": "one\ntwo\n", "a.id": "x $Id$ y\n", "noid.id": "x\n", "a.u16": "grüße\n",
	"a.rot": "hello\n", "a.pkt": "Hello\n", "a.path": "Hello\n", "a.broken": "hello\n", "a.none": "hello\n", "a.clean": "hello\n",
	"a.both": "x $Id$\nhello\n", "a.macro": "one\n", "run.crlf": "#!/bin/sh\necho\n", "empty.crlf": "", "empty.path": "", "empty.rot": "",
	"d/a.crlf": "d\n", "d/e/f/a.id": "$Id$", "d/e/f/big.pkt": strings.Repeat("All work and no play.\n", 20000),
	"own/.gitattributes": "*.crlf eol=lf\n*.here text eol=crlf\n", "own/a.crlf": "one\n", "own/a.here": "one\n", "own/sub/b.here": "two\n", "a.here": "one\n",
	"un/.gitattributes": "*.crlf -text\n* !eol\n", "un/a.crlf": "one\n",
	"sp ace/a b.path": "x\n", "sp ace/a b.crlf": "x\n", "nl/a\nb.path": "x\n", "nl/a\nb.crlf": "x\n", "odd/\xff\xfe.path": "x\n", "odd/\xff\xfe.crlf": "x\n",
	" lead/a.path": "x\n", " lead/ a.crlf": "x\n", "odd/ a.path": "x\n", "odd/-a.path": "x\n", "quote\"d/a'b.path": "x\n", "odd/back\\slash.path": "x\n",
}

func TestConvertAsCheckout(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config [][2]string
	}{
		{"plain", nil},
		{"autocrlf", [][2]string{{"core.autocrlf", "true"}}},
		{"input", [][2]string{{"core.autocrlf", "input"}}},
		{"eol", [][2]string{{"core.eol", "crlf"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newConvertRig(t, tt.config, everyKind)
			want := checkoutOf(t, r.worktree)
			compare(t, checkoutOf(t, r.spec.Dir), want)
			r.unmount()
			r.mount()
			compare(t, checkoutOf(t, r.spec.Dir), want)
			started, _ := os.ReadFile(r.starts)
			// Once by git worktree add; the mount keeps its own, and after the second
			// mount everything is in the cache.
			if n := bytes.Count(started, []byte("\n")); n < 2 || n > 1+processesOfTree {
				t.Errorf("the long-running filter was started %d times", n)
			}
		})
	}
}

// processesOfTree is how many conversions of a tree go on at a time.
const processesOfTree = 2

// What the user's own attributes say counts too.
func TestConvertUserAttributes(t *testing.T) {
	r := newConvertRig(t, nil, map[string]string{"a.x": "one\n", "b.y": "one\n", "d/c.y": "two\n"})
	r.unmount()
	info := filepath.Join(r.repo, ".git", "info", "attributes")
	mine := filepath.Join(r.dir, "mine")
	if err := errors.Join(os.MkdirAll(filepath.Dir(info), 0o755), os.WriteFile(info, []byte("*.x eol=crlf\n"), 0o644),
		os.WriteFile(mine, []byte("*.y filter=rot\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	git(t, r.repo, "config", "core.attributesFile", mine)
	r.mount()
	git(t, r.repo, "worktree", "add", "-q", "--detach", r.worktree+"2")
	want := checkoutOf(t, r.worktree+"2")
	if want["a.x"] != `-rw-r--r-- "one\r\n"` || want["d/c.y"] != `-rw-r--r-- "gjb\n"` {
		t.Fatalf("git itself wrote %v", want)
	}
	compare(t, checkoutOf(t, r.spec.Dir), want)
}

// Listing a directory converts nothing; only who asks for a size has to wait.
func TestConvertLazily(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	r := newConvertRig(t, nil, map[string]string{".gitattributes": "* filter=note\n", "a": "1\n", "b": "2\n", "d/c": "3\n"})
	r.unmount()
	git(t, r.repo, "config", "filter.note.smudge", "echo %f >>'"+ran+"'; cat")
	r.mount()
	for _, dir := range []string{"", "d"} {
		if _, err := os.ReadDir(r.path(dir)); err != nil {
			t.Fatal(err)
		}
	}
	if data, err := os.ReadFile(ran); err == nil {
		t.Errorf("listing converted %q", data)
	}
	readFile(t, r.path("d/c"), "3\n")
	if data, _ := os.ReadFile(ran); string(data) != "d/c\n" {
		t.Errorf("converted: %q", data)
	}
}

func readFile(t *testing.T, path, want string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil || string(data) != want {
		t.Errorf("%s: %.200q, %v; want %.200q", path, data, err, want)
	}
}

// A file shows what it showed, wherever it goes and whatever is written to a
// .gitattributes; also after the next mount and in a fork.
func TestConvertMoved(t *testing.T) {
	r := newConvertRig(t, nil, map[string]string{
		".gitattributes": "*.crlf eol=crlf\n*.path filter=path\n", "a.crlf": "a\n", "b.crlf": "b\n", "a.path": "p\n", "c.path": "c\n", "l.path": "l\n",
		"d/a.crlf": "da\n", "d/e/a.path": "dea\n", "d/e/b.path": "deb\n", "d/e/x.crlf": "dex\n", "o/.gitattributes": "*.dat eol=crlf\n", "o/a.dat": "o\n", "o/p/b.dat": "op\n",
	})
	ctx := context.Background()
	mv := func(from, to string) {
		t.Helper()
		if err := os.Rename(r.path(from), r.path(to)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(r.path("new"), 0o755), os.Remove(r.path(".gitattributes")), os.Link(r.path("l.path"), r.path("link")), os.Remove(r.path("l.path"))); err != nil {
		t.Fatal(err)
	}
	mv("a.crlf", "a.lf")
	mv("a.path", "new/a")
	mv("d/e", "new/moved")
	mv("new/moved/b.path", "b.elsewhere")
	mv("new", "newer")
	mv("o/p", "p")
	if err := os.Chmod(r.path("c.path"), 0o755); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"a.lf": "a\r\n", "b.crlf": "b\r\n", "newer/a": "p\na.path\n", "c.path": "c\nc.path\n", "link": "l\nl.path\n", "d/a.crlf": "da\r\n",
		"newer/moved/a.path": "dea\nd/e/a.path\n", "newer/moved/x.crlf": "dex\r\n", "b.elsewhere": "deb\nd/e/b.path\n", "o/a.dat": "o\r\n", "p/b.dat": "op\r\n",
	}
	check := func(dir string) {
		t.Helper()
		for name, content := range want {
			readFile(t, filepath.Join(dir, name), content)
		}
	}
	remount := func() {
		t.Helper()
		r.unmount()
		if err := os.RemoveAll(filepath.Join(r.dir, "blobs")); err != nil {
			t.Fatal(err)
		}
		r.c.Close()
		r.start()
		r.mount()
	}
	remount2 := func() {
		t.Helper()
		r.mount()
		remount()
	}
	remount() // before anything was looked at
	check(r.spec.Dir)
	remount()
	if _, err := r.c.Freeze(ctx, "m", "l2"); err != nil {
		t.Fatal(err)
	}
	fork := r.spec
	fork.ID, fork.Dir, fork.Layers = "fork", filepath.Join(r.dir, "fork"), []string{"l1", "l3"}
	if err := r.c.Mount(ctx, fork); err != nil {
		t.Fatal(err)
	}
	check(fork.Dir)
	check(r.spec.Dir)
	if err := r.c.Unmount(ctx, "fork"); err != nil {
		t.Fatal(err)
	}
	check(r.spec.Dir)
	r.spec.Layers = []string{"l1", "l2", "l4"}
	remount()
	mv("p", "q")
	want["q/b.dat"] = want["p/b.dat"]
	delete(want, "p/b.dat")
	r.unmount()
	r.merge(0, 3, "merged")
	r.spec.Layers = append(r.spec.Layers, "l5")
	remount2()
	check(r.spec.Dir)
}

// Writing starts from what is shown, and what is written stays.
func TestConvertWrite(t *testing.T) {
	r := newConvertRig(t, nil, map[string]string{".gitattributes": "*.crlf eol=crlf\n*.u16 working-tree-encoding=UTF-16LE-BOM\n", "a.crlf": "a\nb\n", "b.crlf": "a\nb\n", "a.u16": "x\n"})
	f, err := os.OpenFile(r.path("a.crlf"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("c\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	readFile(t, r.path("a.crlf"), "a\r\nb\r\nc\n")
	if err := os.Truncate(r.path("b.crlf"), 4); err != nil {
		t.Fatal(err)
	}
	readFile(t, r.path("b.crlf"), "a\r\nb")
	if err := os.Truncate(r.path("a.u16"), 3); err != nil {
		t.Fatal(err)
	}
	readFile(t, r.path("a.u16"), "\xff\xfex")
	r.unmount()
	r.mount()
	readFile(t, r.path("a.crlf"), "a\r\nb\r\nc\n")
	readFile(t, r.path("b.crlf"), "a\r\nb")
}

// A required filter that fails makes the file unreadable and nothing else: it
// can be listed, moved, overwritten and removed, and read as soon as the filter
// works.
func TestConvertFails(t *testing.T) {
	r := newConvertRig(t, nil, map[string]string{".gitattributes": "*.x filter=maybe\n", "a.x": "a\n", "b.x": "b\n", "c.x": "c\n", "empty.x": "", "plain": "p\n"})
	works := filepath.Join(r.dir, "works")
	r.unmount()
	git(t, r.repo, "config", "filter.maybe.smudge", "test -e '"+works+"' && cat && echo smudged")
	git(t, r.repo, "config", "filter.maybe.required", "true")
	r.mount()
	for _, name := range []string{"a.x", "empty.x"} {
		if _, err := os.Stat(r.path(name)); err != nil {
			t.Errorf("stat %s: %v", name, err)
		}
		if data, err := os.ReadFile(r.path(name)); !errors.Is(err, syscall.EIO) {
			t.Errorf("read %s: %q, %v", name, data, err)
		}
	}
	readFile(t, r.path("plain"), "p\n")
	if err := errors.Join(os.Rename(r.path("a.x"), r.path("moved")), os.Remove(r.path("b.x")), os.WriteFile(r.path("c.x"), []byte("mine\n"), 0)); err != nil {
		t.Error(err)
	}
	readFile(t, r.path("c.x"), "mine\n")
	entries, err := r.c.Stat(context.Background(), "m", []string{"moved"})
	if err != nil || entries[0].Blob == "" || entries[0].Data != "" {
		t.Errorf("Stat = %+v, %v", entries, err)
	}
	if err := os.WriteFile(works, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var data []byte
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if data, err = os.ReadFile(r.path("moved")); err == nil {
			break
		}
	}
	if err != nil || string(data) != "a\nsmudged\n" {
		t.Errorf("moved: %q, %v", data, err)
	}
}

// What is dirty without having been written is told with its converted content.
func TestConvertDirty(t *testing.T) {
	r := newConvertRig(t, nil, map[string]string{".gitattributes": "*.crlf eol=crlf\n", "a.crlf": "a\n", "b.crlf": "b\n", "d/c.crlf": "c\n", "d/plain": "c\n"})
	ctx := context.Background()
	if err := errors.Join(os.Rename(r.path("a.crlf"), r.path("a")), os.Chmod(r.path("b.crlf"), 0o755), os.Rename(r.path("d"), r.path("e"))); err != nil {
		t.Fatal(err)
	}
	content := func(e DirtyEntry, want, source string) {
		t.Helper()
		data, err := os.ReadFile(e.Data)
		if err != nil || string(data) != want || e.Blob != "" || e.Size != int64(len(want)) || e.Source != git(t, r.repo, "rev-parse", "HEAD:"+source) {
			t.Errorf("%+v: %q, %v; want %q", e, data, err, want)
		}
	}
	d, err := r.c.Dirty(ctx, "m", []string{""})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range d.Entries[0] {
		switch e.Name {
		case "a":
			content(e, "a\r\n", "a.crlf")
		case "b.crlf":
			content(e, "b\r\n", "b.crlf")
		}
	}
	lists, err := r.c.List(ctx, "m", []string{"e"})
	if err != nil || len(lists[0]) != 2 {
		t.Fatal(lists, err)
	}
	for _, e := range lists[0] {
		if e.Name == "c.crlf" {
			content(e, "c\r\n", "d/c.crlf")
		} else if e.Blob == "" || e.Data != "" {
			t.Errorf("%+v", e)
		}
	}
	// Somebody clears the cache: it is made again.
	if err := os.RemoveAll(filepath.Join(r.dir, "blobs")); err != nil {
		t.Fatal(err)
	}
	entries, err := r.c.Stat(ctx, "m", []string{"a"})
	if err != nil {
		t.Fatal(err)
	}
	content(entries[0], "a\r\n", "a.crlf")
}

// A conversion that a crash of the machine cut short is made again.
func TestConvertCutShort(t *testing.T) {
	r := newConvertRig(t, nil, map[string]string{".gitattributes": "*.crlf eol=crlf\n", "a.crlf": "a\nb\nc\n"})
	readFile(t, r.path("a.crlf"), "a\r\nb\r\nc\r\n")
	r.unmount()
	r.c.Close()
	made, _ := filepath.Glob(filepath.Join(r.dir, "blobs", "*", "*.*"))
	if len(made) != 1 {
		t.Fatalf("conversions: %v", made)
	}
	if err := os.Truncate(made[0], 2); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.mount()
	readFile(t, r.path("a.crlf"), "a\r\nb\r\nc\r\n")
}
