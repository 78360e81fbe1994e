package integrate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/internal/durable"
)

// ApplyOptions says how to apply.
type ApplyOptions struct {
	// Stash sets the user's uncommitted changes of tracked files aside first and
	// gives them back after.
	Stash bool
	// Paths, git pathspecs relative to the user's directory, limit what is
	// applied.
	Paths []string
}

// Applied is the outcome of an apply that is done.
type Applied struct {
	// Changed is how many paths of the environment were applied; 0 means that
	// there was nothing to do.
	Changed int
	// Conflict is not nil when the user's own edits did not fit on the result
	// (exit code 12); the apply itself is done.
	Conflict error
}

// Apply brings an environment's whole change into index and work tree, three-way
// and without committing. It is one pick of one commit made for the purpose: the
// environment's tip (or the chosen paths of it) on the base. So git's own merge
// does it, with renames, binaries, deletions on one side and the user's merge
// drivers, and a conflict looks like any other. Refusals (exit code 12) change
// nothing; after anything else, ApplyAbort gives back what was there.
func (t *Tree) Apply(ctx context.Context, src Source, o ApplyOptions) (Applied, error) {
	if err := t.idle(ctx); err != nil {
		return Applied{}, err
	}
	st := &applyState{Version: 1, Env: src.Name, Tip: src.Tip, Phase: phaseStarted}
	var err error
	if st.Head, st.Ref, err = t.Head(ctx); err != nil {
		return Applied{}, err
	}
	base, ds, err := t.whatToApply(ctx, src, st.Head, o.Paths)
	if err != nil || len(ds) == 0 {
		return Applied{}, err
	}
	dirty, err := t.mayApply(ctx, ds, o.Stash && st.Head != "")
	if err != nil {
		return Applied{}, err
	}
	pick, err := t.pickCommit(ctx, src, base, ds, len(o.Paths) > 0)
	if err != nil {
		return Applied{}, err
	}
	paths := pathsOf(ds, dirty)
	if err := t.save(ctx, st, paths); err != nil {
		return Applied{}, environment.Errorf(environment.ExitFailed, "cannot save what is there: %w", err)
	}
	if len(dirty) > 0 {
		if st.Stash, err = t.setAside(ctx, "git env apply "+src.Name); err != nil {
			return Applied{}, errors.Join(err, t.forgetApply())
		}
		if err := t.saveState(st); err != nil {
			return Applied{}, errors.Join(err, t.giveBack(ctx, st.Stash), t.forgetApply())
		}
	}
	rc, err := t.pick(ctx, pick)
	return t.applied(context.WithoutCancel(ctx), st, len(ds), rc, err)
}

// whatToApply finds the base and what changed since.
func (t *Tree) whatToApply(ctx context.Context, src Source, head string, paths []string) (string, []delta, error) {
	if head != "" {
		if in, err := t.isAncestor(ctx, src.Tip, head); err != nil || in {
			return "", nil, err
		}
	}
	base, err := t.Base(ctx, src)
	if err != nil {
		return "", nil, err
	}
	ds, err := t.deltas(ctx, base, src.Tip, paths)
	if err == nil && len(ds) == 0 && len(paths) > 0 {
		err = environment.Errorf(environment.ExitFailed, "environment '%s' changed nothing in %s", src.Name, few(paths))
	}
	return base, ds, err
}

// mayApply refuses when something of the user's would be touched. With stash it
// returns the paths with uncommitted changes, which are to be set aside.
func (t *Tree) mayApply(ctx context.Context, ds []delta, stash bool) ([]string, error) {
	way, err := t.inTheWay(ctx, ds)
	if err != nil {
		return nil, err
	}
	if len(way) > 0 {
		return nil, refuseInTheWay(way)
	}
	changes, err := t.Uncommitted(ctx, false)
	if err != nil {
		return nil, err
	}
	if stash {
		var dirty []string
		for _, c := range changes {
			dirty = append(dirty, c.Path)
		}
		return dirty, nil
	}
	if hit := overlapping(changes, ds); len(hit) > 0 {
		return nil, refuseTouched(hit)
	}
	return nil, nil
}

