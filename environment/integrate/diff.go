package integrate

import (
	"context"
	"strings"

	"github.com/git-env/git-env/environment"
)

// Diff shows the environment's whole change through the user's git, with its
// pager and configuration; args are git diff's. It returns git's exit code.
func (t *Tree) Diff(ctx context.Context, src Source, args []string) (int, error) {
	base, err := t.Base(ctx, src)
	if err != nil {
		return -1, err
	}
	return t.user(ctx, append([]string{"diff", base, src.Tip}, args...)...)
}

// Checkout puts a local branch on the environment's work and switches to it: a
// new one, or an existing one that is only behind. One that has diverged is
// refused before anything changes: exit code 12.
func (t *Tree) Checkout(ctx context.Context, src Source, branch string) error {
	if _, err := t.git.Output(ctx, nil, "check-ref-format", "--branch", branch); err != nil {
		return environment.Errorf(environment.ExitUsage, "'%s' is not a valid branch name", branch)
	}
	if strings.HasPrefix(branch, "env/") {
		return environment.Errorf(environment.ExitUsage, "'%s' would be an environment's own branch", branch).
			WithHint("name another with -b")
	}
	if err := t.idle(ctx); err != nil {
		return err
	}
	args, err := t.checkoutArgs(ctx, src, branch)
	if err != nil {
		return err
	}
	rc, err := t.user(ctx, args...)
	if err != nil || rc == 0 {
		return err
	}
	if _, ref, err := t.Head(ctx); err == nil && ref == "refs/heads/"+branch && args[0] != "merge" {
		return environment.Errorf(environment.ExitFailed, "switched to '%s', but git or a hook of yours reported a failure", branch)
	}
	e := environment.Errorf(environment.ExitFailed, "did not switch to '%s'", branch)
	if changes, err := t.Uncommitted(ctx, true); err == nil && len(changes) > 0 {
		e.Code = environment.ExitConflict
		e = e.WithHint("commit or stash your changes first; nothing was changed")
	}
	return e
}

// checkoutArgs chooses the git command.
func (t *Tree) checkoutArgs(ctx context.Context, src Source, branch string) ([]string, error) {
	have, err := t.git.ResolveRefs(ctx, "refs/heads/"+branch)
	if err != nil {
		return nil, err
	}
	at, ok := have["refs/heads/"+branch]
	if !ok {
		return []string{"checkout", "-b", branch, t.spell(ctx, src)}, nil
	}
	behind, err := t.isAncestor(ctx, at, src.Tip)
	if err != nil {
		return nil, err
	}
	contains, err := t.isAncestor(ctx, src.Tip, at)
	if err != nil {
		return nil, err
	}
	if !behind && !contains {
		return nil, t.diverged(ctx, src, branch, at)
	}
	_, ref, err := t.Head(ctx)
	switch {
	case err != nil:
		return nil, err
	case contains:
		return []string{"checkout", branch, "--"}, nil
	case ref == "refs/heads/"+branch:
		return []string{"merge", "--ff-only", "--no-autostash", t.spell(ctx, src)}, nil
	}
	if where, err := t.checkedOut(ctx, branch); err != nil {
		return nil, err
	} else if where != "" {
		return nil, environment.Errorf(environment.ExitBusy, "branch '%s' is checked out at '%s'", branch, where)
	}
	// One step: the branch moves and is switched to, or neither.
	return []string{"checkout", "-B", branch, t.spell(ctx, src)}, nil
}

func (t *Tree) diverged(ctx context.Context, src Source, branch, at string) error {
	count, err := t.git.Line(ctx, "rev-list", "--left-right", "--count", at+"..."+src.Tip)
	if err != nil {
		return err
	}
	ahead, behind, _ := strings.Cut(count, "\t")
	return environment.Errorf(environment.ExitConflict, "branch '%s' and environment '%s' have diverged: %s ahead, %s behind; nothing was changed",
		branch, src.Name, ahead, behind).WithHint("choose another branch with -b, or merge with 'git env merge %s'", src.Name)
}

// checkedOut returns the work tree that a branch is checked out in, "" for none.
func (t *Tree) checkedOut(ctx context.Context, branch string) (string, error) {
	out, err := t.git.Output(ctx, nil, "worktree", "list", "--porcelain", "-z")
	if err != nil {
		return "", err
	}
	dir := ""
	for _, line := range splitNUL(out) {
		if d, ok := strings.CutPrefix(line, "worktree "); ok {
			dir = d
		}
		if line == "branch refs/heads/"+branch {
			return dir, nil
		}
	}
	return "", nil
}
