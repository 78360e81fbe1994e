package fusefs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// seen is what a stat and a read of a path show.
type seen struct {
	Mode, Nlink  uint32
	UID, GID     uint32
	Size         int64
	Content      string // hash, or target
	Xattr        string
	Old          int64 // mtime of a file, when it was set by hand
	ino          uint64
	mtime, ctime int64
}

// plain is seen without what differs between file systems.
func (s seen) plain() seen {
	s.ino, s.mtime, s.ctime = 0, 0, 0
	if s.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		s.Size = 0
	}
	return s
}

// uncounted is plain where the links of directories are not counted.
func (s seen) uncounted() seen {
	s = s.plain()
	if s.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		s.Nlink = 0
	}
	return s
}

// snapshot walks dir. The mount's own .git and git's directory are left out.
func snapshot(t testing.TB, dir string) map[string]seen {
	t.Helper()
	all := map[string]seen{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if rel == ".git" {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		s, err := look(path)
		if err != nil {
			return fmt.Errorf("%s: %w", rel, err)
		}
		all[rel] = s
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func look(path string) (seen, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return seen{}, err
	}
	s := seen{
		Mode: st.Mode, Nlink: uint32(st.Nlink), UID: st.Uid, GID: st.Gid, Size: st.Size,
		ino: st.Ino, mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano(),
	}
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		data, err := os.ReadFile(path)
		if err != nil {
			return s, err
		}
		sum := sha256.Sum256(data)
		s.Content = hex.EncodeToString(sum[:8])
		if s.mtime < 1e18 {
			s.Old = s.mtime
		}
		if int64(len(data)) != s.Size {
			return s, fmt.Errorf("read %d bytes of %d", len(data), s.Size)
		}
	case syscall.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			return s, err
		}
		s.Content = target
	}
	buf := make([]byte, 4096)
	n, err := unix.Llistxattr(path, buf)
	if err != nil {
		return s, err
	}
	for _, name := range strings.Split(strings.TrimRight(string(buf[:n]), "\x00"), "\x00") {
		if strings.HasPrefix(name, "user.") {
			v := make([]byte, 4096)
			n, err := unix.Lgetxattr(path, name, v)
			if err != nil {
				return s, err
			}
			s.Xattr += name + "=" + string(v[:n]) + ";"
		}
	}
	return s, nil
}

func same(t testing.TB, what string, got, want map[string]seen, norm func(seen) seen) {
	t.Helper()
	for path, w := range want {
		if g, ok := got[path]; !ok {
			t.Errorf("%s: %q is missing", what, path)
		} else if norm(g) != norm(w) {
			t.Errorf("%s: %q:\n got %+v\nwant %+v", what, path, norm(g), norm(w))
		}
	}
	for path := range got {
		if _, ok := want[path]; !ok {
			t.Errorf("%s: %q should not be there", what, path)
		}
	}
}

func exact(s seen) seen { return s }

// gitFile is what git would commit of a path.
type gitFile struct{ mode, content string }

// gitFiles gives what git would commit of a snapshot.
func gitFiles(all map[string]seen) map[string]gitFile {
	out := map[string]gitFile{}
	for path, s := range all {
		switch s.Mode & syscall.S_IFMT {
		case syscall.S_IFREG:
			mode := "100644"
			if s.Mode&0o100 != 0 {
				mode = "100755"
			}
			out[path] = gitFile{mode, s.Content}
		case syscall.S_IFLNK:
			out[path] = gitFile{"120000", s.Content}
		}
	}
	return out
}

// dirtyFiles asks for the dirty set the way the engine does, down from the
// root, and returns the sequence number and the paths that may have changed,
// each with what it is now (nil: gone). A path may be a directory that is
// gone or replaced: everything below it counts.
func (r *rig) dirtyFiles() (uint64, map[string]*gitFile) {
	r.t.Helper()
	out := map[string]*gitFile{}
	d, err := r.c.Dirty(context.Background(), r.spec.ID, []string{""})
	if err != nil {
		r.t.Fatal(err)
	}
	seq := d.Seq
	r.walkDirty("", d.Entries[0], out)
	return seq, out
}

func (r *rig) walkDirty(dir string, entries []DirtyEntry, out map[string]*gitFile) {
	r.t.Helper()
	for _, e := range entries {
		path := join(dir, e.Name)
		switch {
		case e.Kind == File || e.Kind == Symlink:
			out[path] = r.asGit(e)
		case e.Kind == Dir && e.Whole:
			out[path] = nil // whatever was there
			lists, err := r.c.List(context.Background(), r.spec.ID, []string{path})
			if err != nil {
				r.t.Fatal(err)
			}
			for i := range lists[0] {
				lists[0][i].Whole = lists[0][i].Kind == Dir
			}
			r.walkDirty(path, lists[0], out)
		case e.Kind == Dir && e.Below:
			d, err := r.c.Dirty(context.Background(), r.spec.ID, []string{path})
			if err != nil {
				r.t.Fatal(err)
			}
			r.walkDirty(path, d.Entries[0], out)
		case e.Kind != Dir:
			out[path] = nil
		}
	}
}

func (r *rig) asGit(e DirtyEntry) *gitFile {
	r.t.Helper()
	f := &gitFile{mode: "100644"}
	var data []byte
	var err error
	switch {
	case e.Data != "":
		data, err = os.ReadFile(e.Data)
	case e.Blob != "":
		cmd := exec.Command("git", "cat-file", "blob", e.Blob)
		cmd.Dir = r.repo
		data, err = cmd.Output()
	case e.Kind == Symlink:
		data = []byte(e.Target)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	if int64(len(data)) != e.Size {
		r.t.Errorf("%s: size %d, content %d", e.Name, e.Size, len(data))
	}
	sum := sha256.Sum256(data)
	f.content = hex.EncodeToString(sum[:8])
	if e.Exec {
		f.mode = "100755"
	}
	if e.Kind == Symlink {
		f.mode, f.content = "120000", string(data)
	}
	return f
}

// checkDirty checks that applying the dirty set to what was committed gives
// what is there.
func (r *rig) checkDirty(what string, base map[string]gitFile) (seq uint64) {
	r.t.Helper()
	seq, dirty := r.dirtyFiles()
	have := gitFiles(snapshot(r.t, r.spec.Dir))
	got := map[string]gitFile{}
	for path, f := range base {
		if !covered(dirty, path) {
			got[path] = f
		}
	}
	for path, f := range dirty {
		if f != nil {
			got[path] = *f
		}
	}
	for path, f := range have {
		if got[path] != f {
			r.t.Errorf("%s: %q: commit would have %+v, is %+v", what, path, got[path], f)
		}
	}
	for path, f := range got {
		if _, ok := have[path]; !ok {
			r.t.Errorf("%s: %q: commit would have %+v, is gone", what, path, f)
		}
	}
	return seq
}

func covered(dirty map[string]*gitFile, path string) bool {
	for p := path; p != "."; p = filepath.Dir(p) {
		if _, ok := dirty[p]; ok {
			return true
		}
	}
	return false
}
