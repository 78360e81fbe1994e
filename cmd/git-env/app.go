package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/term"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/environment/client"
	"github.com/git-env/git-env/environment/integrate"
	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/secret"
)

// app is the caller's surroundings and what a command opens on the way.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	dir            string
	environ        []string

	// rest is what followed "--", for the commands that take it apart from
	// their other arguments; split says that there was one. For an allTaker it
	// is all its arguments, byte for byte.
	rest  []string
	split bool

	caught atomic.Int32 // the signal that interrupted the command, or 0
	repo   *gitcmd.Repo
	store  *environment.Store
}

func newApp(stdin io.Reader, stdout, stderr io.Writer) *app {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, environ: os.Environ()}
	// Without a current directory git says what is wrong.
	a.dir, _ = os.Getwd()
	return a
}

func (a *app) close() {
	if a.store != nil {
		_ = a.store.Close()
	}
}

// open finds the repository and its environments.
func (a *app) open(ctx context.Context) error {
	if a.store != nil {
		return nil
	}
	repo, err := gitcmd.Discover(ctx, a.dir, a.environ)
	if err != nil {
		return discoverError(err)
	}
	store, err := environment.OpenStore(ctx, repo)
	if err != nil {
		return err
	}
	a.repo, a.store = repo, store
	return nil
}

func discoverError(err error) error {
	e := &environment.Error{Code: environment.ExitRepository, Msg: err.Error(), Err: err}
	var ge *gitcmd.Error
	if errors.As(err, &ge) {
		e.Hint = ge.Hint()
	}
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrPermission):
		e.Code, e.Hint = environment.ExitCapability, "install the package 'git'"
	}
	return e
}

// resolve opens the repository and applies the rule for a left-out environment.
func (a *app) resolve(ctx context.Context, given string) (string, error) {
	if err := a.open(ctx); err != nil {
		return "", err
	}
	return a.store.Resolve(given, a.cwd(), a.getenv("GIT_ENV"))
}

// cwd is the caller's directory with symbolic links resolved, as workspaces are
// recorded.
func (a *app) cwd() string {
	if real, err := filepath.EvalSymlinks(a.dir); err == nil {
		return real
	}
	return a.dir
}

func (a *app) getenv(name string) string {
	for i := len(a.environ) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(a.environ[i], name+"="); ok {
			return v
		}
	}
	return ""
}

// caller tells the daemon on whose behalf it acts: only the variables that
// matter there.
func (a *app) caller() api.Caller {
	c := api.Caller{Dir: a.dir}
	for _, kv := range a.environ {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case strings.HasPrefix(name, "GIT_AUTHOR_"), strings.HasPrefix(name, "GIT_COMMITTER_"),
			strings.HasPrefix(name, "XDG_"), name == "PATH", name == "EMAIL", name == "HOME", name == "TERM":
			c.Environ = append(c.Environ, kv)
		}
	}
	return c
}

// dial connects to the daemon, starting it if start.
func (a *app) dial(ctx context.Context, start bool) (*client.Client, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, environment.Errorf(environment.ExitFailed, "cannot find this program's file: %w", err)
	}
	user := secret.Caller{Dir: a.dir, Environ: a.environ}
	return client.Dial(ctx, a.repo, client.Options{Exe: exe, Start: start, Secret: user.Resolve})
}

// call makes one request of the daemon, starting it when needed.
func (a *app) call(ctx context.Context, method string, params, result any) error {
	c, err := a.dial(ctx, true)
	if err != nil {
		return err
	}
	defer c.Close()
	bar := a.progress()
	defer bar.end()
	return c.Call(ctx, method, params, result, client.Events{Progress: bar.show, Warn: bar.warn})
}

// head is the commit checked out here, "" when there is none.
func (a *app) head(ctx context.Context) (string, error) {
	id, err := gitcmd.New(a.repo.GitDir).RevParse(ctx, "HEAD")
	if errors.Is(err, gitcmd.ErrUnknownRevision) {
		return "", nil
	}
	return id, err
}

// tree opens the user's work tree.
func (a *app) tree() (*integrate.Tree, error) {
	return integrate.Open(a.repo, a.environ, a.streams())
}

func (a *app) streams() integrate.IO {
	return integrate.IO{
		Stdin: a.stdin, Stdout: a.stdout, Stderr: a.stderr,
		Terminal: isTerminal(a.stdin) && isTerminal(a.stderr),
	}
}

// source describes an environment for package integrate, after what is
// uncommitted in its workspace was committed: what a process or a person wrote
// there belongs to the environment. The daemon is started only if there is
// something to commit.
func (a *app) source(ctx context.Context, name string) (integrate.Source, error) {
	st, err := a.store.Load(name)
	if err != nil {
		return integrate.Source{}, err
	}
	src := integrate.Source{Name: name, Ref: st.Branch(), Base: st.Base}
	if err := a.commitPending(ctx, st); err != nil {
		return src, err
	}
	src.Tip, err = a.store.Tip(ctx, name)
	return src, err
}

func (a *app) commitPending(ctx context.Context, st *environment.State) error {
	c, err := a.dial(ctx, false)
	if err == nil {
		_ = c.Close()
	} else if dirty, _, err := a.offlineDirty(st); err != nil || dirty == 0 {
		return err
	}
	var done api.Committed
	if err := a.call(ctx, api.MethodCommit, api.Commit{Caller: a.caller(), Env: st.Name}, &done); err != nil {
		return err
	}
	for _, w := range done.Warnings {
		a.warnf("%s", w)
	}
	if done.Commit != "" {
		a.hintf("committed %s that environment '%s' had uncommitted", count(done.Changed, "path"), st.Name)
	}
	return nil
}

// offlineDirty counts and lists what is uncommitted in a workspace while no
// daemon runs, by reading its layers.
func (a *app) offlineDirty(st *environment.State) (int, []string, error) {
	const most = 1000
	n, paths, err := fusefs.OfflineDirty(filepath.Join(a.store.Dir, "layers"), st.Layers, most)
	if err != nil {
		return 0, nil, environment.Errorf(environment.ExitRepository, "cannot read the workspace of '%s': %w", st.Name, err)
	}
	return n, paths, nil
}

// isTerminal says whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && f != nil && term.IsTerminal(int(f.Fd()))
}
