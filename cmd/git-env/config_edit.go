package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/settings"
)

type configSetCmd struct {
	Key   string `arg:"" name:"key" help:"The setting."`
	Value string `arg:"" name:"value" help:"Its value; all others that it has go." maybeempty:""`
	configFile
}

// Run sets a value.
func (c *configSetCmd) Run(a *app) error {
	return a.configChange(c.configFile, c.Key, func(ctx context.Context, t settings.Target, name string, _ settings.Key) error {
		return t.Set(ctx, name, c.Value)
	})
}

type configAddCmd struct {
	Key   string `arg:"" name:"key" help:"The setting, one that may have several values."`
	Value string `arg:"" name:"value" help:"The value; empty takes back what is said before it." maybeempty:""`
	configFile
}

// Run adds a value.
func (c *configAddCmd) Run(a *app) error {
	return a.configChange(c.configFile, c.Key, func(ctx context.Context, t settings.Target, name string, key settings.Key) error {
		if !key.Multi {
			return usagef("%s has one value; 'git env config set' gives it another one", name)
		}
		return t.Add(ctx, name, c.Value)
	})
}

type configUnsetCmd struct {
	Key   string `arg:"" name:"key" help:"The setting."`
	Value string `arg:"" optional:"" name:"value" help:"Remove only this value."`
	configFile
}

// Run removes a setting.
func (c *configUnsetCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	if err := a.open(ctx); err != nil {
		return err
	}
	t, err := c.target(a)
	if err != nil {
		return err
	}
	// What does not exist can be removed too: it is what makes commands fail.
	name, _, err := t.Key(c.Key)
	if err != nil {
		name = c.Key
	}
	var value []string
	if c.Value != "" {
		value = []string{c.Value}
	}
	uerr := t.Unset(ctx, name, value...)
	if errors.Is(uerr, settings.ErrNotSet) {
		if err != nil {
			return configError(err)
		}
		return environment.Errorf(environment.ExitFailed, "%s is not set there", strings.Join(append([]string{name}, value...), " = ")).
			WithHint("'git env config show' tells where values come from")
	}
	return uerr
}

// configChange finds the file and the setting for a command that changes one.
func (a *app) configChange(f configFile, given string, change func(context.Context, settings.Target, string, settings.Key) error) error {
	ctx, stop := a.interruptible()
	defer stop()
	if err := a.open(ctx); err != nil {
		return err
	}
	t, err := f.target(a)
	if err != nil {
		return err
	}
	name, key, err := t.Key(given)
	if err != nil {
		return configError(err)
	}
	if err := change(ctx, t, name, key); err != nil {
		return configError(err)
	}
	if f.Project {
		a.tipf("%s counts for new environments once it is committed", settings.ProjectFile)
	}
	return nil
}

// projectFile is the path of .gitenv in the user's work tree, there or not.
func (a *app) projectFile() (string, error) {
	if a.repo.WorkTree == "" {
		return "", usagef("--project is a file of the work tree, and there is none here")
	}
	path := filepath.Join(a.repo.WorkTree, settings.ProjectFile)
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return path, nil
	case err != nil:
		return "", environment.Errorf(environment.ExitFailed, "%w", err)
	case !fi.Mode().IsRegular():
		return "", environment.Errorf(environment.ExitFailed, "%s is not a regular file; symbolic links are not followed", settings.ProjectFile)
	}
	return path, nil
}

// uncommitted says whether the work tree's .gitenv is another one than HEAD's.
func (a *app) uncommitted(ctx context.Context) (bool, error) {
	if a.repo.WorkTree == "" {
		return false, nil
	}
	out, err := gitcmd.UserOutput(ctx, a.repo.Environ(a.environ), a.repo.WorkTree,
		"--literal-pathspecs", "--no-optional-locks", "status", "--porcelain", "-z", "--ignored", "--", settings.ProjectFile)
	return len(out) > 0, err
}

// tipUncommitted tells a person that what was changed last does not count yet.
func (a *app) tipUncommitted(ctx context.Context) {
	if !isTerminal(a.stderr) {
		return
	}
	if yes, err := a.uncommitted(ctx); err == nil && yes {
		a.tipf("%s has uncommitted changes, which do not count yet", settings.ProjectFile)
	}
}

type configEditCmd struct{ configFile }

// Help is the long text of --help.
func (configEditCmd) Help() string {
	return `What you wrote into .gitenv is checked; with a mistake in it the file stays as it was,
and your text is kept beside.`
}

// emptyProject is what one begins with.
const emptyProject = `; What environments of this project are made of; 'git env config -h' tells more.
[env]
`

// Run opens an editor.
func (c *configEditCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	if err := a.open(ctx); err != nil {
		return err
	}
	t, err := c.target(a)
	if err != nil {
		return err
	}
	if !c.Project {
		if err := a.editor(ctx, t); err != nil {
			return err
		}
		_, err := a.configValues(ctx, c.configFile, false)
		return err
	}
	return a.editProject(ctx, t)
}

