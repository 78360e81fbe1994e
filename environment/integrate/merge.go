package integrate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/internal/durable"
)

// MergeOptions says how to merge; the zero value is git merge's default.
type MergeOptions struct {
	NoFF, Squash bool
	// Stash sets the user's uncommitted changes of tracked files aside first and
	// gives them back after.
	Stash bool
	// Message is the merge commit's; empty takes "Merge environment '<name>'".
	Message string
}

// Merged is the outcome of a merge that is done.
type Merged struct {
	// Into is a commit that verifiably contains the environment's tip: HEAD, or
	// for a squash a commit outside any branch with HEAD and the tip as parents
	// and the staged result as its tree. It is what a delete may go by; empty
	// when a squash could not be verified.
	Into string
	// UpToDate says that HEAD had it all before.
	UpToDate bool
	// Conflict is not nil when the user's own edits did not fit on the result
	// (exit code 12); the merge itself is done.
	Conflict error
}

// Merge merges an environment into what is checked out. It is refused, with
// nothing changed, when a git operation is half done here, when a file of the
// user's is in the way, or by git itself: exit code 12. A conflict leaves git's
// normal state of one, exit code 12.
func (t *Tree) Merge(ctx context.Context, src Source, o MergeOptions) (Merged, error) {
	if err := t.idle(ctx); err != nil {
		return Merged{}, err
	}
	if err := t.noLeftover(ctx); err != nil {
		return Merged{}, err
	}
	head, _, err := t.Head(ctx)
	if err != nil {
		return Merged{}, err
	}
	if head != "" {
		done, err := t.isAncestor(ctx, src.Tip, head)
		if err != nil {
			return Merged{}, err
		}
		if done {
			fmt.Fprintln(t.io.Stdout, "Already up to date.")
			return Merged{Into: head, UpToDate: true}, nil
		}
	}
	if !o.Stash { // the user's setting; git's own version hides a conflict
		auto, err := t.git.Line(ctx, "config", "--type=bool", "--default=false", "merge.autoStash")
		o.Stash = err == nil && auto == "true"
	}
	o.Stash = o.Stash && head != ""
	if err := t.mayMerge(ctx, src, head, o); err != nil {
		return Merged{}, err
	}
	return t.merge(ctx, src, o, mergeState{Version: 1, Env: src.Name, Tip: src.Tip, Head: head, Squash: o.Squash})
}

// mayMerge refuses when something of the user's would be touched. git would
// refuse most of it too, but only after it has set the edits aside and back
// again, and it overwrites ignored files.
func (t *Tree) mayMerge(ctx context.Context, src Source, head string, o MergeOptions) error {
	base, err := t.Base(ctx, src)
	if err != nil {
		return err
	}
	ds, err := t.deltas(ctx, base, src.Tip, nil)
	if err != nil {
		return err
	}
	way, err := t.inTheWay(ctx, ds)
	switch {
	case err != nil:
		return err
	case len(way) > 0:
		return refuseInTheWay(way)
	case o.Stash || head == "":
		return nil
	}
	changes, err := t.Uncommitted(ctx, false)
	if err != nil {
		return err
	}
	if hit := overlapping(changes, ds); len(hit) > 0 {
		return refuseTouched(hit)
	}
	forward, err := t.isAncestor(ctx, head, src.Tip)
	if err != nil || forward && !o.NoFF {
		return err
	}
	for _, c := range changes {
		if c.Staged {
			return environment.Errorf(environment.ExitConflict, "you have staged changes, which the merge commit would take in: %s", c.Path).
				WithHint("commit them first, or set them aside with --stash; nothing was changed")
		}
	}
	return nil
}

