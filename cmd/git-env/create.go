package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/environment/integrate"
	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/settings"
)

type createCmd struct {
	Name    string   `arg:"" optional:"" name:"name" help:"Name of the environment; made up when left out."`
	From    string   `placeholder:"rev" help:"Start from this commit, tag, branch or environment instead of HEAD."`
	Image   string   `placeholder:"image" help:"Image of its container: an OCI reference, or 'host' for this machine's own tools."`
	Title   string   `placeholder:"title" help:"What it is for, in a few words."`
	Paths   paths    `placeholder:"path" help:"Show only these files and directories of the commit; the rest stays in the branch, hidden. More than one may follow."`
	Mount   []string `sep:"none" placeholder:"source:target[:rw]" help:"Show it a file or directory of this machine, read-only unless :rw follows. May be repeated."`
	Dirty   bool     `help:"Take uncommitted work along, tracked and untracked, as its first commit."`
	NoSetup bool     `help:"Leave out the setup and install commands; 'git env setup' runs them later."`
}

// Help is the long text of --help.
func (createCmd) Help() string {
	return `Prints the environment's name. Its branch is env/<name>; nothing of your work
tree changes. The cost is the same for any size of tree.

Says so when uncommitted work of yours is not in it; a work tree of more than 50,000
files is not looked through for that.

With --paths, what else the commit has is neither to be seen in the workspace nor
written to, but every commit and merge of the environment has all of it. The paths
are relative to the current directory; everything below a directory is shown.

Setup and install commands of the configuration run before it returns; what they
print goes to the standard error. When one fails the environment stays, its name is
printed, and the exit code is 1: 'git env setup' tries again.`
}

// Run asks the daemon for a new environment.
func (c *createCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	if c.Name != "" {
		if err := environment.CheckName(c.Name); err != nil {
			return err
		}
	}
	err := a.open(ctx)
	if err != nil {
		return err
	}
	if c.Name != "" {
		if _, err := os.Lstat(a.store.EnvDir(c.Name)); err == nil {
			if _, err := a.store.Resolve(c.Name, "", ""); err == nil {
				return environment.Errorf(environment.ExitBusy, "environment '%s' exists already", c.Name).
					WithHint("take another name; 'git env list' shows those that are taken")
			}
		}
	}
	p := api.Create{Caller: a.caller(), Name: c.Name, FromText: c.From, Image: c.Image, Title: c.Title, NoSetup: c.NoSetup}
	if err := c.base(ctx, a, &p); err != nil {
		return err
	}
	if p.Paths, err = a.fromTop(c.Paths); err != nil {
		return err
	}
	p.LocalEnv, p.LocalDir = utf8Only(a.environ), a.repo.WorkTree
	if p.Config, err = a.commandConfig(ctx); err != nil {
		return err
	}
	for _, m := range c.Mount {
		p.Config = append(p.Config, settings.Flag("env.mount", a.fromHere(m)))
	}
	check, cancel := c.look(ctx, a)
	defer cancel()
	var made api.Created
	if err := a.call(ctx, api.MethodCreate, p, &made); err != nil {
		return err
	}
	a.reportLeft(check)
	var setupErr error
	switch {
	case made.Setup > 0 && c.NoSetup:
		a.hintf("%s of setup left out; 'git env setup %s' runs %s", count(made.Setup, "step"), made.Name, either(made.Setup == 1, "it", "them"))
	case made.Setup > 0:
		setupErr = a.setup(ctx, made.Name)
	}
	if _, err := fmt.Fprintln(a.stdout, made.Name); err != nil {
		return err
	}
	if setupErr == nil {
		a.tipf("'git env run %s -- <command>' runs a command in it", made.Name)
	}
	return setupErr
}

// utf8Only leaves out what JSON cannot carry.
func utf8Only(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(kv string) bool { return !utf8.ValidString(kv) })
}

// fromHere makes the source of a mount that was given relative to the current
// directory absolute.
func (a *app) fromHere(mount string) string {
	if mount == "" || strings.ContainsRune("/~:", rune(mount[0])) {
		return mount
	}
	return a.cwd() + "/" + mount
}

