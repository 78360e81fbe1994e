package environment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
	"github.com/git-env/git-env/notes"
	"github.com/git-env/git-env/runtime"
)

// undo collects what takes back the steps made so far.
type undo []func() error

func (u *undo) add(f func() error) { *u = append(*u, f) }

// run takes the steps back, last first.
func (u *undo) run() error {
	var errs []error
	for i := len(*u) - 1; i >= 0; i-- {
		errs = append(errs, (*u)[i]())
	}
	*u = nil
	return errors.Join(errs...)
}

// Create makes an environment. What it costs does not depend on the size of the
// tree: nothing is mounted, started or read before the first exec. When it
// fails, or ctx ends, nothing is left behind.
func (e *Engine) Create(ctx context.Context, p api.Create, rep Reporter) (*api.Created, error) {
	name, release, err := e.claimNew(ctx, p.Name)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := checkHostFor(); err != nil {
		return nil, err
	}
	base, err := e.baseCommit(ctx, p)
	if err != nil {
		return nil, err
	}
	first, err := e.firstCommit(ctx, p, base)
	if err != nil {
		return nil, err
	}
	set, err := e.store.settingsFor(ctx, first, p)
	if err != nil {
		return nil, err
	}
	if err := e.store.checkTrust(ctx, set); err != nil {
		return nil, err
	}
	if err := e.checkMounts(ctx, set); err != nil {
		return nil, err
	}
	for _, n := range set.notes {
		rep.Warn("devcontainer.json: " + n)
	}
	if len(set.Unsupported) > 0 {
		rep.Warn(fmt.Sprintf("not acted on by this version: %s", strings.Join(set.Unsupported, ", ")))
	}
	if err := e.checkSecrets(ctx, &set); err != nil {
		return nil, err
	}
	img, err := e.resolveImage(ctx, set.Image, rep)
	if err != nil {
		return nil, err
	}
	st, err := e.newState(ctx, name, base, set)
	if err != nil {
		return nil, err
	}
	st.Title, st.Image, st.First = p.Title, img, first
	if st.Tree, err = e.treeOf(ctx, st.First); err != nil {
		return nil, err
	}
	if st.Paths, err = e.sparsePaths(ctx, st.Tree, p.Paths); err != nil {
		return nil, err
	}
	var fill func() error
	setup := newSetup(set, p.NoSetup)
	if setup != nil {
		fill = func() error { return e.store.saveSetup(name, setup) }
	}
	if err := e.bringIntoBeing(ctx, st, fill); err != nil {
		return nil, err
	}
	if st.Image.Ref == defaultImage { // another one was resolved above
		e.warmOnce.Do(func() { go e.warm(st.Image.Ref) })
	}
	out := created(st)
	if setup != nil {
		out.Setup = len(setup.Steps)
	}
	return out, nil
}

func created(st *State) *api.Created {
	return &api.Created{Name: st.Name, Branch: strings.TrimPrefix(st.Branch(), "refs/heads/"),
		Commit: st.First, Base: st.Base, Workspace: st.Workspace, Image: st.Image.Ref}
}

// checkHostFor fails early on a host where no exec could ever run.
func checkHostFor() error {
	if err := CheckHost(); err != nil {
		return err
	}
	for _, prog := range []string{"containerd", "containerd-shim-runc-v2", "runc"} {
		if !onPath(prog) {
			pkg, _, _ := strings.Cut(prog, "-")
			return capability(&runtime.MissingError{What: prog, Package: pkg})
		}
	}
	return nil
}

// onPath looks for a program, in the system's directories too, which a user's
// PATH may lack.
func onPath(prog string) bool {
	if _, err := exec.LookPath(prog); err == nil {
		return true
	}
	for _, d := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if fi, err := os.Stat(filepath.Join(d, prog)); err == nil && fi.Mode()&0o111 != 0 {
			return true
		}
	}
	return false
}