func (t *Tree) merge(ctx context.Context, src Source, o MergeOptions, st mergeState) (Merged, error) {
	index, err := os.ReadFile(t.gitPath("index"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Merged{}, err
	}
	if o.Stash {
		if st.Stash, err = t.setAside(ctx, "git env merge "+src.Name); err != nil {
			return Merged{}, err
		}
	}
	if err := durable.WriteJSON(t.gitPath(mergeFile), st, 0o600); err != nil {
		return Merged{}, errors.Join(err, t.giveBack(ctx, st.Stash))
	}
	forward, err := t.willForward(ctx, src, o, st.Head)
	if err != nil {
		return Merged{}, errors.Join(err, t.giveBack(ctx, st.Stash), t.forget())
	}
	rc, err := t.user(ctx, mergeArgs(t.spell(ctx, src), src, o, forward)...)
	// From here on the user's tree is in git's hands: an interrupted merge is
	// looked at like any other.
	ctx = context.WithoutCancel(ctx)
	if err != nil || rc != 0 {
		// HEAD moves last: a signal that came later changes nothing any more.
		if head, _, herr := t.Head(ctx); herr == nil && head != st.Head && !t.exists("MERGE_HEAD") {
			return t.merged(ctx, src, st, index)
		}
		return Merged{}, t.stopped(ctx, st, index, err)
	}
	return t.merged(ctx, src, st, index)
}

// willForward says that git will make no merge commit, so that it is not given a
// message, which it would say it ignores.
func (t *Tree) willForward(ctx context.Context, src Source, o MergeOptions, head string) (bool, error) {
	if o.NoFF || o.Squash {
		return o.Squash, nil
	}
	if _, err := t.git.Output(ctx, nil, "config", "--get-regexp", `^(merge\.ff|branch\..*\.mergeoptions)$`); err == nil {
		return false, nil
	}
	if head == "" {
		return true, nil
	}
	return t.isAncestor(ctx, head, src.Tip)
}

func mergeArgs(rev string, src Source, o MergeOptions, forward bool) []string {
	args := []string{"merge", "--no-autostash", "--no-edit"}
	if o.NoFF {
		args = append(args, "--no-ff")
	}
	if o.Squash {
		args = append(args, "--squash")
	}
	if !forward {
		msg := o.Message
		if msg == "" {
			msg = fmt.Sprintf("Merge environment '%s'", src.Name)
		}
		args = append(args, "-m", msg)
	}
	return append(args, rev)
}

// spell names the tip so that conflict markers read well: "env/<name>", unless
// that means something else here.
func (t *Tree) spell(ctx context.Context, src Source) string {
	const heads = "refs/heads/"
	if len(src.Ref) > len(heads) {
		name := src.Ref[len(heads):]
		_, tagged := t.git.RevParse(ctx, "refs/tags/"+name)
		if id, err := t.git.RevParse(ctx, name); err == nil && id == src.Tip && tagged != nil {
			return name
		}
	}
	return src.Tip
}

// merged verifies what git says it did.
func (t *Tree) merged(ctx context.Context, src Source, st mergeState, index []byte) (Merged, error) {
	if t.exists("MERGE_HEAD") { // as the user's merge options ask
		return Merged{}, t.stopped(ctx, st, index, nil)
	}
	var m Merged
	var err error
	if st.Squash {
		m.Into, err = t.squashed(ctx, src, st)
	} else {
		var in bool
		m.Into, _, err = t.Head(ctx)
		if err == nil {
			in, err = t.isAncestor(ctx, src.Tip, m.Into)
		}
		if err == nil && !in {
			err = environment.Errorf(environment.ExitFailed, "git reported success, but HEAD does not contain environment '%s'", src.Name)
		}
	}
	if err != nil {
		return Merged{}, errors.Join(err, t.giveBack(ctx, st.Stash))
	}
	m.Conflict = t.giveBack(ctx, st.Stash)
	return m, t.forget()
}

// squashed verifies the staged result and returns a commit for Merged.Into, ""
// when it cannot be sure that the environment's whole change is in it.
func (t *Tree) squashed(ctx context.Context, src Source, st mergeState) (string, error) {
	tree, err := t.git.Line(ctx, "write-tree")
	if err != nil {
		return "", err
	}
	author := t.git.WithEnv("GIT_AUTHOR_NAME=git env", "GIT_AUTHOR_EMAIL=git-env@localhost",
		"GIT_COMMITTER_NAME=git env", "GIT_COMMITTER_EMAIL=git-env@localhost")
	msg := "Squash of environment " + src.Name
	alone, err := author.Line(ctx, "commit-tree", "-m", msg, "-p", st.Head, tree)
	if err != nil {
		return "", err
	}
	// It is what a merge would make of HEAD, or merging the environment again
	// would add nothing (edits of the user's were staged beside it).
	for _, ours := range []string{st.Head, alone} {
		got, err := t.git.Line(ctx, "merge-tree", "--write-tree", ours, src.Tip)
		if err == nil && got == tree {
			return author.Line(ctx, "commit-tree", "-m", msg, "-p", st.Head, "-p", src.Tip, tree)
		}
	}
	return "", ctx.Err()
}

// stopped tells why git merge did not finish, from the state it left.
func (t *Tree) stopped(ctx context.Context, st mergeState, index []byte, cause error) error {
	un, err := t.unmerged(ctx)
	if err != nil {
		return errors.Join(cause, err)
	}
	aside := ""
	if st.Stash != "" {
		aside = "; your uncommitted edits wait in the stash until then"
	}
	switch {
	case un:
		e := environment.Errorf(environment.ExitConflict, "merging environment '%s' stopped at a conflict%s", st.Env, aside).
			WithHint("resolve it, 'git add' the files and use 'git env merge --continue';\n'git env merge --abort' gives back what was there before")
		e.Err = cause
		return e
	case t.exists("MERGE_HEAD"):
		e := environment.Errorf(environment.ExitFailed, "the merge of environment '%s' is prepared but not committed%s", st.Env, aside).
			WithHint("'git env merge --continue' commits it, 'git env merge --abort' gives back what was there before")
		e.Err = cause
		return e
	}
	return t.refused(ctx, st, index, cause)
}

// refused finishes when git merge changed nothing but what it caches.
func (t *Tree) refused(ctx context.Context, st mergeState, index []byte, cause error) error {
	e := environment.Errorf(environment.ExitFailed, "environment '%s' was not merged; nothing was changed", st.Env)
	changes, err := t.Uncommitted(ctx, false)
	if err == nil && len(changes) > 0 {
		e.Code = environment.ExitConflict
		e = e.WithHint("commit your changes first, or set them aside with --stash")
	}
	e.Err = cause
	if cause != nil {
		e.Code = environment.ExitCode(cause)
	}
	_ = os.Remove(t.gitPath("AUTO_MERGE"))
	if st.Stash == "" && index != nil {
		if err := t.putIndex(bytes.NewReader(index)); err != nil {
			return errors.Join(e, err)
		}
	}
	back := t.giveBack(ctx, st.Stash)
	if err := t.forget(); err != nil {
		return err
	}
	if back != nil {
		return back
	}
	return e
}
