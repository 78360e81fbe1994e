package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/internal/devcontainer"
	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/settings"
)

type configCmd struct {
	Get    configGetCmd    `cmd:"" help:"Print the value of a setting."`
	Set    configSetCmd    `cmd:"" help:"Give a setting a value."`
	Add    configAddCmd    `cmd:"" help:"Give a setting one more value."`
	Unset  configUnsetCmd  `cmd:"" help:"Remove a setting, or one of its values."`
	List   configListCmd   `cmd:"" help:"List what is set for new environments, or in one file."`
	Edit   configEditCmd   `cmd:"" help:"Open the file of settings in your editor."`
	Show   configShowCmd   `cmd:"" help:"Show the settings of an environment and where each comes from."`
	Import configImportCmd `cmd:"" help:"Take an environment's settings over as the project's."`
}

// Help is the long text of --help.
func (configCmd) Help() string {
	return `Settings come from .gitenv at the top of the commit that an environment starts from,
then from git config, then from flags; the later ones win, and lists grow.

--project means .gitenv in your work tree, which counts once it is committed; --local
the repository's git config, --global your own. A key without a section is one of
[env]: 'image' is 'env.image'. An empty value takes back what was said before it.`
}

// configFile is the choice of one file.
type configFile struct {
	Project bool `xor:"file" help:"Use .gitenv at the top of your work tree."`
	Local   bool `xor:"file" help:"Use the git config of this repository."`
	Global  bool `xor:"file" help:"Use your own git config, for all repositories."`
}

// given says whether a file was chosen.
func (f configFile) given() bool { return f.Project || f.Local || f.Global }

// target is the file that was chosen, the repository's git config by default.
func (f configFile) target(a *app) (settings.Target, error) {
	t := settings.Target{Environ: a.repo.Environ(a.environ), Dir: a.workDir(), Where: []string{"--local"}, Scope: settings.Config}
	switch {
	case f.Global:
		t.Where = []string{"--global"}
	case f.Project:
		if _, err := a.projectFile(); err != nil {
			return t, err
		}
		t.Dir, t.Where, t.Scope = a.repo.WorkTree, []string{"-f", settings.ProjectFile}, settings.Project
	}
	return t, nil
}

// configError makes a mistake in a setting one of usage.
func configError(err error) error {
	var bad *settings.Error
	if errors.As(err, &bad) {
		return environment.Errorf(environment.ExitUsage, "%w", err)
	}
	return err
}

// merged is what holds for a new environment, made from HEAD.
func (a *app) merged(ctx context.Context) (*settings.Values, error) {
	config, err := a.userConfig(ctx)
	if err != nil {
		return nil, err
	}
	head, err := a.head(ctx)
	if err != nil {
		return nil, err
	}
	a.tipUncommitted(ctx)
	return a.store.ConfigAt(ctx, head, config, devcontainer.Local{Environ: a.environ, WorkTree: a.repo.WorkTree})
}

// userConfig is what the user's git config says, 'git -c' included.
func (a *app) userConfig(ctx context.Context) ([]settings.Entry, error) {
	out, err := gitcmd.UserOutput(ctx, a.repo.Environ(a.environ), a.workDir(), settings.ConfigArgs()...)
	var ge *gitcmd.Error
	if errors.As(err, &ge) && ge.ExitCode == 1 {
		return nil, nil
	}
	return settings.ParseConfig(out), err
}

// commandConfig is what was given with 'git -c', for the daemon, which cannot see
// it.
func (a *app) commandConfig(ctx context.Context) ([]settings.Entry, error) {
	if a.getenv("GIT_CONFIG_PARAMETERS") == "" && a.getenv("GIT_CONFIG_COUNT") == "" {
		return nil, nil
	}
	all, err := a.userConfig(ctx)
	var out []settings.Entry
	for _, e := range all {
		if e.Scope == settings.Command {
			out = append(out, e)
		}
	}
	return out, err
}

type configGetCmd struct {
	Key string `arg:"" name:"key" help:"The setting."`
	configFile
}

// Help is the long text of --help.
func (configGetCmd) Help() string {
	return `Without a file it is what a new environment would have, the default included; a
setting with several values prints one a line. The exit code is 1 when there is none.`
}

// Run prints a value.
func (c *configGetCmd) Run(a *app) error {
	return a.configFound(func(ctx context.Context) ([]settings.Value, error) {
		t, err := c.target(a)
		if err != nil {
			return nil, err
		}
		name, _, err := t.Key(c.Key)
		if err != nil {
			return nil, configError(err)
		}
		all, err := a.configValues(ctx, c.configFile, true)
		var out []settings.Value
		for _, v := range all {
			if v.Name() == name {
				out = append(out, v)
			}
		}
		return out, err
	}, func(v settings.Value) string { return v.Text() }, false)
}