func pathsOf(ds []delta, more []string) []string {
	seen := map[string]bool{}
	var paths []string
	add := func(p string) {
		if !seen[p] {
			seen[p] = true
			paths = append(paths, p)
		}
	}
	for _, d := range ds {
		add(d.Path)
	}
	for _, p := range more {
		add(p)
	}
	sort.Strings(paths)
	return paths
}

// pickCommit makes the commit whose only change is what is to be applied.
func (t *Tree) pickCommit(ctx context.Context, src Source, base string, ds []delta, limited bool) (string, error) {
	tree := src.Tip + "^{tree}"
	if limited {
		var err error
		if tree, err = t.partialTree(ctx, base, ds); err != nil {
			return "", err
		}
	}
	tree, err := t.git.Line(ctx, "rev-parse", "--verify", tree)
	if err != nil {
		return "", err
	}
	g := t.git.WithEnv("GIT_AUTHOR_NAME=git env", "GIT_AUTHOR_EMAIL=git-env@localhost",
		"GIT_COMMITTER_NAME=git env", "GIT_COMMITTER_EMAIL=git-env@localhost")
	return g.Line(ctx, "commit-tree", "-p", base, "-m", fmt.Sprintf("Apply environment '%s'", src.Name), tree)
}

// partialTree returns base's tree with only the deltas applied.
func (t *Tree) partialTree(ctx context.Context, base string, ds []delta) (string, error) {
	dir, err := os.MkdirTemp("", "git-env-index-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	g := t.git.WithEnv("GIT_INDEX_FILE=" + filepath.Join(dir, "index"))
	if _, err := g.Output(ctx, nil, "read-tree", base); err != nil {
		return "", err
	}
	var lines strings.Builder
	for _, gone := range []bool{true, false} { // a directory may take a file's place
		for _, d := range ds {
			if (d.Status == 'D') != gone {
				continue
			}
			mode := d.Mode
			if gone {
				mode = "0"
			}
			fmt.Fprintf(&lines, "%s %s\t%s\x00", mode, d.ID, d.Path)
		}
	}
	if _, err := g.Output(ctx, strings.NewReader(lines.String()), "update-index", "--replace", "-z", "--index-info"); err != nil {
		return "", err
	}
	return g.Line(ctx, "write-tree")
}

// pick runs the pick as the user's own command. What git would advise speaks of
// a cherry-pick; ours comes with the error.
func (t *Tree) pick(ctx context.Context, commit string) (int, error) {
	streams := t.io
	streams.Stdin = nil
	return t.userWith(ctx, streams, nil, "-c", "advice.mergeConflict=false", "-c", "advice.resolveConflict=false",
		"cherry-pick", "--no-commit", "--allow-empty", "--keep-redundant-commits", commit)
}

// applied looks at what git left.
func (t *Tree) applied(ctx context.Context, st *applyState, n, rc int, cause error) (Applied, error) {
	un, err := t.unmerged(ctx)
	if err != nil {
		return Applied{}, errors.Join(cause, err)
	}
	if un {
		st.Phase = phaseConflict
		aside := ""
		if st.Stash != "" {
			aside = "; your uncommitted edits are in the stash, for 'git stash pop' after that"
		}
		e := environment.Errorf(environment.ExitConflict, "applying environment '%s' stopped at a conflict%s", st.Env, aside).
			WithHint("resolve it and 'git add' the files;\n'git env apply --abort' gives back what was there before")
		e.Err = cause
		return Applied{}, errors.Join(e, t.finish(ctx, st))
	}
	if rc != 0 || cause != nil {
		return Applied{}, t.applyRefused(ctx, st, cause)
	}
	if st.Stash != "" {
		back := t.giveBack(ctx, st.Stash)
		st.Phase = phaseDone
		return Applied{Changed: n, Conflict: back}, t.finish(ctx, st)
	}
	st.Phase = phaseDone
	return Applied{Changed: n}, t.finish(ctx, st)
}

// applyRefused undoes whatever a failed pick may have begun.
func (t *Tree) applyRefused(ctx context.Context, st *applyState, cause error) error {
	e := environment.Errorf(environment.ExitConflict, "environment '%s' was not applied; nothing was changed", st.Env).
		WithHint("commit your changes first, or set them aside with --stash")
	if cause != nil {
		e.Code, e.Hint, e.Err = environment.ExitCode(cause), "", cause
	}
	if err := t.undo(ctx, st); err != nil {
		return errors.Join(e, err)
	}
	return e
}

// finish notes what the apply touched beyond the plan (renames on our side move
// a change elsewhere), and how it left the files.
func (t *Tree) finish(ctx context.Context, st *applyState) error {
	if err := t.addTouched(ctx, st); err != nil {
		return err
	}
	root, err := os.OpenRoot(t.repo.WorkTree)
	if err != nil {
		return err
	}
	defer root.Close()
	st.After = nil
	for _, f := range st.Files {
		st.After = append(st.After, stampOf(root, f.Path))
	}
	return t.saveState(st)
}

func (t *Tree) addTouched(ctx context.Context, st *applyState) error {
	out, err := t.git.Output(ctx, nil, "diff-index", "--cached", "--name-only", "-z", "--no-renames", st.Tree)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, f := range st.Files {
		known[f.Path] = true
	}
	for _, p := range splitNUL(out) {
		if !known[p] {
			known[p] = true
			st.Files = append(st.Files, savedFile{Path: p, Kind: kindIndex})
		}
	}
	return nil
}

func (t *Tree) saveState(st *applyState) error {
	return durable.WriteJSON(t.gitPath(filepath.Join(applyDir, "state.json")), st, 0o600)
}

func (t *Tree) forgetApply() error { return os.RemoveAll(t.gitPath(applyDir)) }

// ApplyAbort gives back index and files as they were before the last apply, also
// one that went well, as long as HEAD has not moved and the files are as the
// apply left them (those with conflicts aside).
func (t *Tree) ApplyAbort(ctx context.Context) error {
	st := &applyState{}
	err := durable.ReadJSON(t.gitPath(filepath.Join(applyDir, "state.json")), st)
	if errors.Is(err, fs.ErrNotExist) {
		return environment.Errorf(environment.ExitFailed, "there is no apply to abort")
	}
	if err != nil {
		return environment.Errorf(environment.ExitRepository, "cannot read the state of the apply: %w", err)
	}
	head, ref, err := t.Head(ctx)
	if err != nil {
		return err
	}
	if head != st.Head || ref != st.Ref {
		return environment.Errorf(environment.ExitFailed, "HEAD has moved since environment '%s' was applied; nothing was changed", st.Env).
			WithHint("take the change back with git, for example 'git revert'")
	}
	edited, err := t.editedSince(st)
	if err != nil {
		return err
	}
	if len(edited) > 0 {
		return environment.Errorf(environment.ExitConflict, "edited since environment '%s' was applied: %s; nothing was changed", st.Env, few(edited)).
			WithHint("'git restore --source=HEAD --staged --worktree <path>' throws the apply and your edits of a path away")
	}
	return t.undo(context.WithoutCancel(ctx), st)
}

// editedSince returns the files that are not as a finished apply left them.
func (t *Tree) editedSince(st *applyState) ([]string, error) {
	if st.Phase != phaseDone {
		return nil, nil
	}
	root, err := os.OpenRoot(t.repo.WorkTree)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var edited []string
	for i, a := range st.After {
		if i < len(st.Files) && !a.equal(stampOf(root, st.Files[i].Path)) {
			edited = append(edited, st.Files[i].Path)
		}
	}
	return edited, nil
}

// undo restores the snapshot; an interrupted one can be repeated.
func (t *Tree) undo(ctx context.Context, st *applyState) error {
	if st.Phase != phaseDone {
		if err := t.addTouched(ctx, st); err != nil {
			return err
		}
	}
	if err := t.restore(ctx, st); err != nil {
		return environment.Errorf(environment.ExitFailed, "%w", err).
			WithHint("what was there is kept in %s; 'git env apply --abort' tries again", t.gitPath(applyDir))
	}
	_ = os.Remove(t.gitPath("AUTO_MERGE"))
	_ = os.Remove(t.gitPath("MERGE_MSG"))
	if err := copyFile(t.gitPath(filepath.Join(applyDir, "message")), t.gitPath("MERGE_MSG")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if st.Stash != "" {
		if name, err := t.stashName(ctx, st.Stash); err == nil && name != "" {
			if err := t.drop(ctx, name); err != nil {
				return err
			}
		}
	}
	return t.forgetApply()
}
