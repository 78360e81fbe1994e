package integrate

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/internal/durable"
)

// mergeFile, below the work tree's git directory, tells a later --continue or
// --abort what git itself does not keep.
const mergeFile = "git-env-merge.json"

type mergeState struct {
	Version int    `json:"version"`
	Env     string `json:"env"`
	Tip     string `json:"tip"`
	Head    string `json:"head"`
	Squash  bool   `json:"squash,omitempty"`
	Stash   string `json:"stash,omitempty"`
}

func (t *Tree) forget() error {
	if err := os.Remove(t.gitPath(mergeFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (t *Tree) loadMerge() (*mergeState, error) {
	var st mergeState
	err := durable.ReadJSON(t.gitPath(mergeFile), &st)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, environment.Errorf(environment.ExitRepository, "cannot read %s: %w", t.gitPath(mergeFile), err)
	}
	return &st, nil
}

// noLeftover refuses to start over a merge whose stashed edits have not been
// given back, because the user finished it with git alone.
func (t *Tree) noLeftover(ctx context.Context) error {
	st, err := t.loadMerge()
	if err != nil || st == nil {
		return err
	}
	if st.Stash != "" {
		name, err := t.stashName(ctx, st.Stash)
		if err != nil {
			return err
		}
		if name != "" {
			return environment.Errorf(environment.ExitConflict, "your edits from before the merge of '%s' are still in %s", st.Env, name).
				WithHint("'git env merge --continue' gives them back")
		}
	}
	return t.forget()
}

// MergeContinue commits a merge whose conflicts are resolved and gives back the
// edits that --stash set aside.
func (t *Tree) MergeContinue(ctx context.Context) error {
	st, err := t.loadMerge()
	if err != nil {
		return err
	}
	merging := t.exists("MERGE_HEAD")
	if !merging && st == nil {
		return environment.Errorf(environment.ExitFailed, "there is no merge to continue")
	}
	if un, err := t.unmerged(ctx); err != nil {
		return err
	} else if un {
		return environment.Errorf(environment.ExitConflict, "there are still unresolved conflicts").
			WithHint("resolve them and 'git add' the files; 'git status' shows them")
	}
	if merging {
		var env []string
		if !t.io.Terminal {
			env = []string{"GIT_EDITOR=:"}
		}
		rc, err := t.userWith(ctx, t.io, env, "merge", "--continue")
		if err != nil {
			return err
		}
		if rc != 0 {
			return environment.Errorf(environment.ExitFailed, "the merge was not committed").
				WithHint("try again with 'git env merge --continue', or give up with 'git env merge --abort'")
		}
	}
	if st == nil {
		return nil
	}
	if back := t.giveBack(ctx, st.Stash); back != nil {
		return errors.Join(back, t.forget())
	}
	return t.forget()
}

// MergeAbort undoes a merge that stopped, a squash included, and gives back the
// edits that --stash set aside.
func (t *Tree) MergeAbort(ctx context.Context) error {
	st, err := t.loadMerge()
	if err != nil {
		return err
	}
	args := []string{"merge", "--abort"}
	if !t.exists("MERGE_HEAD") {
		head, _, err := t.Head(ctx)
		switch {
		case err != nil:
			return err
		case st == nil:
			return environment.Errorf(environment.ExitFailed, "there is no merge to abort")
		case head != st.Head:
			return environment.Errorf(environment.ExitFailed, "the merge of '%s' is committed already", st.Env).
				WithHint("'git env merge --continue' gives back the edits that were set aside")
		}
		args = []string{"reset", "--quiet", "--merge"}
	}
	rc, err := t.user(ctx, args...)
	if err != nil {
		return err
	}
	if rc != 0 {
		return environment.Errorf(environment.ExitFailed, "git could not undo the merge")
	}
	if st == nil {
		return nil
	}
	if back := t.giveBack(ctx, st.Stash); back != nil {
		return errors.Join(back, t.forget())
	}
	return t.forget()
}