// base finds the commit to start from and what is to come along.
func (c *createCmd) base(ctx context.Context, a *app, p *api.Create) error {
	head, err := a.head(ctx)
	if err != nil {
		return err
	}
	p.From = head // empty in a repository without a commit
	if c.From != "" {
		if p.From, err = a.revision(ctx, c.From); err != nil {
			return err
		}
	}
	if a.repo.WorkTree == "" {
		if c.Dirty {
			return usagef("--dirty needs a work tree, and there is none here")
		}
		return nil
	}
	if c.Dirty && p.From != head {
		return usagef("--dirty takes the work tree along as it stands on HEAD; it does not go with --from %s", c.From)
	}
	if !c.Dirty {
		return nil
	}
	t, err := a.tree()
	if err != nil {
		return err
	}
	p.DirtyTree, err = t.WorkTree(ctx)
	return err
}

// lookTime is how long a create, once done, waits for the look at the user's
// work tree to end. The look takes as long as the tree is large, and a create
// does not.
const lookTime = 40 * time.Millisecond

// lookMost is how many files a work tree may have to be looked at.
const lookMost = 50_000

// indexEntries reads the number of files from an index's header (index-format of
// git); 0 when there is none.
func indexEntries(file string) uint32 {
	f, err := os.Open(file)
	if err != nil {
		return 0
	}
	defer f.Close()
	var head [12]byte
	if _, err := io.ReadFull(f, head[:]); err != nil || string(head[:4]) != "DIRC" {
		return 0
	}
	return binary.BigEndian.Uint32(head[8:])
}

// look looks for uncommitted work while the environment is being made; nil when
// there is nothing to look at.
func (c *createCmd) look(ctx context.Context, a *app) (<-chan []integrate.Change, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if c.Dirty || a.repo.WorkTree == "" {
		return nil, cancel
	}
	if indexEntries(filepath.Join(a.repo.GitDir, "index")) > lookMost {
		tooLarge := make(chan []integrate.Change)
		close(tooLarge)
		return tooLarge, cancel
	}
	t, err := a.tree()
	if err != nil {
		return nil, cancel
	}
	found := make(chan []integrate.Change, 1)
	go func() {
		changes, err := t.Uncommitted(ctx, true)
		if err != nil {
			changes = nil // git says why when it is asked next
		}
		found <- changes
	}()
	return found, cancel
}

// reportLeft says what of the user's work is not in the environment.
func (a *app) reportLeft(found <-chan []integrate.Change) {
	if found == nil {
		return
	}
	select {
	case changes, looked := <-found:
		if !looked {
			a.warnUnseen()
		}
		if len(changes) == 0 {
			return
		}
		untracked := 0
		for _, ch := range changes {
			if ch.Untracked {
				untracked++
			}
		}
		a.warnf("uncommitted work of yours is NOT in the environment: %s, %s",
			count(len(changes)-untracked, "changed file"), count(untracked, "untracked file"))
		a.hintf("commit it first, or use --dirty to take it along")
	case <-time.After(lookTime):
		a.warnUnseen()
	}
}

func (a *app) warnUnseen() {
	a.warnf("uncommitted work of yours, if there is any, is NOT in the environment; the work tree is too large to look through here")
	a.hintf("'git status' shows it, and --dirty takes it along")
}

// revision resolves what the user wrote: what git takes, or an environment.
func (a *app) revision(ctx context.Context, rev string) (string, error) {
	id, err := gitcmd.New(a.repo.GitDir).RevParse(ctx, rev)
	if errors.Is(err, gitcmd.ErrUnknownRevision) {
		if _, lerr := a.store.Load(rev); lerr == nil {
			return a.store.Tip(ctx, rev)
		}
		return "", environment.Errorf(environment.ExitRepository, "%w", err).
			WithHint("it has to name a commit: a branch, a tag, an id, HEAD~2, or an environment")
	}
	return id, err
}
