package integrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/internal/gitcmd"
)

// IO is what git and this package talk to: git's own output is passed on.
type IO struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Terminal says that a person is there: an editor may be opened.
	Terminal bool
}

// Tree is the user's work tree.
type Tree struct {
	repo    *gitcmd.Repo
	git     *gitcmd.Git // plumbing, on the work tree's own git directory
	dir     string      // where the user stands
	environ []string
	io      IO
}

// Source is the environment whose work is brought in.
type Source struct {
	Name string
	// Ref is the full name of its branch, Tip the commit it is at, Base the
	// commit it started from.
	Ref, Tip, Base string
}

// Open returns the work tree of repo for a user with the given environment
// variables. A bare repository has none: exit code 128.
func Open(repo *gitcmd.Repo, environ []string, streams IO) (*Tree, error) {
	if repo.WorkTree == "" {
		return nil, environment.Errorf(environment.ExitRepository, "this operation must be run in a work tree").
			WithHint("%s has none here; make one with 'git worktree add'", repo.GitDir)
	}
	return &Tree{
		repo:    repo,
		git:     gitcmd.New(repo.GitDir).WithWorkTree(repo.WorkTree),
		dir:     filepath.Join(repo.WorkTree, repo.Prefix),
		environ: repo.Environ(environ),
		io:      streams,
	}, nil
}

// OpenToRead returns a Tree for Diff, which needs no work tree.
func OpenToRead(repo *gitcmd.Repo, environ []string, streams IO) *Tree {
	dir := repo.GitDir
	if repo.WorkTree != "" {
		dir = filepath.Join(repo.WorkTree, repo.Prefix)
	}
	return &Tree{repo: repo, git: gitcmd.New(repo.GitDir), dir: dir, environ: repo.Environ(environ), io: streams}
}

// user runs git as the user's own command in the user's directory, with its
// input and output passed through, and returns its exit code. The error says
// that it could not run at all.
func (t *Tree) user(ctx context.Context, args ...string) (int, error) {
	return t.userWith(ctx, t.io, nil, args...)
}

// quietly is user with nothing read or shown.
func (t *Tree) quietly(ctx context.Context, args ...string) (int, error) {
	return t.userWith(ctx, IO{}, nil, args...)
}

