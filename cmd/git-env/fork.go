package main

import (
	"encoding/json"
	"fmt"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/api"
)

type forkCmd struct {
	Env   string `arg:"" optional:"" name:"env" help:"The environment to copy."`
	New   string `arg:"" optional:"" name:"new" help:"Name of the copy; made up when left out."`
	Title string `placeholder:"title" help:"What the copy is for, in a few words."`
	JSON  bool   `name:"json" help:"Print what was made as a JSON object."`
}

// forkJSON is the fork that was made.
type forkJSON struct {
	Name      string  `json:"name"`
	Branch    string  `json:"branch"`
	Tip       string  `json:"tip"`
	Parent    string  `json:"parent"`
	Workspace string  `json:"workspace"`
	Pause     float64 `json:"pause"`
}

// Help is the long text of --help.
func (forkCmd) Help() string {
	return `Prints the name of the copy. It has everything: tracked, untracked and ignored files
and the container's root filesystem. The source keeps running.`
}

// Run asks the daemon for a copy.
func (c *forkCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	if c.New != "" {
		if err := environment.CheckName(c.New); err != nil {
			return err
		}
	}
	name, err := a.resolve(ctx, c.Env)
	if err != nil {
		return err
	}
	var made api.Created
	p := api.Fork{Caller: a.caller(), Env: name, Name: c.New, Title: c.Title}
	if err := a.call(ctx, api.MethodFork, p, &made); err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(a.stdout).Encode(forkJSON{
			Name: made.Name, Branch: environment.BranchRef(made.Name), Tip: made.Commit,
			Parent: name, Workspace: made.Workspace, Pause: made.Pause,
		})
	}
	_, err = fmt.Fprintln(a.stdout, made.Name)
	return err
}
