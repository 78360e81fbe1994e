package integrate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/internal/gitcmd"
)

// setAside puts the user's uncommitted changes of tracked files into a stash
// entry and returns its id, "" when there were none.
func (t *Tree) setAside(ctx context.Context, why string) (string, error) {
	before, err := t.stashTip(ctx)
	if err != nil {
		return "", err
	}
	rc, err := t.userWith(ctx, IO{Stderr: t.io.Stderr}, nil, "stash", "push", "--quiet", "-m", why)
	if err != nil {
		return "", err
	}
	after, err := t.stashTip(ctx)
	switch {
	case err != nil:
		return "", err
	case rc != 0 && after == before:
		return "", environment.Errorf(environment.ExitConflict, "git could not stash your changes; nothing was changed").
			WithHint("commit them first")
	case rc != 0:
		return "", environment.Errorf(environment.ExitConflict, "git stashed your changes but could not clean the tree").
			WithHint("they are safe in 'git stash show -p %s'", short(after))
	case after == before:
		return "", nil
	}
	return after, nil
}

func (t *Tree) stashTip(ctx context.Context) (string, error) {
	id, err := t.git.RevParse(ctx, "refs/stash")
	if errors.Is(err, gitcmd.ErrUnknownRevision) {
		return "", nil
	}
	return id, err
}

// giveBack puts a stash entry's edits back on top of what is there now, and
// drops the entry when all of it is back. When the edits do not fit, the tree is
// left as it was found and the edits in the stash: exit code 12. The index must
// be free of conflicts.
func (t *Tree) giveBack(ctx context.Context, stash string) error {
	if stash == "" {
		return nil
	}
	ctx = context.WithoutCancel(ctx) // the user's edits come back whatever else ends
	name, err := t.stashName(ctx, stash)
	if err != nil || name == "" {
		return err // the user took it out already
	}
	found, err := t.git.Line(ctx, "write-tree")
	if err != nil {
		return t.kept(name, err)
	}
	rc, err := t.quietly(ctx, "stash", "apply", "--quiet", stash)
	if err != nil || rc != 0 {
		if err := t.resetTo(ctx, found); err != nil {
			return t.kept(name, err)
		}
		return t.kept(name, err)
	}
	staged, err := t.restage(ctx, stash, found)
	if err != nil {
		return t.kept(name, err)
	}
	if staged {
		return t.drop(ctx, name)
	}
	t.warnf("your edits are back, but not what you had staged of them; that is kept in %s", name)
	return nil
}

// restage stages again what was staged in a stash entry, on top of the index as
// it was found. git's own way (stash apply --index) starts over from HEAD and so
// fails on top of a staged result. False means that it does not fit.
func (t *Tree) restage(ctx context.Context, stash, found string) (bool, error) {
	patch, err := t.git.Output(ctx, nil, "diff-tree", "-p", "--binary", "--full-index", "--no-renames",
		"--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", stash+"^1", stash+"^2")
	if err != nil {
		return false, err
	}
	tree := found
	if len(patch) > 0 {
		dir, err := os.MkdirTemp("", "git-env-index-")
		if err != nil {
			return false, err
		}
		defer os.RemoveAll(dir)
		g := t.git.WithEnv("GIT_INDEX_FILE=" + filepath.Join(dir, "index"))
		if _, err := g.Output(ctx, nil, "read-tree", found); err != nil {
			return false, err
		}
		if _, err := g.Output(ctx, bytes.NewReader(patch), "apply", "--cached", "--whitespace=nowarn", "-"); err != nil {
			return false, ctx.Err()
		}
		if tree, err = g.Line(ctx, "write-tree"); err != nil {
			return false, err
		}
	}
	if _, err := t.git.Output(ctx, nil, "read-tree", "--reset", tree); err != nil {
		return false, err
	}
	_, err = t.git.Output(ctx, nil, "update-index", "-q", "--refresh")
	if status(err) == 1 { // some files differ from the index, as they should
		err = nil
	}
	return true, err
}

func (t *Tree) kept(name string, cause error) error {
	e := environment.Errorf(environment.ExitConflict, "your uncommitted edits do not fit on the result; they are kept in %s", name).
		WithHint("'git stash pop %s' brings them back, with conflicts to resolve", name)
	e.Err = cause
	return e
}

// resetTo makes index and work tree those of a tree again, after an attempt to
// give back left something else. There is nothing of the user's in them.
func (t *Tree) resetTo(ctx context.Context, tree string) error {
	_, err := t.git.Output(ctx, nil, "read-tree", "--reset", "-u", tree)
	return err
}

// stashName returns the entry's name ("stash@{0}"), "" when it is not in the
// stash any more.
func (t *Tree) stashName(ctx context.Context, stash string) (string, error) {
	tip, err := t.stashTip(ctx)
	if err != nil || tip == "" {
		return "", err
	}
	out, err := t.git.Output(ctx, nil, "log", "-g", "-z", "--format=%H", "refs/stash", "--")
	if err != nil {
		return "", err
	}
	for i, id := range splitNUL(out) {
		if id == stash {
			return fmt.Sprintf("stash@{%d}", i), nil
		}
	}
	return "", nil
}

func (t *Tree) drop(ctx context.Context, name string) error {
	rc, err := t.quietly(ctx, "stash", "drop", "--quiet", name)
	if err == nil && rc != 0 {
		t.warnf("your edits are back; their copy in %s could not be dropped", name)
	}
	return err
}

func short(id string) string { return id[:min(len(id), 12)] }