// claimNew reserves the name of an environment that is not there yet, inventing
// one when none is given.
func (e *Engine) claimNew(ctx context.Context, name string) (string, func(), error) {
	if name == "" {
		return e.claimInvented(ctx)
	}
	if err := CheckName(name); err != nil {
		return "", nil, err
	}
	release, err := e.claim(name)
	if err != nil {
		return "", nil, err
	}
	if err := e.checkFree(ctx, name); err != nil {
		release()
		return "", nil, err
	}
	return name, release, nil
}

// claimInvented reserves a name that nobody else has or is about to take.
func (e *Engine) claimInvented(ctx context.Context) (string, func(), error) {
	for try := 0; ; try++ {
		name, release, err := e.claimNew(ctx, inventName(try))
		if err == nil {
			return name, release, nil
		}
		// Busy is what a name that is taken is; anything else would go on for ever.
		if ExitCode(err) != ExitBusy || try > 1000 {
			return "", nil, err
		}
	}
}

// checkFree says whether an environment of that name can be made.
func (e *Engine) checkFree(ctx context.Context, name string) error {
	for dir := parentOf(name); dir != ""; dir = parentOf(dir) {
		if _, err := os.Lstat(e.store.statePath(dir)); err == nil {
			return Errorf(ExitBusy, "environment '%s' exists, and git cannot have a branch below its branch", dir).WithHint(hintOtherName)
		}
	}
	if entries, err := os.ReadDir(e.store.EnvDir(name)); err == nil && len(entries) > 0 {
		if !e.store.isEnvDir(e.store.EnvDir(name)) {
			return inTheWay("there are environments below '%s/', which git does not allow beside '%s'", name, name)
		}
		return Errorf(ExitBusy, "environment '%s' exists already", name).WithHint(hintOtherName)
	}
	tip, err := e.store.ref(ctx, BranchRef(name))
	if err != nil {
		return err
	}
	if tip != "" {
		return Errorf(ExitBusy, "branch 'env/%s' exists (at %.12s), but is not an environment here", name, tip).
			WithHint("take another name, or rename the branch: git branch -m env/%s <new>", name)
	}
	for up := path.Dir(name); up != "."; up = path.Dir(up) {
		tip, err := e.store.ref(ctx, BranchRef(up))
		if err != nil {
			return err
		}
		if tip != "" {
			return inTheWay("branch 'env/%s' exists, and git does not allow 'env/%s' beside it", up, name)
		}
	}
	return nil
}

const hintOtherName = "take another name; 'git env list' shows those that are taken"

func inTheWay(format string, args ...any) error {
	return Errorf(ExitBusy, format, args...).WithHint(hintOtherName)
}

// baseCommit returns the commit to start from; in a repository without commits,
// a first one with nothing in it.
func (e *Engine) baseCommit(ctx context.Context, p api.Create) (string, error) {
	if p.From != "" {
		id, kind, _, err := e.store.Reader.Kind(ctx, p.From)
		if errors.Is(err, objects.ErrNotFound) || err == nil && kind != objects.KindCommit {
			return "", Errorf(ExitRepository, "unknown revision '%s'", cmp.Or(p.FromText, p.From))
		}
		return id, err
	}
	ident, err := e.identity(ctx, p.Caller)
	if err != nil {
		return "", err
	}
	tree, err := e.writer.Tree(nil)
	if err != nil {
		return "", err
	}
	return e.writer.Commit(&objects.Commit{Tree: tree, Author: ident.author, Committer: ident.committer, Message: "Start empty\n"})
}

// firstCommit makes the user's uncommitted work the environment's first commit.
func (e *Engine) firstCommit(ctx context.Context, p api.Create, base string) (string, error) {
	if p.DirtyTree == "" {
		return base, nil
	}
	tree, err := e.treeOf(ctx, base)
	if err != nil || tree == p.DirtyTree {
		return base, err
	}
	ident, err := e.identity(ctx, p.Caller)
	if err != nil {
		return "", err
	}
	return e.writer.Commit(&objects.Commit{Tree: p.DirtyTree, Parents: []string{base}, Author: ident.author,
		Committer: ident.committer, Message: "Uncommitted work at the start of the environment\n"})
}

