package environment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/internal/gitcmd"
)

// Delete ends an environment. Unless forced it refuses while an exec runs, while
// anything is uncommitted, and while its branch is not merged into p.Into.
func (e *Engine) Delete(ctx context.Context, p api.Delete) (*api.Deleted, error) {
	release, err := e.claim(p.Env)
	if err != nil {
		return nil, err
	}
	defer release()
	v, err := e.forDelete(p)
	if err != nil {
		return nil, err
	}
	if v == nil {
		return e.deleteDamaged(ctx, p.Env)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	out := &api.Deleted{Name: p.Env}
	if out.Destroyed, err = v.wouldLose(ctx, p); err != nil {
		return nil, err
	}
	if len(out.Destroyed) > 0 && !p.Force {
		return nil, refuseDelete(p.Env, out.Destroyed)
	}
	for _, execs := v.use(); execs > 0; _, execs = v.use() { // one may slip in while mu is free
		v.cancelExecs()
		v.mu.Unlock()
		err := v.waitExecs(ctx)
		v.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
	if out.Tip, err = e.store.Tip(ctx, p.Env); err != nil && !p.Force && v.st.Phase != PhaseDeleting {
		return nil, err
	}
	// From here on it is finished, also when the caller goes away.
	ctx = context.WithoutCancel(ctx)
	if err := v.suspend(ctx, true); err != nil {
		return nil, err
	}
	if v.st.Ending == nil || p.Force {
		v.st.Ending = &Ending{Tip: out.Tip, Outputs: p.Force}
	}
	v.st.Phase = PhaseDeleting
	if err := e.store.save(v.st); err != nil {
		return nil, err
	}
	if err := e.finishDelete(ctx, v.st); err != nil {
		return nil, err
	}
	e.mu.Lock()
	delete(e.envs, p.Env)
	e.mu.Unlock()
	return out, nil
}

// forDelete loads the environment; nil without error is a damaged one that may
// be removed by force.
func (e *Engine) forDelete(p api.Delete) (*Env, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if v, ok := e.envs[p.Env]; ok {
		return v, nil
	}
	st, err := e.store.Load(p.Env)
	if err == nil {
		v := newEnv(e, st)
		e.envs[p.Env] = v
		return v, nil
	}
	if errors.Is(err, ErrDamaged) && p.Force {
		return nil, nil
	}
	return nil, err
}

func refuseDelete(name string, lost []string) error {
	code := ExitConflict
	for _, l := range lost {
		switch {
		case strings.HasPrefix(l, runningPrefix):
			code = ExitBusy
		case strings.HasPrefix(l, backgroundPrefix):
			return Errorf(ExitBusy, "environment '%s' is not deleted, it has %s", name, strings.Join(lost, "; ")).
				WithHint("end it first ('git env stop %s --all'), or destroy that with 'git env delete --force %s'", name, name)
		}
	}
	return Errorf(code, "environment '%s' is not deleted, it has %s", name, strings.Join(lost, "; ")).
		WithHint("merge it first ('git env merge %s'), or destroy that with 'git env delete --force %s'", name, name)
}

const (
	runningPrefix    = "a running exec: "
	backgroundPrefix = "a running background process: "
)

// wouldLose names what a delete would destroy.
func (v *Env) wouldLose(ctx context.Context, p api.Delete) ([]string, error) {
	var lost []string
	v.usage.Lock()
	for id, r := range v.usage.execs {
		if r.bg != nil {
			lost = append(lost, fmt.Sprintf("%s%s (%s)", backgroundPrefix, cmp.Or(r.bg.name, id), r.display))
			continue
		}
		lost = append(lost, runningPrefix+r.display)
	}
	v.usage.Unlock()
	if v.st.Phase != PhaseReady {
		return lost, nil
	}
	tip, err := v.e.store.Tip(ctx, p.Env)
	if err != nil {
		if p.Force {
			return append(lost, "a damaged branch"), nil
		}
		return nil, err
	}
	dirty, held, err := v.uncommitted(ctx)
	if err != nil && !p.Force {
		return nil, err
	}
	if len(dirty) > 0 {
		lost = append(lost, fmt.Sprintf("%d uncommitted path(s): %s", len(dirty), few(dirty)))
	}
	if len(held) > 0 {
		lost = append(lost, fmt.Sprintf("%d file(s) too large or oddly named to be committed: %s", len(held), few(held)))
	}
	inside, err := v.insideOnly(ctx)
	if err != nil {
		inside = []string{"refs that cannot be read: " + err.Error()}
	}
	if len(inside) > 0 {
		lost = append(lost, "commits of git inside that are not on its branch: "+few(inside))
	}
	merged, err := v.e.isMerged(ctx, tip, v.st.Base, p.Into)
	if err != nil {
		return nil, err
	}
	if !merged {
		n, err := v.e.store.Git.Line(ctx, "rev-list", "--count", tip, "^"+v.st.Base)
		if err != nil {
			return nil, err
		}
		lost = append(lost, fmt.Sprintf("%s unmerged commit(s) up to %.12s", n, tip))
	}
	return lost, nil
}

// few names the first paths of a list.
func few(paths []string) string {
	const show = 5
	if len(paths) <= show {
		return strings.Join(paths, ", ")
	}
	return strings.Join(paths[:show], ", ") + fmt.Sprintf(" and %d more", len(paths)-show)
}

// isMerged says whether tip is contained in base or in the commit into.
func (e *Engine) isMerged(ctx context.Context, tip, base, into string) (bool, error) {
	for _, c := range []string{base, into} {
		if c == "" {
			continue
		}
		if c == tip {
			return true, nil
		}
		_, err := e.store.Git.Output(ctx, nil, "merge-base", "--is-ancestor", tip, c)
		if err == nil {
			return true, nil
		}
		var ge *gitcmd.Error
		if !errors.As(err, &ge) || ge.ExitCode != 1 {
			return false, err
		}
	}
	return false, nil
}

func (e *Engine) dropOutputs(ctx context.Context, name string) error {
	for range casTries {
		refs, err := e.store.Git.ResolveRefs(ctx, OutputRef(name))
		if err != nil {
			return err
		}
		id, ok := refs[OutputRef(name)]
		if !ok {
			return nil
		}
		err = e.store.Git.UpdateRefs(ctx, "git env: deleted", gitcmd.RefUpdate{Ref: OutputRef(name), Old: id})
		if err == nil || !errors.Is(err, gitcmd.ErrRefChanged) {
			return err
		}
	}
	return Errorf(ExitBusy, "%s keeps moving", OutputRef(name))
}

// finishDelete removes everything that an environment in PhaseDeleting still
// has; it can be cut short and repeated. env.json goes last.
func (e *Engine) finishDelete(ctx context.Context, st *State) error {
	if err := e.dropRootFS(ctx, st); err != nil {
		return err
	}
	if err := removeWorkspaceDir(st); err != nil {
		return err
	}
	if err := e.store.removeWorktree(st.Worktree); err != nil {
		return err
	}
	if end := st.Ending; end != nil {
		if err := e.dropRefs(ctx, st, end.Tip, nil); err != nil {
			return err
		}
		if end.Outputs {
			if err := e.dropOutputs(ctx, st.Name); err != nil {
				return err
			}
		}
	}
	if err := e.dropLayers(st); err != nil {
		return err
	}
	dir := e.store.EnvDir(st.Name)
	discard(e.cachedIndex(st)) // others make theirs anew
	discard(e.cachedIndex(st) + filteredSuffix)
	if err := removeAllLast(dir, "env.json"); err != nil {
		return err
	}
	removeUpTo(filepath.Dir(dir), filepath.Join(e.store.Dir, "envs"))
	return nil
}

// removeAllLast removes a directory, the named file last.
func removeAllLast(dir, last string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	for _, d := range entries {
		if d.Name() != last {
			if err := os.RemoveAll(filepath.Join(dir, d.Name())); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(dir)
}

// deleteDamaged removes what is left of an environment whose state cannot be
// read. Its branch stays: it is all that can be trusted.
func (e *Engine) deleteDamaged(ctx context.Context, name string) (*api.Deleted, error) {
	tip, err := e.store.Tip(ctx, name)
	if err != nil {
		tip = ""
	}
	dir := e.store.EnvDir(name)
	wt := e.store.worktreeDir("env-" + strings.ReplaceAll(name, "/", "-"))
	if head, err := os.ReadFile(filepath.Join(wt, "HEAD")); err == nil && strings.TrimSpace(string(head)) == "ref: "+BranchRef(name) {
		if err := os.RemoveAll(wt); err != nil {
			return nil, err
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	removeUpTo(filepath.Dir(dir), filepath.Join(e.store.Dir, "envs"))
	return &api.Deleted{Name: name, Tip: tip, Destroyed: []string{"its damaged state; the branch " + BranchRef(name) + " is kept"}}, nil
}
