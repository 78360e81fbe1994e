package main

import (
	"fmt"
	"time"

	"github.com/git-env/git-env/environment"
)

type listCmd struct {
	JSON  bool `name:"json" help:"Print one JSON object a line." xor:"form"`
	Quiet bool `short:"q" help:"Print the names alone." xor:"form"`
}

// Help is the long text of --help.
func (listCmd) Help() string {
	return `Columns: name, commits ahead of (+) and behind (-) HEAD, image, age, title. Nothing
is started, mounted or written. A damaged environment is listed as damaged, and one that
is not prepared with how far its setup has come.`
}

// summaryJSON is one line of list --json, and the beginning of a line of
// status --json.
type summaryJSON struct {
	Name  string `json:"name"`
	Title string `json:"title,omitempty"`
	// State is ready, creating, deleting or damaged; Error says what is wrong.
	State string `json:"state"`
	Error string `json:"error,omitempty"`
	// Branch is the full ref, Tip the commit it is at, Base the commit that the
	// environment started from, Parent the environment that it was forked from.
	Branch string `json:"branch"`
	Tip    string `json:"tip,omitempty"`
	Base   string `json:"base,omitempty"`
	Parent string `json:"parent,omitempty"`
	// Ahead and Behind count commits against the caller's HEAD.
	Ahead  int `json:"ahead"`
	Behind int `json:"behind"`
	// Created is RFC 3339 in UTC.
	Created time.Time `json:"created,omitzero"`
	Image   string    `json:"image,omitempty"`
	Digest  string    `json:"digest,omitempty"`
	// Workspace is where it is or would be mounted.
	Workspace string `json:"workspace,omitempty"`
	// Paths are what a sparse environment shows, relative to the top of the tree.
	Paths    []string  `json:"paths,omitempty"`
	LastExec *execJSON `json:"last_exec,omitempty"`
	// Ports are published on this machine's loopback while the container runs.
	Ports []portJSON `json:"ports,omitempty"`
	// Processes are the background processes that run.
	Processes []processJSON `json:"processes"`
	// Setup is where its preparation stands.
	Setup *setupJSON `json:"setup,omitempty"`
}

func summaryOf(s environment.Summary) summaryJSON {
	out := summaryJSON{
		Name: s.Name, Title: s.Title, State: s.State, Error: s.Error, Branch: s.Branch, Tip: s.Tip, Base: s.Base,
		Parent: s.Parent, Ahead: s.Ahead, Behind: s.Behind, Created: s.Created, Image: s.Image, Digest: s.Digest,
		Workspace: s.Workspace, Paths: s.Paths,
	}
	out.Ports = portsOf(s.Ports)
	out.Processes = processesOf(s.Name, s.Processes)
	out.Setup = setupOf(s.Setup)
	if s.LastExec != nil {
		e := execOf(*s.LastExec, "")
		out.LastExec = &e
	}
	return out
}

// Run lists the environments.
func (c *listCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	if err := a.open(ctx); err != nil {
		return err
	}
	if c.Quiet {
		return a.names()
	}
	head, err := a.head(ctx)
	if err != nil {
		return err
	}
	sums, err := a.store.Summaries(ctx, head)
	if err != nil {
		return err
	}
	if !c.JSON {
		return a.table(rows(sums, time.Now()))
	}
	for _, s := range sums {
		if err := a.jsonLine(summaryOf(s)); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) names() error {
	names, err := a.store.Names()
	if err != nil {
		return err
	}
	for _, n := range names {
		if _, err := fmt.Fprintln(a.stdout, n); err != nil {
			return err
		}
	}
	return nil
}

// rows is one environment a row; what is out of the ordinary about its state
// takes the place of the numbers.
func rows(sums []environment.Summary, now time.Time) [][]string {
	var out [][]string
	for _, s := range sums {
		switch {
		case s.State == "ready" && s.Setup != nil && !s.Setup.Ready():
			out = append(out, []string{s.Name, "setup " + s.Setup.State, s.Image, since(s.Created, now), s.Setup.String()})
		case s.State == "ready":
			out = append(out, []string{s.Name, distance(s), s.Image, since(s.Created, now), s.Title})
		case s.State == "damaged":
			out = append(out, []string{s.Name, "damaged", s.Image, since(s.Created, now), s.Error})
		default:
			out = append(out, []string{s.Name, s.State, s.Image, since(s.Created, now), s.Title})
		}
	}
	return out
}