func (e *Engine) treeOf(ctx context.Context, commit string) (string, error) {
	c, err := e.store.Reader.Commit(ctx, commit)
	if err != nil {
		return "", err
	}
	return c.Tree, nil
}

// resolveImage makes sure of the image before anything else is made. The host
// image is always there and starts nothing.
func (e *Engine) resolveImage(ctx context.Context, ref string, rep Reporter) (ImageRef, error) {
	if ref == "host" {
		return ImageRef{Ref: ref}, nil
	}
	b, err := e.runtimeBackend(ctx)
	if err != nil {
		return ImageRef{}, err
	}
	img, err := b.Resolve(ctx, ref, func(p runtime.Progress) { rep.Progress(p.Phase, p.Done, p.Total) })
	if err != nil {
		return ImageRef{}, imageError(ref, err)
	}
	return ImageRef{Ref: img.Ref, Digest: img.Digest}, nil
}

func (e *Engine) newState(ctx context.Context, name, base string, set Settings) (*State, error) {
	c, err := e.store.Reader.Commit(ctx, base)
	if err != nil {
		return nil, err
	}
	t, err := committed(c)
	if err != nil {
		return nil, err
	}
	at := now()
	st := &State{
		ID: notes.NewID(at), Name: name, Phase: PhaseCreating, Created: at,
		Base: base, Origin: base, First: base, LowerTime: t,
		Layers: []string{notes.NewID(at)}, RootFS: notes.NewID(at),
		Profile:   set.Profile,
		Config:    set.kept,
		Workspace: e.store.WorkspaceDir(name, set.WorkspaceDir, DataHome()),
	}
	return st, nil
}

// bringIntoBeing writes the state, the refs and the worktree's registration of a
// new environment, and takes everything back when one of them fails. fill, if
// any, makes what else it consists of, below its directory and in the runtime.
func (e *Engine) bringIntoBeing(ctx context.Context, st *State, fill func() error) (err error) {
	var back undo
	defer func() {
		if err == nil {
			return
		}
		if uerr := back.run(); uerr != nil {
			e.log.Error("cannot undo a create", "env", st.Name, "err", uerr)
			err = fmt.Errorf("%w (and undoing it failed: %w)", err, uerr)
		}
	}()
	var free func()
	st.Worktree, free = e.reserveWorktree(st.Name)
	defer free()
	dir := e.store.EnvDir(st.Name)
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	back.add(func() error {
		err := os.RemoveAll(dir)
		removeUpTo(filepath.Dir(dir), filepath.Join(e.store.Dir, "envs"))
		return err
	})
	if err := e.saveFirst(st); err != nil {
		return err
	}
	if fill != nil {
		back.add(func() error { return e.dropRootFS(context.WithoutCancel(ctx), st) })
		if err := fill(); err != nil {
			return err
		}
	}
	if err := e.createRefs(ctx, st); err != nil {
		return err
	}
	back.add(func() error { return e.dropRefs(context.WithoutCancel(ctx), st, st.First, st.outputRef()) })
	back.add(func() error { return e.store.removeWorktree(st.Worktree) })
	if err := e.store.addWorktree(st); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	st.Phase = PhaseReady
	return e.store.save(st)
}