type configListCmd struct {
	configFile
	JSON  bool `name:"json" xor:"form" help:"Print one JSON object a line."`
	Quiet bool `short:"q" xor:"form" help:"Print the names alone."`
}

// Help is the long text of --help.
func (configListCmd) Help() string {
	return `Without a file it is what a new environment would have, without the defaults.`
}

// Run lists values.
func (c *configListCmd) Run(a *app) error {
	form := func(v settings.Value) string { return v.Name() + "=" + v.Text() }
	if c.Quiet {
		form = settings.Value.Name
	}
	err := a.configFound(func(ctx context.Context) ([]settings.Value, error) {
		return a.configValues(ctx, c.configFile, false)
	}, form, c.JSON)
	if err == exitStatus(environment.ExitFailed) {
		return nil // an empty list
	}
	return err
}

type configShowCmd struct {
	Env  string `arg:"" optional:"" name:"env" help:"The environment; without any, what a new one would have."`
	JSON bool   `name:"json" help:"Print one JSON object a line."`
}

// Help is the long text of --help.
func (configShowCmd) Help() string {
	return `Each line has the origin of a value, as 'git config --show-origin' tells it, and the
value. The project's file and the flags are those of when the environment was made; git
config counts as it is now.`
}

// Run shows where values come from.
func (c *configShowCmd) Run(a *app) error {
	form := func(v settings.Value) string { return v.Origin + "\t" + v.Name() + "=" + v.Text() }
	return a.configFound(func(ctx context.Context) ([]settings.Value, error) {
		m, err := a.configOf(ctx, c.Env)
		if err != nil {
			return nil, err
		}
		return m.Shown(), nil
	}, form, c.JSON)
}

// configOf is what holds for an environment, or, where there is none at all, for
// a new one.
func (a *app) configOf(ctx context.Context, env string) (*settings.Values, error) {
	name, err := a.resolve(ctx, env)
	var amb *environment.AmbiguousError
	if errors.As(err, &amb) && len(amb.Candidates) == 0 {
		return a.merged(ctx)
	}
	if err != nil {
		return nil, err
	}
	st, err := a.store.Load(name)
	if err != nil {
		return nil, err
	}
	config, err := a.userConfig(ctx)
	if err != nil {
		return nil, err
	}
	return a.store.ConfigOf(ctx, st, config)
}

// configValues is what is set in a file, or what holds for a new environment, in
// that case perhaps with the defaults.
func (a *app) configValues(ctx context.Context, f configFile, defaults bool) ([]settings.Value, error) {
	if !f.given() {
		m, err := a.merged(ctx)
		if err != nil {
			return nil, err
		}
		if defaults {
			return m.Shown(), nil
		}
		return m.All(), nil
	}
	t, err := f.target(a)
	if err != nil {
		return nil, err
	}
	entries, err := t.List(ctx)
	if err != nil {
		return nil, err
	}
	var out []settings.Value
	for _, e := range entries {
		v, err := settings.Check(e)
		if err != nil {
			return nil, configError(err)
		}
		out = append(out, v)
	}
	return out, nil
}

// configJSON is one line of config show --json and config list --json.
type configJSON struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
	// Scope is project, config, command or default.
	Scope string `json:"scope"`
	Line  int    `json:"line,omitempty"`
	// Unsupported says that this version does not act on it.
	Unsupported bool `json:"unsupported,omitempty"`
	// Trust tells what it asks of this machine.
	Trust string `json:"trust,omitempty"`
}

// configFound prints values, each in a form or as JSON. None is exit code 1, as for
// git config.
func (a *app) configFound(find func(context.Context) ([]settings.Value, error), form func(settings.Value) string, asJSON bool) error {
	ctx, stop := a.interruptible()
	defer stop()
	if err := a.open(ctx); err != nil {
		return err
	}
	values, err := find(ctx)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	for _, v := range values {
		if asJSON {
			err = enc.Encode(configJSON{Key: v.Name(), Value: v.Text(), Origin: v.Origin, Scope: string(v.Scope), Line: v.Line,
				Unsupported: v.Setting.Pending, Trust: v.Asks()})
		} else {
			_, err = fmt.Fprintln(a.stdout, form(v))
		}
		if err != nil {
			return err
		}
	}
	if len(values) == 0 {
		return exitStatus(environment.ExitFailed)
	}
	return nil
}
