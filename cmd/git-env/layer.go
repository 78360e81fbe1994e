package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/fusefs"
)

type layerCmd struct {
	List   layerListCmd   `cmd:"" help:"List the layers that workspaces are made of."`
	Export layerExportCmd `cmd:"" help:"Write a workspace, or what one layer changes, as a plain tree."`
}

// Help is the long text of --help.
func (layerCmd) Help() string {
	return `What an environment changes is kept in layers, on the tree that it started from.
Forks share all but the last one, which is the only one that is written to.`
}

type layerListCmd struct {
	JSON  bool `name:"json" help:"Print one JSON object a line." xor:"form"`
	Quiet bool `short:"q" help:"Print the ids alone." xor:"form"`
}

// Help is the long text of --help.
func (layerListCmd) Help() string {
	return `Columns: id, bytes on disk, number of files with content, state, environments.
A merged layer stands for several older ones and shares their files.`
}

// layerJSON is one line of layer list --json.
type layerJSON struct {
	ID       string   `json:"id"`
	Parent   string   `json:"parent,omitempty"`
	State    string   `json:"state"`
	Size     int64    `json:"size"`
	Files    int      `json:"files"`
	Replaces []string `json:"replaces,omitempty"`
	Users    []string `json:"users"`
}

// Run lists the layers.
func (c *layerListCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	if err := a.open(ctx); err != nil {
		return err
	}
	layers, err := a.store.Layers()
	if err != nil {
		return err
	}
	var rows [][]string
	for _, l := range layers {
		state := "sealed"
		if l.Top {
			state = "top"
		} else if len(l.Replaces) > 0 {
			state = "merged"
		}
		switch {
		case c.Quiet:
			_, err = fmt.Fprintln(a.stdout, l.ID)
		case c.JSON:
			err = a.jsonLine(layerJSON{
				ID: l.ID, Parent: l.Parent, State: state, Size: l.Size, Files: l.Files, Replaces: l.Replaces,
				Users: append([]string{}, l.Users...),
			})
		default:
			rows = append(rows, []string{
				l.ID, strconv.FormatInt(l.Size, 10), strconv.Itoa(l.Files), state, strings.Join(l.Users, ", "),
			})
		}
		if err != nil {
			return err
		}
	}
	return a.table(rows)
}

type layerExportCmd struct {
	What string `arg:"" optional:"" name:"env|layer" help:"The environment, or the id of a layer."`
	Out  string `short:"o" placeholder:"dir" help:"Write into this directory, which must be empty or not exist." xor:"to"`
	Tar  bool   `help:"Write a tar archive to standard output." xor:"to"`
}

// Help is the long text of --help.
func (layerExportCmd) Help() string {
	return `Of an environment it is the whole workspace: the tree that it started from with
all its layers on top, ignored files included, as at one moment, whatever runs.

Of a layer it is what that layer alone changes, in the form of a layer of an OCI
image: an empty file .wh.<name> for a name that is gone, and .wh..wh..opq in a
directory that replaces another one. What was moved is there as a whole.

Owners, permissions, times, hard links, holes and extended attributes are kept.`
}

// Run exports.
func (c *layerExportCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	if c.Out == "" && !c.Tar {
		return usagef("say where to: -o <dir> or --tar")
	}
	if c.Tar && isTerminal(a.stdout) {
		return usagef("an archive is nothing for a terminal: redirect it")
	}
	if err := a.open(ctx); err != nil {
		return err
	}
	st, layers, last, err := c.layers(a)
	if err != nil {
		return err
	}
	if st == nil { // an environment
		name, err := a.resolve(ctx, c.What)
		if err != nil {
			return err
		}
		var frozen api.Frozen
		if err := a.call(ctx, api.MethodFreeze, api.Freeze{Caller: a.caller(), Env: name}, &frozen); err != nil {
			return err
		}
		if st, err = a.store.Load(name); err != nil {
			return err
		}
		layers = frozen.Layers
	}
	export := func(put func(*fusefs.ExportEntry) error) error {
		return a.store.ExportLayers(ctx, st, layers, last, put)
	}
	if c.Tar {
		w := tar.NewWriter(a.stdout)
		if err := export(fusefs.TarSink(w)); err != nil {
			return environment.Errorf(environment.ExitFailed, "the archive is not complete: %w", err)
		}
		return w.Close()
	}
	return c.toDir(export)
}

// layers finds the layer that is named, if it is one.
func (c *layerExportCmd) layers(a *app) (*environment.State, []string, bool, error) {
	if c.What == "" {
		return nil, nil, false, nil
	}
	if _, err := a.store.Load(c.What); err == nil || !errors.Is(err, environment.ErrNoEnv) && environment.CheckName(c.What) == nil {
		return nil, nil, false, nil
	}
	st, layers, err := a.store.StackOf(c.What)
	return st, layers, true, err
}

func (c *layerExportCmd) toDir(export func(func(*fusefs.ExportEntry) error) error) error {
	sink, err := fusefs.NewDirSink(c.Out)
	if errors.Is(err, fusefs.ErrNotEmpty) {
		return environment.Errorf(environment.ExitBusy, "'%s' is not empty", c.Out).WithHint("name a directory that does not exist")
	}
	if err != nil {
		return environment.Errorf(environment.ExitFailed, "cannot export to '%s': %w", c.Out, err)
	}
	err = export(sink.Put)
	if ferr := sink.Finish(); err == nil {
		err = ferr
	}
	if err != nil {
		return environment.Errorf(environment.ExitFailed, "what is in '%s' is not complete: %w", c.Out, err)
	}
	return nil
}