// editor opens the file of a target in the user's editor.
func (a *app) editor(ctx context.Context, t settings.Target) error {
	cmd := gitcmd.UserCommand(ctx, t.Environ, t.Dir, append(append([]string{"config"}, t.Where...), "--edit")...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, a.stderr, a.stderr
	if err := cmd.Run(); err != nil {
		if cmd.ProcessState != nil {
			return exitStatus(environment.ExitFailed) // git has said why
		}
		return environment.Errorf(environment.ExitFailed, "cannot run git: %w", err)
	}
	return nil
}

// editProject edits a copy, which takes the file's place when it is in order.
func (a *app) editProject(ctx context.Context, t settings.Target) error {
	return a.withCopy(t, emptyProject, func(t settings.Target, copied string, before []byte) ([]byte, error) {
		if err := a.editor(ctx, t); err != nil {
			return nil, err
		}
		after, err := os.ReadFile(copied)
		if err != nil || bytes.Equal(before, after) {
			return nil, err
		}
		if err := a.checkProject(ctx, copied, after); err != nil {
			kept := filepath.Join(a.repo.GitDir, "GITENV_EDIT")
			if werr := durable.WriteFile(kept, after, 0o600); werr == nil {
				return nil, environment.Errorf(environment.ExitUsage, "%w", err).
					WithHint("%s is as it was; what you wrote is in %s", settings.ProjectFile, kept)
			}
			return nil, err
		}
		return after, nil
	})
}

// checkProject says what is wrong with a project's file.
func (a *app) checkProject(ctx context.Context, path string, file []byte) error {
	entries, err := settings.ReadFile(ctx, gitcmd.New(a.repo.GitDir), path, file)
	if err == nil {
		_, err = settings.Merge(entries)
	}
	return configError(err)
}

// withCopy lets change work on a copy of the project's file, of which first is the
// beginning where there is none, and writes what it returns in place of the file;
// nil leaves that as it is.
func (a *app) withCopy(t settings.Target, first string, change func(t settings.Target, copied string, before []byte) ([]byte, error)) error {
	path, err := a.projectFile()
	if err != nil {
		return err
	}
	perm := fs.FileMode(0o644)
	before, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		before = []byte(first)
	case err != nil:
		return environment.Errorf(environment.ExitFailed, "%w", err)
	default:
		if fi, err := os.Lstat(path); err == nil {
			perm = fi.Mode().Perm()
		}
	}
	dir, err := os.MkdirTemp("", "git-env-")
	if err != nil {
		return environment.Errorf(environment.ExitFailed, "%w", err)
	}
	defer os.RemoveAll(dir)
	copied := filepath.Join(dir, "gitenv")
	if err := os.WriteFile(copied, before, 0o600); err != nil {
		return environment.Errorf(environment.ExitFailed, "%w", err)
	}
	t.Where = []string{"-f", copied}
	after, err := change(t, copied, before)
	if err != nil || after == nil {
		return err
	}
	if err := durable.WriteFile(path, after, perm); err != nil {
		return environment.Errorf(environment.ExitFailed, "cannot write %s: %w", settings.ProjectFile, err)
	}
	return nil
}

type configImportCmd struct {
	Env string `arg:"" optional:"" name:"env" help:"The environment."`
}

// Help is the long text of --help.
func (configImportCmd) Help() string {
	return `Makes .gitenv in your work tree say what holds for the environment, wherever each value
comes from, and prints what it changed. Settings of this machine stay out of it, and
comments stay in place. Nothing is committed. Refused while .gitenv has uncommitted
changes.`
}

// Run writes .gitenv.
func (c *configImportCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	if err := a.open(ctx); err != nil {
		return err
	}
	t, err := configFile{Project: true}.target(a)
	if err != nil {
		return err
	}
	name, err := a.resolve(ctx, c.Env)
	if err != nil {
		return err
	}
	m, err := a.configOf(ctx, name)
	if err != nil {
		return err
	}
	changed, err := a.uncommitted(ctx)
	if err != nil {
		return err
	}
	if changed {
		return environment.Errorf(environment.ExitConflict, "%s has uncommitted changes", settings.ProjectFile).
			WithHint("commit them, or take them back with 'git checkout -- %s'", settings.ProjectFile)
	}
	can, cannot := m.Project()
	var changes []settings.Change
	err = a.withCopy(t, "", func(t settings.Target, copied string, _ []byte) ([]byte, error) {
		var err error
		if changes, err = t.Become(ctx, can); err != nil || len(changes) == 0 {
			return nil, configError(err)
		}
		after, err := os.ReadFile(copied)
		if err != nil {
			return nil, err
		}
		return after, a.checkProject(ctx, copied, after)
	})
	if err != nil {
		return err
	}
	for _, v := range cannot {
		a.warnf("left out, since it has something of this machine or of the image in it: %s=%s", v.Name(), v.Text())
	}
	for _, ch := range changes {
		if _, err := fmt.Fprintln(a.stdout, ch); err != nil {
			return err
		}
	}
	if len(changes) == 0 {
		a.tipf("%s says all that already", settings.ProjectFile)
	}
	return nil
}
