package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/integrate"
)

type diffCmd struct {
	Env  string   `arg:"" optional:"" name:"env" help:"The environment."`
	Args []string `arg:"" optional:"" name:"git diff args" help:"Options and paths of 'git diff'."`
}

func (*diffCmd) takesAll() {}

// Help is the long text of --help.
func (diffCmd) Help() string {
	return `The first argument is the environment, unless it is an option or a path; all others
are those of 'git diff': --stat, --name-only, -w, -- <path>…. The diff is against
the merge base with HEAD, or, once merged, against where the environment started.
What is uncommitted in the workspace is committed first.

'git env diff --rootfs [<env>] [--json | -z]' lists instead what was changed outside
of the workspace, in the root filesystem: A, M or D and the path, as 'git diff
--name-status' does.`
}

// Run shows the diff through the user's git.
func (c *diffCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	if i := slices.Index(a.rest, "--rootfs"); i >= 0 && !slices.Contains(a.rest[:i], "--") {
		return a.rootDiff(ctx, slices.Delete(slices.Clone(a.rest), i, i+1))
	}
	if err := a.open(ctx); err != nil {
		return err
	}
	given, args := a.splitDiff(a.rest)
	name, err := a.resolve(ctx, given)
	if err != nil {
		return err
	}
	src, err := a.source(ctx, name)
	if err != nil {
		return err
	}
	rc, err := integrate.OpenToRead(a.repo, a.environ, a.streams()).Diff(ctx, src, args)
	if err == nil && rc != 0 {
		err = exitStatus(rc)
	}
	return err
}

// splitDiff tells whether the first argument is the environment or git's.
func (a *app) splitDiff(args []string) (env string, rest []string) {
	if len(args) == 0 || args[0] == "" || strings.HasPrefix(args[0], "-") {
		return "", args
	}
	first := args[0]
	if _, err := a.store.Load(first); errors.Is(err, environment.ErrNoEnv) || environment.ExitCode(err) == environment.ExitUsage {
		if _, err := os.Lstat(filepath.Join(a.workDir(), first)); err == nil {
			return "", args
		}
	}
	return first, args[1:]
}
