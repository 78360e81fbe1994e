package environment

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/gitindex"
	"github.com/git-env/git-env/internal/objects"
)

// errIndexLocked means that a git of the user's holds the index.
var errIndexLocked = errors.New("the index is locked")

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// bringHost brings the host's index from what it stands for up to a commit, under
// git's own lock. An index that nobody made yet is left to ensureIndex. It only
// saves git work, so one that cannot be brought up is made anew.
func (v *Env) bringHost(ctx context.Context, target string) error {
	v.catch.work.Lock()
	defer v.catch.work.Unlock()
	from := v.standing(target).Host
	if from == target {
		return nil
	}
	if !exists(v.indexPath()) {
		v.stands(func(s *standing) { s.Host = "" })
		return nil
	}
	lock, err := os.OpenFile(v.indexPath()+".lock", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return errIndexLocked
	}
	if err != nil {
		return err
	}
	defer discard(lock.Name())
	defer lock.Close()
	if err := v.fillIndex(ctx, lock, from, target); err != nil {
		return fmt.Errorf("host: %w", err)
	}
	if err := lock.Close(); err != nil {
		return err
	}
	if err := os.Rename(lock.Name(), v.indexPath()); err != nil {
		return err
	}
	v.stands(func(s *standing) { s.Host = target })
	return nil
}

// fillIndex writes the host's index, brought from one commit up to another, into
// an empty file. from is "" when nobody knows what it stands for.
func (v *Env) fillIndex(ctx context.Context, to *os.File, from, target string) error {
	var edits []gitindex.Edit
	var err error
	if from != "" {
		if edits, err = v.e.indexEdits(ctx, from, target); err == nil {
			err = v.markEdits(ctx, edits)
		}
		if err == nil {
			err = patchFile(v.indexPath(), to, len(target), edits)
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
	if !errors.Is(err, gitindex.ErrUnsupported) {
		if err != nil {
			v.e.log.Warn("an index is made anew", "env", v.name, "err", err)
		}
		return v.fillByGit(ctx, to, nil, "read-tree", "-m", target)
	}
	var in bytes.Buffer
	for _, e := range edits {
		if e.ID == "" {
			fmt.Fprintf(&in, "0 %0*d\t%s\x00", len(target), 0, e.Path)
		} else {
			fmt.Fprintf(&in, "%o %s\t%s\x00", e.Mode, e.ID, e.Path)
		}
	}
	return v.fillByGit(ctx, to, &in, "update-index", "--add", "--remove", "--replace", "-z", "--index-info")
}

// coneForIndex reads what is hidden; catch.work is held.
func (v *Env) coneForIndex(ctx context.Context) (*fusefs.Cone, error) {
	c := &v.catch
	if len(v.fixed.Paths) == 0 || c.cone != nil {
		return c.cone, nil
	}
	var err error
	c.cone, err = fusefs.ReadCone(ctx, v.e.store.Reader, v.fixed.Tree, v.fixed.Paths)
	return c.cone, err
}

// markEdits marks what is hidden.
func (v *Env) markEdits(ctx context.Context, edits []gitindex.Edit) error {
	cone, err := v.coneForIndex(ctx)
	if err != nil || cone == nil {
		return err
	}
	for i := range edits {
		edits[i].Skip = cone.Hides(edits[i].Path)
	}
	return nil
}

// markAll marks all that is hidden in an index. catch.work is held.
func (v *Env) markAll(ctx context.Context, g *gitcmd.Git) error {
	cone, err := v.coneForIndex(ctx)
	if err != nil {
		return err
	}
	list, err := g.Output(ctx, nil, "ls-files", "-z")
	if err != nil {
		return err
	}
	var hidden []string
	for p := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		if cone.Hides(p) {
			hidden = append(hidden, p)
		}
	}
	return v.skipWorktree(ctx, g, hidden)
}

// indexEdits is what changes in an index from one commit to another.
func (e *Engine) indexEdits(ctx context.Context, from, to string) ([]gitindex.Edit, error) {
	a, err := e.treeOf(ctx, from)
	if err != nil {
		return nil, err
	}
	b, err := e.treeOf(ctx, to)
	if err != nil {
		return nil, err
	}
	var edits []gitindex.Edit
	err = diffTrees(ctx, e.store.Reader, a, b, func(x objects.Edit) {
		edits = append(edits, gitindex.Edit{Path: x.Path, Mode: uint32(x.Mode), ID: x.ID})
	})
	return edits, err
}

// patchFile writes the index from, with edits, into an empty file. It is not
// flushed to the disk, no more than git does with an index.
func patchFile(from string, to *os.File, hexLen int, edits []gitindex.Edit) error {
	if err := to.Truncate(0); err != nil {
		return err
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	fi, err := src.Stat()
	if err != nil {
		return err
	}
	b := bufio.NewWriterSize(to, 1<<18)
	if err := gitindex.Patch(b, src, fi.Size(), hexLen, edits); err != nil {
		return err
	}
	return b.Flush()
}

// fillByGit lets git change a copy of the host's index and puts the result into to.
func (v *Env) fillByGit(ctx context.Context, to *os.File, in io.Reader, args ...string) error {
	tmp := v.indexPath() + durable.TempPrefix
	if err := copyFile(v.indexPath(), tmp, 0o600); err != nil {
		return err
	}
	defer discard(tmp)
	g := gitcmd.New(v.e.store.worktreeDir(v.fixed.Worktree)).WithEnv("GIT_INDEX_FILE=" + tmp)
	_, err := g.Output(ctx, in, args...)
	if err != nil && ctx.Err() == nil && in == nil {
		discard(tmp) // damaged: without it, nothing is known of the files
		_, err = g.Output(ctx, nil, "read-tree", args[len(args)-1])
	}
	if err == nil && len(v.fixed.Paths) > 0 {
		err = v.markAll(ctx, g)
	}
	if err != nil {
		return err
	}
	if err := to.Truncate(0); err != nil {
		return err
	}
	if _, err := to.Seek(0, io.SeekStart); err != nil {
		return err
	}
	src, err := os.Open(tmp)
	if err != nil {
		return err
	}
	defer src.Close()
	_, err = io.Copy(to, src)
	return err
}
