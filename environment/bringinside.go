package environment

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

func (v *Env) insideDir() string { return filepath.Join(v.dir(), "git") }

// insideNew is where the next index of git inside is made.
const insideNew = "index.git-env-new"

// bringInside brings the branch and the index inside up to a commit.
func (v *Env) bringInside(ctx context.Context, target string) error {
	root, err := os.OpenRoot(v.insideDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no container yet
	}
	if err != nil {
		return err
	}
	defer root.Close()
	return v.bringRoot(ctx, root, target)
}

func (v *Env) bringRoot(ctx context.Context, root *os.Root, target string) error {
	v.catch.work.Lock()
	defer v.catch.work.Unlock()
	at := v.standing(target)
	inside := insideTip(root, v.fixed.Branch())
	if at.Inside == target && inside == target {
		if _, err := root.Lstat("index"); err == nil {
			return nil
		}
	}
	if rebasing(root) {
		return nil // it moves the branch at its end, from where it found it
	}
	if inside != "" && inside != target && inside != at.Inside {
		if behind, err := v.e.isMerged(ctx, inside, target, ""); err != nil || !behind {
			return err // commits that are not taken over yet; the next commit does
		}
	}
	// Its index has what a merge needs.
	withIndex := !midOperation(root) && exists(v.indexPath())
	if withIndex {
		if err := v.prepareIndex(ctx, root, at.Host, target); err != nil {
			return err
		}
		defer root.Remove(insideNew) //nolint:errcheck // gone when all went well
	}
	if err := root.MkdirAll(filepath.Dir(v.fixed.Branch()), 0o755); err != nil {
		return err
	}
	unlock := lockInside(ctx, root)
	defer unlock()
	if insideTip(root, v.fixed.Branch()) != inside {
		return nil // it committed just now
	}
	if err := rootWrite(root, v.fixed.Branch(), []byte(target+"\n")); err != nil {
		return err
	}
	if withIndex {
		if err := root.Rename(insideNew, "index"); err != nil {
			return err
		}
	}
	v.stands(func(s *standing) { s.Inside = target })
	return nil
}

// prepareIndex makes the next index of git inside from the host's.
func (v *Env) prepareIndex(ctx context.Context, root *os.Root, from, target string) error {
	_ = root.RemoveAll(insideNew)
	f, err := root.OpenFile(insideNew, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if from != target {
		err = v.fillIndex(ctx, f, from, target)
	} else {
		err = copyInto(f, v.indexPath())
	}
	if err == nil {
		err = v.markFiltered(ctx, f, target)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = root.Remove(insideNew)
	}
	return err
}

func copyInto(to *os.File, from string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	_, err = io.Copy(to, src)
	return err
}

// lockInside takes the lock of the index inside, as git does, waiting a little for
// a git that has it. One that stays locked is left over or put there: it is in
// nobody's way.
func lockInside(ctx context.Context, root *os.Root) (unlock func()) {
	const name, tries, pause = "index.lock", 100, 5 * time.Millisecond
	for range tries {
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err == nil {
			_ = f.Close()
			return func() { _ = root.Remove(name) }
		}
		if !errors.Is(err, fs.ErrExist) {
			break
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return func() {}
		}
	}
	return func() {}
}