func (t *Tree) userWith(ctx context.Context, streams IO, env []string, args ...string) (int, error) {
	cmd := gitcmd.UserCommand(ctx, t.environ, t.dir, args...)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = streams.Stdin, streams.Stdout, streams.Stderr
	err := cmd.Run()
	switch {
	case err == nil:
		return 0, nil
	case ctx.Err() != nil:
		return -1, ctx.Err()
	case cmd.ProcessState == nil:
		return -1, environment.Errorf(environment.ExitFailed, "cannot run git: %w", err)
	case cmd.ProcessState.ExitCode() < 0: // a signal, such as of a closed pipe
		return environment.ExitFailed, nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

func (t *Tree) warnf(format string, args ...any) {
	fmt.Fprintf(t.io.Stderr, "warning: "+format+"\n", args...)
}

// status returns git's exit code out of err, or -1.
func status(err error) int {
	var ge *gitcmd.Error
	if errors.As(err, &ge) {
		return ge.ExitCode
	}
	return -1
}

// Head returns the commit that is checked out ("" on an unborn branch) and the
// branch's full ref ("" when detached).
func (t *Tree) Head(ctx context.Context) (commit, ref string, err error) {
	commit, err = t.git.RevParse(ctx, "HEAD")
	if errors.Is(err, gitcmd.ErrUnknownRevision) {
		commit, err = "", nil
	}
	if err != nil {
		return "", "", err
	}
	ref, err = t.git.Line(ctx, "symbolic-ref", "-q", "HEAD")
	if status(err) == 1 {
		return commit, "", nil
	}
	return commit, ref, err
}

func (t *Tree) isAncestor(ctx context.Context, a, b string) (bool, error) {
	if a == b {
		return true, nil
	}
	_, err := t.git.Output(ctx, nil, "merge-base", "--is-ancestor", a, b)
	if status(err) == 1 {
		return false, nil
	}
	return err == nil, err
}

// Base returns the commit that the environment's whole change is against: the
// merge base with HEAD, or the commit it started from when it is merged already
// or has no history in common with HEAD.
func (t *Tree) Base(ctx context.Context, src Source) (string, error) {
	head, _, err := t.Head(ctx)
	if err != nil || head == "" {
		return src.Base, err
	}
	base, err := t.git.Line(ctx, "merge-base", head, src.Tip)
	switch {
	case status(err) == 1:
		return src.Base, nil
	case err != nil:
		return "", err
	case base == src.Tip:
		return src.Base, nil
	}
	return base, nil
}

// unmerged says whether the index holds conflicts.
func (t *Tree) unmerged(ctx context.Context) (bool, error) {
	out, err := t.git.Output(ctx, nil, "ls-files", "-u", "-z")
	return len(out) > 0, err
}

func (t *Tree) gitPath(name string) string { return filepath.Join(t.repo.GitDir, name) }

func (t *Tree) exists(name string) bool {
	_, err := os.Lstat(t.gitPath(name))
	return err == nil
}

// idle refuses when an operation of git's is half done in this tree.
func (t *Tree) idle(ctx context.Context) error {
	if t.exists("MERGE_HEAD") {
		return environment.Errorf(environment.ExitConflict, "a merge is in progress here").
			WithHint("finish it with 'git env merge --continue' or undo it with 'git env merge --abort'")
	}
	for _, op := range [][2]string{
		{"CHERRY_PICK_HEAD", "cherry-pick"}, {"REVERT_HEAD", "revert"},
		{"rebase-merge", "rebase"}, {"rebase-apply", "rebase"}, {"sequencer", "cherry-pick or revert"},
	} {
		if t.exists(op[0]) {
			return environment.Errorf(environment.ExitConflict, "a %s is in progress here", op[1]).
				WithHint("finish or abort it first; 'git status' shows how")
		}
	}
	un, err := t.unmerged(ctx)
	if err != nil {
		return err
	}
	if !un {
		return nil
	}
	e := environment.Errorf(environment.ExitConflict, "there are unresolved conflicts here")
	switch {
	case t.exists(applyDir):
		return e.WithHint("resolve them and 'git add' the files, or undo with 'git env apply --abort'")
	case t.exists(mergeFile):
		return e.WithHint("resolve them and use 'git env merge --continue', or undo with 'git env merge --abort'")
	}
	return e.WithHint("resolve them and 'git add' the files first; 'git status' shows them")
}

// Change is one path with uncommitted changes, relative to the top of the tree.
type Change struct {
	Path string
	// Untracked says that git does not know the path; otherwise Staged and
	// Unstaged say where the change is.
	Untracked, Staged, Unstaged bool
}

// Uncommitted lists what is not committed; with untracked, also files that git
// neither knows nor ignores, one by one. It changes nothing, the index's cached
// file times included.
func (t *Tree) Uncommitted(ctx context.Context, untracked bool) ([]Change, error) {
	mode := "--untracked-files=no"
	if untracked {
		mode = "--untracked-files=all"
	}
	out, err := t.git.Output(ctx, nil, "status", "--porcelain=v1", "-z", "--no-renames", "--ignore-submodules=dirty", mode)
	if err != nil {
		return nil, err
	}
	var changes []Change
	for _, item := range splitNUL(out) {
		if len(item) < 4 {
			continue
		}
		x, y, path := item[0], item[1], item[3:]
		if x == '?' {
			changes = append(changes, Change{Path: path, Untracked: true})
			continue
		}
		changes = append(changes, Change{Path: path, Staged: x != ' ', Unstaged: y != ' '})
	}
	return changes, nil
}

func splitNUL(out []byte) []string {
	s := strings.TrimSuffix(string(out), "\x00")
	if s == "" {
		return nil
	}
	return strings.Split(s, "\x00")
}

// few names paths in a message: the first three, and how many more.
func few(paths []string) string {
	const show = 3
	if len(paths) <= show {
		return strings.Join(paths, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(paths[:show], ", "), len(paths)-show)
}
