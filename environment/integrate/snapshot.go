package integrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/git-env/git-env/internal/durable"
)

// applyDir, below the work tree's git directory, holds what an abort needs:
//
//	state.json  applyState
//	index       the index as it was, byte for byte; absent when there was none
//	message     MERGE_MSG as it was; absent when there was none
//	files/<n>   the bytes of touched files as they were
//
// It is written before anything changes and moved into place in one step.
const applyDir = "git-env-apply"

type applyPhase string

const (
	phaseStarted  applyPhase = "started"  // git may be at work
	phaseConflict applyPhase = "conflict" // stopped at a conflict
	phaseDone     applyPhase = "done"     // applied and staged
)

type applyState struct {
	Version int        `json:"version"`
	Env     string     `json:"env"`
	Tip     string     `json:"tip"`
	Head    string     `json:"head"` // "" on an unborn branch
	Ref     string     `json:"ref"`  // "" when HEAD was detached
	Phase   applyPhase `json:"phase"`
	Stash   string     `json:"stash,omitempty"`
	// Tree is the index as it was, as a tree.
	Tree string `json:"tree"`
	// Files are the paths the apply may touch, as they were before.
	Files []savedFile `json:"files"`
	// After holds the same paths as a finished apply left them.
	After []stamp `json:"after,omitempty"` // in the order of Files
}

type fileKind string

const (
	kindAbsent  fileKind = "absent"
	kindFile    fileKind = "file"
	kindSymlink fileKind = "symlink"
	kindDir     fileKind = "dir"   // a submodule, or a directory a file is to replace
	kindIndex   fileKind = "index" // as in the saved index; seen only after the fact
)

type savedFile struct {
	Path   string      `json:"path"`
	Kind   fileKind    `json:"kind"`
	Mode   fs.FileMode `json:"mode,omitempty"`
	Target string      `json:"target,omitempty"`
	Saved  int         `json:"saved,omitempty"` // the number below files/
	Before stamp       `json:"before,omitzero"`
}

// stamp is enough to see that a file was edited or replaced.
type stamp struct {
	Size  int64     `json:"size"` // -1 when there is no file
	Inode uint64    `json:"inode,omitempty"`
	Mtime time.Time `json:"mtime,omitzero"`
	Ctime time.Time `json:"ctime,omitzero"`
}

func (s stamp) equal(o stamp) bool {
	return s.Size == o.Size && s.Inode == o.Inode && s.Mtime.Equal(o.Mtime) && s.Ctime.Equal(o.Ctime)
}

func stampOf(root *os.Root, p string) stamp {
	fi, err := root.Lstat(p)
	if err != nil || fi.IsDir() {
		return stamp{Size: -1}
	}
	s := stamp{Size: fi.Size(), Mtime: fi.ModTime()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		s.Inode, s.Ctime = st.Ino, time.Unix(st.Ctim.Unix())
	}
	return s
}

// save writes the snapshot of the paths, replacing an older one.
func (t *Tree) save(ctx context.Context, st *applyState, paths []string) error {
	tmp := t.gitPath(applyDir + ".tmp")
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(tmp, "files"), 0o700); err != nil {
		return err
	}
	for _, f := range [][2]string{{"index", "index"}, {"MERGE_MSG", "message"}} {
		if err := copyFile(t.gitPath(f[0]), filepath.Join(tmp, f[1])); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	var err error
	if st.Tree, err = t.git.Line(ctx, "write-tree"); err != nil {
		return err
	}
	root, err := os.OpenRoot(t.repo.WorkTree)
	if err != nil {
		return err
	}
	defer root.Close()
	for i, p := range paths {
		f, err := saveFile(root, p, filepath.Join(tmp, "files", strconv.Itoa(i+1)), i+1)
		if err != nil {
			return fmt.Errorf("cannot save %s: %w", p, err)
		}
		st.Files = append(st.Files, f)
	}
	if err := durable.WriteJSON(filepath.Join(tmp, "state.json"), st, 0o600); err != nil {
		return err
	}
	if err := os.RemoveAll(t.gitPath(applyDir)); err != nil {
		return err
	}
	return os.Rename(tmp, t.gitPath(applyDir))
}

func saveFile(root *os.Root, p, to string, n int) (savedFile, error) {
	f := savedFile{Path: p, Kind: kindAbsent, Before: stamp{Size: -1}}
	fi, err := root.Lstat(p)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	f.Mode, f.Before = fi.Mode().Perm(), stampOf(root, p)
	switch {
	case fi.IsDir():
		f.Kind = kindDir
	case fi.Mode()&fs.ModeSymlink != 0:
		f.Kind = kindSymlink
		f.Target, err = root.Readlink(p)
	case fi.Mode().IsRegular():
		f.Kind, f.Saved = kindFile, n
		var in *os.File
		if in, err = root.Open(p); err == nil {
			err = copyTo(in, to)
		}
	default:
		err = errors.New("it is neither a file nor a symbolic link")
	}
	return f, err
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	return copyTo(in, to)
}

