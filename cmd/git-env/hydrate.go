package main

import (
	"fmt"

	"github.com/git-env/git-env/environment/api"
)

type hydrateCmd struct {
	Env   string   `arg:"" optional:"" name:"env" help:"The environment."`
	Paths []string `arg:"" optional:"" name:"path" help:"Only what is below these paths, relative to the top of the tree."`
	JSON  bool     `name:"json" help:"Print one JSON object." xor:"form"`
	Quiet bool     `short:"q" help:"Say nothing unless it fails." xor:"form"`
}

func (*hydrateCmd) restUsage() string { return "[-- <path>…]" }

// Help is the long text of --help.
func (hydrateCmd) Help() string {
	return `The content of a file is fetched when it is first read. This fetches all of it at
once, from the repository and, in a partial clone, from its remote, so that nothing
has to be fetched later. What is there already is checked. An interrupted one goes on
where it was when it is called again.`
}

// hydratedJSON is what hydrate --json prints.
type hydratedJSON struct {
	Env string `json:"env"`
	// Blobs and Bytes count the distinct contents of the files; Fetched is how
	// many of them were not there yet.
	Blobs   int   `json:"blobs"`
	Bytes   int64 `json:"bytes"`
	Fetched int   `json:"fetched"`
}

// Run asks the daemon to fetch.
func (c *hydrateCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	name, err := a.resolve(ctx, c.Env)
	if err != nil {
		return err
	}
	var done api.Hydrated
	p := api.Hydrate{Caller: a.caller(), Env: name, Paths: append(c.Paths, a.rest...)}
	if err := a.call(ctx, api.MethodHydrate, p, &done); err != nil {
		return err
	}
	switch {
	case c.JSON:
		return a.jsonLine(hydratedJSON{Env: name, Blobs: done.Blobs, Bytes: done.Bytes, Fetched: done.Fetched})
	case !c.Quiet:
		_, err = fmt.Fprintf(a.stderr, "%s of content in the cache, %d fetched now\n", count(done.Blobs, "blob"), done.Fetched)
	}
	return err
}
