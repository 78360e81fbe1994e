package environment

import (
	"compress/zlib"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// inside is git as the environment runs it, on its private git directory.
type inside struct {
	*rig
	v   *Env
	dir string
}

func newInside(t *testing.T) *inside {
	r := newRig(t, map[string]string{"f": "one\n"})
	in := &inside{rig: r, v: r.env("e")}
	in.dir = filepath.Join(in.v.dir(), "git")
	in.prepare()
	return in
}

// commit waits for what follows it: with GIT_DIR set, git does not look for .git.
func (in *inside) commit(v *Env) *commitResult {
	in.t.Helper()
	res := in.rig.commit(v)
	in.settled(v)
	return res
}

func (in *inside) prepare() {
	in.t.Helper()
	in.v.mu.Lock()
	defer in.v.mu.Unlock()
	if _, err := in.v.gitMounts(in.t.Context()); err != nil {
		in.t.Fatal(err)
	}
}

func (in *inside) try(args ...string) (string, error) {
	return gitTry(in.v.st.Workspace, []string{"GIT_DIR=" + in.dir, "GIT_WORK_TREE=" + in.v.st.Workspace,
		"GIT_ALTERNATE_OBJECT_DIRECTORIES=" + filepath.Join(in.repo, ".git/objects"), "GIT_EDITOR=true"}, args...)
}

func (in *inside) git(args ...string) string {
	in.t.Helper()
	out, err := in.try(args...)
	if err != nil {
		in.t.Fatalf("git %q inside: %v\n%s", args, err, out)
	}
	return strings.TrimSuffix(out, "\n")
}

func (in *inside) edit(name, text string) { write(in.t, filepath.Join(in.v.st.Workspace, name), text) }

func (in *inside) tip() string { return git(in.t, in.repo, "rev-parse", BranchRef("e")) }

// agree fails the test when the two views of the branch or of what is changed
// are not the same.
func (in *inside) agree() {
	in.t.Helper()
	if a, b := in.tip(), in.git("rev-parse", BranchRef("e")); a != b {
		in.t.Errorf("branch at %s, inside at %s", a, b)
	}
	if st := in.git("status", "--porcelain"); st != "" {
		in.t.Errorf("status inside: %s", st)
	}
	if st := git(in.t, in.v.st.Workspace, "status", "--porcelain"); st != "" {
		in.t.Errorf("status on the host: %s", st)
	}
	if out := git(in.t, in.repo, "fsck", "--no-dangling", "--connectivity-only"); out != "" {
		in.t.Errorf("fsck: %s", out)
	}
}

func TestTakeover(t *testing.T) {
	in := newInside(t)
	for i := range 3 {
		in.edit("f", fmt.Sprint("inside ", i, "\n"))
		in.git("commit", "-qam", fmt.Sprint("inside ", i))
		in.edit("g", fmt.Sprint("rest ", i, "\n"))
		want := in.git("rev-parse", "HEAD")
		res := in.commit(in.v)
		if len(res.warnings) > 0 || git(t, in.repo, "rev-parse", res.tip+"^") != want {
			t.Fatalf("round %d: %+v", i, res)
		}
		in.agree()
		if i == 1 {
			in.git("pack-refs", "--all")
			in.git("repack", "-adlq")
		}
	}
	// Rewritten, and in parts older than the last takeover.
	in.git("checkout", "-q", "-b", "side")
	in.edit("old", "old\n")
	in.git("add", "old")
	in.git("commit", "-qm", "side")
	in.git("checkout", "-q", "env/e")
	old := in.git("rev-parse", "side")
	past := filepath.Join(in.dir, "objects", old[:2], old[2:])
	if err := os.Chtimes(past, past0(), past0()); err != nil {
		t.Fatal(err)
	}
	if _, err := in.delete("e", false); err == nil || !strings.Contains(err.Error(), "refs/heads/side") {
		t.Errorf("delete: %v", err)
	}
	in.git("reset", "-q", "--hard", "HEAD~1")
	in.git("merge", "-q", "--no-ff", "-m", "merged", "side")
	before := in.tip()
	res := in.commit(in.v)
	if len(res.warnings) > 0 {
		t.Errorf("warnings: %q", res.warnings)
	}
	git(t, in.repo, "merge-base", "--is-ancestor", before, res.tip)
	git(t, in.repo, "merge-base", "--is-ancestor", old, res.tip)
	in.agree()
}

// TestRebaseAcrossExecs: a rebase that stops is finished in later execs.
func TestRebaseAcrossExecs(t *testing.T) {
	in := newInside(t)
	git(t, in.repo, "branch", "-f", "other", git(t, in.repo, "commit-tree", "-m", "other", "-p", "HEAD", "HEAD^{tree}"))
	if err := os.RemoveAll(in.dir); err != nil {
		t.Fatal(err)
	}
	in.prepare()
	in.git("checkout", "-q", "-b", "theirs", "other")
	in.edit("f", "theirs\n")
	in.git("commit", "-qam", "theirs")
	in.git("checkout", "-q", "env/e")
	in.edit("f", "ours\n")
	in.git("commit", "-qam", "ours")
	in.commit(in.v)
	if out, err := in.try("rebase", "theirs"); err == nil {
		t.Fatalf("no conflict: %s", out)
	}
	in.commit(in.v)
	in.edit("f", "both\n")
	in.commit(in.v)
	in.git("add", "f")
	if out, err := in.try("rebase", "--continue"); err != nil {
		t.Fatalf("rebase --continue: %s", out)
	}
	before := in.tip()
	res := in.commit(in.v)
	git(t, in.repo, "merge-base", "--is-ancestor", before, res.tip)
	if got := git(t, in.repo, "show", res.tip+":f"); got != "both" {
		t.Errorf("f is %q", got)
	}
	in.agree()
}

// TestHostileInside: nothing planted in the private git directory is followed out
// of it, hangs, or keeps the workspace from being committed.
func TestHostileInside(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, strings.Repeat("0123456789abcdef", 2)+"01234567\n")
	id := strings.Repeat("ab", 20)
	for name, plant := range map[string]func(in *inside) error{
		"ref is a link out":  func(in *inside) error { return relink(secret, in.dir+"/refs/heads/env/e") },
		"ref is a fifo":      func(in *inside) error { return fifo(in.dir + "/refs/heads/env/e") },
		"ref is a directory": func(in *inside) error { return redir(in.dir + "/refs/heads/env/e/x") },
		"ref of nothing":     func(in *inside) error { return rewrite(in.dir+"/refs/heads/env/e", id+"\n") },
		"ref of a blob": func(in *inside) error {
			return rewrite(in.dir+"/refs/heads/env/e", in.git("hash-object", "-w", "f")+"\n")
		},
		"packed refs fifo":     func(in *inside) error { return fifo(in.dir + "/packed-refs") },
		"packed refs link out": func(in *inside) error { return relink("/dev/zero", in.dir+"/packed-refs") },
		"index is a directory": func(in *inside) error { return redir(in.dir + "/index/x") },
		"new index in the way": func(in *inside) error { return redir(in.dir + "/index.git-env-new/x") },
		"objects link out":     func(in *inside) error { return relink("/etc", in.dir+"/objects") },
		"objects gone":         func(in *inside) error { return os.RemoveAll(in.dir + "/objects") },
		"object is a fifo": func(in *inside) error {
			in.edit("f", "two\n")
			in.git("commit", "-qam", "two")
			tree := in.git("rev-parse", "HEAD^{tree}")
			return fifo(filepath.Join(in.dir, "objects", tree[:2], tree[2:]))
		},
		"object is a link out": func(in *inside) error {
			in.edit("f", "two\n")
			in.git("commit", "-qam", "two")
			blob := in.git("rev-parse", "HEAD:f")
			return relink(secret, filepath.Join(in.dir, "objects", blob[:2], blob[2:]))
		},
		"object is another": func(in *inside) error {
			in.edit("f", "two\n")
			in.git("commit", "-qam", "two")
			blob := in.git("rev-parse", "HEAD:f")
			return rewrite(filepath.Join(in.dir, "objects", blob[:2], blob[2:]), deflated("blob 5\x00evil\n"))
		},
		"commit is another": func(in *inside) error {
			in.edit("f", "two\n")
			in.git("commit", "-qam", "two")
			c := in.git("rev-parse", "HEAD")
			text := "tree " + in.git("rev-parse", "HEAD^{tree}") + "\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\nevil\n"
			return rewrite(filepath.Join(in.dir, "objects", c[:2], c[2:]), deflated(fmt.Sprintf("commit %d\x00%s", len(text), text)))
		},
		"tree with .git": func(in *inside) error {
			blob := in.git("hash-object", "-w", "f")
			raw := "100644 .git\x00" + unhex(blob)
			file := in.dir + "/raw"
			if err := os.WriteFile(file, []byte(raw), 0o600); err != nil {
				return err
			}
			tree := in.git("hash-object", "-w", "--literally", "-t", "tree", file)
			c := in.git("commit-tree", "-m", "evil", "-p", in.tip(), tree)
			return rewrite(in.dir+"/refs/heads/env/e", c+"\n")
		},
		"alternates and hooks": func(in *inside) error {
			if err := rewrite(in.dir+"/objects/info/alternates", "/etc\n"); err != nil {
				return err
			}
			return rewrite(in.dir+"/hooks/post-index-change", "#!/bin/sh\ntouch "+secret+".ran\n")
		},
		"junk pack": func(in *inside) error {
			in.edit("f", "two\n")
			in.git("commit", "-qam", "two")
			return rewrite(in.dir+"/objects/pack/pack-"+id+".pack", "PACK junk")
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := newInside(t)
			base := in.tip()
			if err := plant(in); err != nil {
				t.Fatal(err)
			}
			in.edit("work", "kept\n")
			res := in.commit(in.v)
			if got := git(t, in.repo, "show", res.tip+":work"); got != "kept" {
				t.Errorf("work is %q", got)
			}
			if git(t, in.repo, "log", "--format=%s", base+".."+res.tip) != "work" && !strings.Contains(name, "alternates") {
				t.Errorf("taken over: %s", git(t, in.repo, "log", "--oneline", base+".."+res.tip))
			}
			if out := git(t, in.repo, "fsck", "--no-dangling", "--no-progress"); out != "" {
				t.Errorf("fsck: %s", out)
			}
			if _, err := os.Lstat(secret + ".ran"); err == nil {
				t.Error("a hook ran")
			}
			in.prepare() // the environment still starts
			if left, _ := filepath.Glob(filepath.Join(in.e.tmpDir(), "*")); len(left) > 0 {
				t.Errorf("left: %s", left)
			}
			if _, err := in.delete("e", true); err != nil {
				t.Error(err)
			}
			in.left("e")
		})
	}
}

func makeRoom(name string) error {
	if err := os.RemoveAll(name); err != nil {
		return err
	}
	return os.MkdirAll(filepath.Dir(name), 0o755)
}

func relink(target, name string) error {
	if err := makeRoom(name); err != nil {
		return err
	}
	return os.Symlink(target, name)
}

func fifo(name string) error {
	if err := makeRoom(name); err != nil {
		return err
	}
	return syscall.Mkfifo(name, 0o644)
}

func redir(name string) error {
	if err := makeRoom(filepath.Dir(name)); err != nil {
		return err
	}
	return os.MkdirAll(name, 0o755)
}

func rewrite(name, text string) error {
	if err := makeRoom(name); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(text), 0o755)
}

func deflated(s string) string {
	var b strings.Builder
	w := zlib.NewWriter(&b)
	_, _ = w.Write([]byte(s))
	_ = w.Close()
	return b.String()
}

func unhex(id string) string {
	raw, err := hex.DecodeString(id)
	if err != nil {
		panic(err)
	}
	return string(raw)
}

// past0 is before any takeover.
func past0() time.Time { return time.Unix(1e9, 0) }