// copyTo copies in to a new file and closes in; the kernel shares the blocks
// where the filesystem can.
func copyTo(in *os.File, to string) error {
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return errors.Join(err, out.Close())
	}
	return out.Close()
}

// restore puts everything in the snapshot back: what was absent goes, what was
// there returns with its bytes, mode and time, and the index is the one saved.
func (t *Tree) restore(ctx context.Context, st *applyState) error {
	root, err := os.OpenRoot(t.repo.WorkTree)
	if err != nil {
		return err
	}
	defer root.Close()
	var fromIndex []string
	changed := make([]savedFile, 0, len(st.Files))
	for _, f := range st.Files {
		if f.Kind == kindIndex || f.Kind == kindDir || !f.Before.equal(stampOf(root, f.Path)) {
			changed = append(changed, f)
		}
	}
	for _, f := range changed {
		if err := clearFile(root, f); err != nil {
			return fmt.Errorf("cannot remove %s: %w", f.Path, err)
		}
	}
	pruneParents(root, changed)
	for _, f := range changed {
		if f.Kind == kindIndex {
			fromIndex = append(fromIndex, f.Path)
			continue
		}
		if err := writeBack(root, f, t.gitPath(filepath.Join(applyDir, "files", strconv.Itoa(f.Saved)))); err != nil {
			return fmt.Errorf("cannot give back %s: %w", f.Path, err)
		}
	}
	if err := t.checkout(ctx, fromIndex); err != nil {
		return err
	}
	return t.restoreIndex()
}

// clearFile removes what stands at a path unless it is to be a directory or is
// one: directories go only when they are empty.
func clearFile(root *os.Root, f savedFile) error {
	fi, err := root.Lstat(f.Path)
	if err != nil || fi.IsDir() {
		return nil
	}
	return root.Remove(f.Path)
}

// pruneParents removes the directories that only removed files were in, deepest
// first; one that is not empty stays.
func pruneParents(root *os.Root, files []savedFile) {
	dirs := map[string]bool{}
	for _, f := range files {
		for p := path.Dir(f.Path); p != "."; p = path.Dir(p) {
			dirs[p] = true
		}
		if f.Kind != kindDir {
			dirs[f.Path] = true // a directory where a file was
		}
	}
	sorted := make([]string, 0, len(dirs))
	for d := range dirs {
		sorted = append(sorted, d)
	}
	sort.Sort(sort.Reverse(sort.StringSlice(sorted)))
	for _, d := range sorted {
		if fi, err := root.Lstat(d); err == nil && fi.IsDir() {
			_ = root.Remove(d) // fails when it is not empty, as it should
		}
	}
}

func writeBack(root *os.Root, f savedFile, saved string) error {
	if f.Kind == kindAbsent {
		return nil
	}
	if dir := path.Dir(f.Path); dir != "." {
		if err := root.MkdirAll(dir, 0o777); err != nil {
			return err
		}
	}
	switch f.Kind {
	case kindDir:
		return root.MkdirAll(f.Path, 0o777)
	case kindSymlink:
		return root.Symlink(f.Target, f.Path)
	}
	in, err := os.Open(saved)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := root.OpenFile(f.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Chmod(f.Mode), out.Close()); err != nil {
		return err
	}
	return root.Chtimes(f.Path, f.Before.Mtime, f.Before.Mtime)
}

// checkout writes paths as the saved index has them; those it does not have are
// gone already.
func (t *Tree) checkout(ctx context.Context, paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	g := t.git.WithEnv("GIT_INDEX_FILE=" + t.gitPath(filepath.Join(applyDir, "index")))
	list := strings.Join(paths, "\x00") + "\x00"
	_, err := g.Output(ctx, strings.NewReader(list), "checkout-index", "-f", "-q", "-z", "--stdin")
	if status(err) == 1 { // some of the paths were not in that index
		return nil
	}
	return err
}

// restoreIndex puts the saved index in place.
func (t *Tree) restoreIndex() error {
	saved, err := os.Open(t.gitPath(filepath.Join(applyDir, "index")))
	if errors.Is(err, fs.ErrNotExist) {
		err = os.Remove(t.gitPath("index"))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	}
	if err != nil {
		return err
	}
	defer saved.Close()
	return t.putIndex(saved)
}

// putIndex replaces the index under git's own lock.
func (t *Tree) putIndex(from io.Reader) error {
	name, lock := t.gitPath("index"), t.gitPath("index.lock")
	mode := fs.FileMode(0o644)
	if fi, err := os.Stat(name); err == nil {
		mode = fi.Mode().Perm() // a shared repository's is group-writable
	}
	out, err := os.OpenFile(lock, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("another git process holds %s", lock)
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(out, from)
	if err = errors.Join(err, out.Chmod(mode), out.Close()); err != nil {
		return errors.Join(err, os.Remove(lock))
	}
	return os.Rename(lock, name)
}
