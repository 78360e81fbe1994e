package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/internal/devcontainer"
)

type trustCmd struct {
	Rev    string `arg:"" optional:"" name:"env|rev" help:"An environment, or a commit to make one from; HEAD when left out."`
	Show   bool   `xor:"what" help:"Only show what is asked."`
	Yes    bool   `short:"y" xor:"what" help:"Allow it without being asked."`
	Revoke bool   `xor:"what" help:"Take back all that was allowed for this repository."`
	JSON   bool   `name:"json" help:"Print one JSON object a line; goes with --show and --yes."`
}

// trustJSON is one request.
type trustJSON struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"`
	Commit  string `json:"commit"`
	Why     string `json:"why"`
	Trusted bool   `json:"trusted"`
}

// Help is the long text of --help.
func (trustCmd) Help() string {
	return `Shows what the repository's own files ask of this machine: its files, commands that
are run on it for a secret, its network. After you typed "yes", or with --yes,
environments may have that. Without consent they are neither made nor started.

The consent is for the files as they are: when one that asks for something changes, it
is asked for again. It is kept in the git directory and is never pushed. What runs when
a consent is taken back keeps what it has until its environment is suspended.`
}

// Run shows requests and records consent.
func (c *trustCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	if err := a.open(ctx); err != nil {
		return err
	}
	if c.Revoke {
		if c.Rev != "" || c.JSON {
			return usagef("--revoke takes back everything; it goes with nothing else")
		}
		n, err := a.store.Revoke(ctx)
		if err == nil {
			a.tipf("took back %s", count(n, "consent"))
		}
		return err
	}
	if c.JSON && !c.Show && !c.Yes {
		return usagef("--json goes with --show or --yes")
	}
	list, err := c.requests(ctx, a)
	if err != nil {
		return err
	}
	if err := c.print(a, list); err != nil || c.Show {
		return err
	}
	var open []environment.Request
	for _, r := range list {
		if !r.Trusted {
			open = append(open, r)
		}
	}
	switch {
	case len(list) == 0:
		a.tipf("nothing is asked of this machine")
		return nil
	case len(open) == 0:
		a.tipf("all of this is allowed already")
		return nil
	case !c.Yes:
		if err := a.consent(); err != nil {
			return err
		}
	}
	if err := a.store.Consent(ctx, open); err != nil {
		return err
	}
	a.tipf("allowed; 'git env trust --revoke' takes it back")
	return nil
}

// requests finds out what is asked; what an environment has is told before a
// commit of the same name.
func (c *trustCmd) requests(ctx context.Context, a *app) ([]environment.Request, error) {
	local := devcontainer.Local{Environ: utf8Only(a.environ), WorkTree: a.repo.WorkTree} // as for create
	if c.Rev == "" {
		head, err := a.head(ctx)
		if err != nil {
			return nil, err
		}
		a.tipUncommitted(ctx)
		return a.store.RequestsAt(ctx, head, local)
	}
	if environment.CheckName(c.Rev) == nil {
		if st, err := a.store.Load(c.Rev); err == nil {
			return a.store.RequestsOf(ctx, st)
		}
	}
	commit, err := a.revision(ctx, c.Rev)
	if err != nil {
		return nil, err
	}
	return a.store.RequestsAt(ctx, commit, local)
}

func (c *trustCmd) print(a *app, list []environment.Request) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	for _, r := range list {
		var err error
		if c.JSON {
			err = enc.Encode(trustJSON{r.Key, r.Value, r.File, r.Line, r.Commit, r.Why, r.Trusted || c.Yes})
		} else {
			state := "not allowed"
			if r.Trusted {
				state = "allowed"
			}
			_, err = fmt.Fprintf(a.stdout, "%s\n\t%s; %s\n", r, r.Why, state)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// consent asks for the word.
func (a *app) consent() error {
	if !isTerminal(a.stdin) || !isTerminal(a.stderr) {
		return environment.Errorf(environment.ExitFailed, "there is no terminal to ask you on; nothing was allowed").
			WithHint("'git env trust --yes' allows what is shown")
	}
	if _, err := fmt.Fprint(a.stderr, "Allow this for environments of this repository? Type yes: "); err != nil {
		return err
	}
	word, _ := bufio.NewReader(a.stdin).ReadString('\n')
	if strings.TrimSpace(word) != "yes" {
		return environment.Errorf(environment.ExitFailed, "nothing was allowed")
	}
	return nil
}
