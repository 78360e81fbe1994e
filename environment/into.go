package environment

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
)

// Merge merges one environment into another. No work tree of the user is
// touched; the target's workspace shows the result at once. A conflict changes
// nothing.
func (e *Engine) Merge(ctx context.Context, p api.Merge) (*api.Merged, error) {
	if p.From == p.Into {
		return nil, Errorf(ExitUsage, "environment '%s' cannot be merged into itself", p.From)
	}
	theirs, err := e.Commit(ctx, api.Commit{Caller: p.Caller, Env: p.From})
	if err != nil {
		return nil, err
	}
	v, err := e.env(p.Into)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	defer v.touch()
	if err := v.mount(ctx); err != nil {
		return nil, err
	}
	if err := v.flushPending(ctx); err != nil {
		return nil, err
	}
	ours, err := v.commit(ctx, commitRequest{caller: p.Caller, message: "Uncommitted work before a merge"})
	if err != nil {
		return nil, err
	}
	out := &api.Merged{Tip: ours.tip}
	if done, err := e.isMerged(ctx, theirs.Tip, ours.tip, ""); err != nil || done {
		out.UpToDate = done
		return out, err
	}
	next, err := v.mergeCommit(ctx, p, ours.tip, theirs.Tip)
	if err != nil {
		return nil, err
	}
	if err := v.advance(ctx, p, ours.tip, next); err != nil {
		return nil, err
	}
	out.Tip, out.Commit = next, next
	return out, nil
}

// mergeCommit makes the commit that the target moves to: theirs where it
// can be forwarded, else a merge.
func (v *Env) mergeCommit(ctx context.Context, p api.Merge, ours, theirs string) (string, error) {
	forward, err := v.e.isMerged(ctx, ours, theirs, "")
	if err != nil {
		return "", err
	}
	if forward && !p.NoFF && !p.Squash {
		return theirs, nil
	}
	res, err := v.e.store.Git.Output(ctx, nil, "merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", ours, theirs)
	var ge *gitcmd.Error
	if err != nil && !(errors.As(err, &ge) && ge.ExitCode == 1) {
		return "", err
	}
	fields := strings.Split(strings.Trim(string(res), "\x00"), "\x00")
	if err != nil {
		return "", Errorf(ExitConflict, "environments '%s' and '%s' conflict in %s", p.From, p.Into, few(fields[1:])).
			WithHint("nothing was changed; merge 'env/%s' with git inside '%s' and resolve it there", p.From, p.Into)
	}
	ident, err := v.e.identity(ctx, p.Caller)
	if err != nil {
		return "", err
	}
	c := &objects.Commit{Tree: fields[0], Parents: []string{ours, theirs}, Author: ident.author, Committer: ident.committer, Message: p.Message}
	if c.Message == "" {
		c.Message = fmt.Sprintf("Merge environment '%s'", p.From)
	}
	c.Message = cleanMessage(c.Message)
	if p.Squash {
		c.Parents = c.Parents[:1]
	}
	id, err := v.e.writer.Commit(c)
	if err != nil {
		return "", err
	}
	return id, v.e.writer.Sync()
}

// advance brings the workspace and the branch from one commit to another. Git
// refuses before it changes anything when a file is in the way. Should the
// daemon die in between, the workspace holds the result as uncommitted work.
func (v *Env) advance(ctx context.Context, p api.Merge, from, to string) error {
	if err := v.awaitIndexes(ctx); err != nil {
		return err
	}
	if err := v.ensureIndex(ctx); err != nil {
		return err
	}
	cone, err := v.cone(ctx)
	if err != nil {
		return err
	}
	if cone != nil {
		out, err := v.e.store.Git.Output(ctx, nil, "diff-tree", "-r", "-z", "--no-renames", "--name-only", from, to)
		if err != nil {
			return err
		}
		if err := inTheWayOf(cone, strings.Split(string(out), "\x00")); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	// Half of this is nothing anybody wants, and a git that is cut short may leave
	// its lock behind.
	ctx = context.WithoutCancel(ctx)
	g := gitcmd.New(v.e.store.worktreeDir(v.st.Worktree)).WithWorkTree(v.st.Workspace)
	if _, err := g.Output(ctx, nil, sparseArgs(cone, "read-tree", "-m", "-u", from, to)...); err != nil {
		return Errorf(ExitConflict, "the workspace of '%s' is in the way of the merge: %w", p.Into, err).
			WithHint("nothing was changed; move the file away inside '%s'", p.Into)
	}
	v.stands(func(s *standing) { s.Host = to })
	defer v.hold(ctx)()
	err = v.e.store.Git.UpdateRefs(ctx, "git env: merge "+p.From, gitcmd.RefUpdate{Ref: v.st.Branch(), New: to, Old: from})
	if err != nil {
		v.follow(from) // the index is ahead
		return err
	}
	v.follow(to)
	_, err = v.commit(ctx, commitRequest{caller: p.Caller, message: "Merge environment '" + p.From + "'"})
	return err
}