// createRefs makes the branch and the state note in one transaction.
func (e *Engine) createRefs(ctx context.Context, st *State) error {
	if err := e.mergeStrategies(ctx); err != nil {
		return err
	}
	line, err := stateLine(st)
	if err != nil {
		return err
	}
	for range casTries {
		note, err := e.states.Prepare(ctx, map[string][]byte{st.First: line})
		if err != nil {
			return err
		}
		if err := e.writer.Sync(); err != nil {
			return err
		}
		ups := append([]gitcmd.RefUpdate{{Ref: st.Branch(), New: st.First}, note}, st.outputRef()...)
		// Not cut short: it would not be known whether the refs are there.
		err = e.store.Git.UpdateRefs(context.WithoutCancel(ctx), "git env: created from "+st.Base, ups...)
		if err == nil {
			return nil
		}
		if errors.Is(err, gitcmd.ErrRefInTheWay) && strings.Contains(err.Error(), "'"+st.Branch()+"'") {
			return inTheWay("%w", err)
		}
		if !errors.Is(err, gitcmd.ErrRefChanged) {
			return err
		}
		if err := e.checkBranchFree(ctx, st.Name); err != nil {
			return err
		}
	}
	return Errorf(ExitBusy, "the notes refs keep moving").WithHint("try again")
}

// outputRef is the ref of the outputs that a fork begins with.
func (s *State) outputRef() []gitcmd.RefUpdate {
	if s.Outputs == "" {
		return nil
	}
	return []gitcmd.RefUpdate{{Ref: OutputRef(s.Name), New: s.Outputs}}
}

func (e *Engine) checkBranchFree(ctx context.Context, name string) error {
	refs, err := e.store.Git.ResolveRefs(ctx, BranchRef(name))
	if err != nil {
		return err
	}
	if _, ok := refs[BranchRef(name)]; ok {
		return Errorf(ExitBusy, "branch 'env/%s' exists", name)
	}
	return nil
}

// stateLine is the environment's line in the state notes.
func stateLine(st *State) ([]byte, error) {
	s := notes.State{V: 1, Env: st.Name, Updated: now(), Base: st.Base, Parent: st.Parent, Title: st.Title,
		Config: st.Config.noted(), RootFS: map[string]any{}}
	s.Image.Ref, s.Image.Digest = st.Image.Ref, st.Image.Digest
	if len(st.Paths) > 0 {
		s.Config["paths"] = st.Paths
	}
	return s.Line()
}

// undoCreate removes what a create that was cut short left. Only what it made
// itself goes: the branch only while it is where create put it.
func (e *Engine) undoCreate(ctx context.Context, st *State) error {
	if err := e.dropRootFS(ctx, st); err != nil {
		return err
	}
	if err := e.dropRefs(ctx, st, st.First, st.outputRef()); err != nil {
		return err
	}
	if err := e.store.removeWorktree(st.Worktree); err != nil {
		return err
	}
	dir := e.store.EnvDir(st.Name)
	err := os.RemoveAll(dir)
	removeUpTo(filepath.Dir(dir), filepath.Join(e.store.Dir, "envs"))
	return err
}

// dropRefs deletes the branch if it is at tip, and takes back the creation of
// other refs that are as they were made.
func (e *Engine) dropRefs(ctx context.Context, st *State, tip string, extra []gitcmd.RefUpdate) error {
	refs, err := e.store.Git.ResolveRefs(ctx, st.Branch(), OutputRef(st.Name))
	if err != nil {
		return err
	}
	var ups []gitcmd.RefUpdate
	if refs[st.Branch()] == tip && tip != "" {
		ups = append(ups, gitcmd.RefUpdate{Ref: st.Branch(), Old: tip})
	}
	for _, u := range extra {
		if refs[u.Ref] == u.New {
			ups = append(ups, gitcmd.RefUpdate{Ref: u.Ref, Old: u.New})
		}
	}
	if len(ups) == 0 {
		return nil
	}
	err = e.store.Git.UpdateRefs(ctx, "git env: undone", ups...)
	if errors.Is(err, gitcmd.ErrRefChanged) {
		return nil // somebody else has it now
	}
	return err
}

// removeWorkspaceDir removes what is left of a mount point, and the directories
// above it that were made for it alone.
func removeWorkspaceDir(st *State) error {
	if err := fusefs.AbortStale(st.Workspace); err != nil {
		return err
	}
	dir := st.Workspace
	for range strings.Count(st.Name, "/") + 2 { // the name's and the repository's
		if os.Remove(dir) != nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	return nil
}
