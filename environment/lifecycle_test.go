package environment

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/notes"
)

// TestCreateUndone has every step of a create fail in turn.
func TestCreateUndone(t *testing.T) {
	for name, inTheWay := range map[string]func(t *testing.T, dir string){
		"state": func(t *testing.T, dir string) { write(t, filepath.Join(dir, "env/envs"), "") },
		"branch": func(t *testing.T, dir string) {
			git(t, dir, "update-ref", "refs/heads/env", "HEAD")
		},
		"notes": func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "refs/notes/env-state.lock"), "")
		},
		"worktree": func(t *testing.T, dir string) { write(t, filepath.Join(dir, "worktrees"), "") },
	} {
		t.Run(name, func(t *testing.T) {
			if name == "notes" && testing.Short() {
				t.Skip("waits for a lock")
			}
			r := newRig(t, map[string]string{"f": "x"})
			dir := filepath.Join(r.repo, ".git")
			if err := os.MkdirAll(filepath.Join(dir, "refs/notes"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(dir, "env"), 0o755); err != nil {
				t.Fatal(err)
			}
			inTheWay(t, dir)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if err := r.e.bringIntoBeing(ctx, r.state("team/e"), nil); err == nil {
				t.Fatal("made all the same")
			}
			for _, f := range []string{"env/envs", "worktrees", "refs/notes/env-state.lock"} {
				if fi, err := os.Stat(filepath.Join(dir, f)); err == nil && !fi.IsDir() {
					_ = os.Remove(filepath.Join(dir, f))
				}
			}
			r.left("team")
		})
	}
}

// TestCreateCancelled ends a create at every moment.
func TestCreateCancelled(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.e.bringIntoBeing(ctx, r.state("e"), nil); err == nil {
		t.Error("made although cancelled before")
	}
	r.left("e")
	ctx, cancel = context.WithCancel(t.Context())
	err := r.e.bringIntoBeing(ctx, r.state("e"), func() error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled half way: %v", err)
	}
	r.left("e")
}

// TestRecoverPhases takes back half a create and finishes half a delete.
func TestRecoverPhases(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	half := r.state("half")
	half.Worktree = "env-half"
	if err := os.MkdirAll(r.e.store.EnvDir("half"), 0o700); err != nil {
		t.Fatal(err)
	}
	half.Outputs = half.Tree
	if err := r.e.store.save(half); err != nil {
		t.Fatal(err)
	}
	if err := r.e.createRefs(t.Context(), half); err != nil {
		t.Fatal(err)
	}
	if err := r.e.store.addWorktree(half); err != nil {
		t.Fatal(err)
	}
	gone := r.state("gone")
	if err := r.e.bringIntoBeing(t.Context(), gone, nil); err != nil {
		t.Fatal(err)
	}
	gone.Phase, gone.Ending = PhaseDeleting, &Ending{Tip: gone.First, Outputs: true}
	git(t, r.repo, "update-ref", OutputRef("gone"), gone.Tree)
	if err := r.e.store.save(gone); err != nil {
		t.Fatal(err)
	}
	r.crash()
	r.open()
	r.left("half")
	r.left("gone")
}

// TestDeleteOfMovedBranch keeps a commit that came after the look at the branch.
func TestDeleteOfMovedBranch(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	st := r.state("e")
	if err := r.e.bringIntoBeing(t.Context(), st, nil); err != nil {
		t.Fatal(err)
	}
	st.Phase, st.Ending = PhaseDeleting, &Ending{Tip: st.First}
	later := git(t, r.repo, "commit-tree", "-m", "later", "-p", st.First, st.First+"^{tree}")
	git(t, r.repo, "update-ref", st.Branch(), later)
	if err := r.e.finishDelete(t.Context(), st); err != nil {
		t.Fatal(err)
	}
	if got := git(t, r.repo, "rev-parse", st.Branch()); got != later {
		t.Errorf("branch at %s", got)
	}
}

// TestNames: names that come to the same directory, at once, and below one
// another.
func TestNames(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	var wg sync.WaitGroup
	for _, n := range []string{"a/b", "a-b", "c"} {
		st := r.state(n)
		wg.Go(func() {
			if err := r.e.bringIntoBeing(t.Context(), st, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if list := git(t, r.repo, "worktree", "list", "--porcelain"); strings.Count(list, "branch refs/heads/env/") != 3 {
		t.Errorf("worktrees: %s", list)
	}
	for _, n := range []string{"c/git", "c/d", "a", "c"} {
		if err := r.e.checkFree(t.Context(), n); ExitCode(err) != ExitBusy {
			t.Errorf("%s: %v", n, err)
		}
	}
	name, release, err := r.e.claimNew(t.Context(), "")
	if err != nil || CheckName(name) != nil {
		t.Fatal(name, err)
	}
	release()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := r.e.claimNew(ctx, ""); err == nil {
		t.Error("a name although cancelled")
	}
}

// TestFreeze: a fork whose caller goes away leaves the writable layer named.
func TestFreeze(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	v := r.env("e")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	v.mu.Lock()
	_, err := v.freeze(ctx)
	v.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(v.st.Workspace, "after"), "kept\n")
	r.crash()
	r.open()
	v = r.up("e")
	if data, err := os.ReadFile(filepath.Join(v.st.Workspace, "after")); string(data) != "kept\n" {
		t.Errorf("after a restart: %q, %v", data, err)
	}
}

// TestHeld: what is held back is remembered, named, and taken when it may be.
func TestHeld(t *testing.T) {
	r := newRig(t, map[string]string{".gitattributes": "*.bad working-tree-encoding=UTF-16\n"})
	git(t, r.repo, "config", "env.maxFileSize", "10")
	v := r.env("e")
	odd := "l\xe4tin"
	write(t, filepath.Join(v.st.Workspace, odd), "more than ten bytes\n")
	write(t, filepath.Join(v.st.Workspace, "x.bad"), "odd")
	write(t, filepath.Join(v.st.Workspace, "small"), "s\n")
	res := r.commit(v)
	if names := git(t, r.repo, "-c", "core.quotePath=true", "ls-tree", "--name-only", res.tip); names != ".gitattributes\nsmall" {
		t.Errorf("committed: %s", names)
	}
	if len(res.warnings) != 2 {
		t.Errorf("warnings: %q", res.warnings)
	}
	if _, err := r.delete("e", false); err == nil || !strings.Contains(err.Error(), odd) || !strings.Contains(err.Error(), "x.bad") {
		t.Errorf("delete: %v", err)
	}
	git(t, r.repo, "config", "env.maxFileSize", "100")
	if err := os.Remove(filepath.Join(v.st.Workspace, "x.bad")); err != nil {
		t.Fatal(err)
	}
	res = r.commit(v)
	if names := git(t, r.repo, "ls-tree", "--name-only", "-z", res.tip); !strings.Contains(names, odd) {
		t.Errorf("committed: %q", names)
	}
	if _, err := r.delete("e", true); err != nil {
		t.Fatal(err)
	}
}

// TestManyHeld: any number of files that stay behind is told of in a few lines.
func TestManyHeld(t *testing.T) {
	c := &changeSet{}
	for i := range 100_000 {
		c.hold(strings.Repeat("x", i%5000), "why")
	}
	if len(c.warn) != maxWarnings+1 || len(c.held) != 5000 {
		t.Errorf("%d warnings, %d held", len(c.warn), len(c.held))
	}
}

// TestRecoverExecs: the journal of an exec that ended is recorded once, and one
// whose output is still known is left to whoever has it.
func TestRecoverExecs(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	v := r.env("e")
	x := &execution{v: v, p: api.Run{Args: []string{"true"}}}
	x.rec = notes.Record{ID: notes.NewID(now()), Env: "e", Command: "true", Cwd: "/", Started: now()}
	if err := x.writeJournal(); err != nil {
		t.Fatal(err)
	}
	out := &recorder{}
	_, _ = out.tee(nil).Write([]byte("said\n"))
	v.mu.Lock()
	v.recovered = false
	v.pending = append(v.pending, pendingCommit{commitRequest{message: "true", record: &x.rec, output: out}, x.journalPath()})
	err := v.flushPending(t.Context())
	v.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	rec, _, err := r.e.store.Record(t.Context(), "e", "")
	if err != nil || rec.OutputBytes != 5 {
		t.Errorf("%+v, %v", rec, err)
	}
	x.rec.ID = notes.NewID(now())
	write(t, filepath.Join(v.st.Workspace, "g"), "y")
	if err := x.writeJournal(); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(v.dir(), "exec-junk.json"), "{")
	r.crash()
	r.open()
	v = r.up("e")
	rec, commit, err := r.e.store.Record(t.Context(), "e", x.rec.ID)
	if err != nil || !rec.Outcome.Interrupted || rec.Changed != 1 || commit != git(t, r.repo, "rev-parse", BranchRef("e")) {
		t.Errorf("%+v on %s, %v", rec, commit, err)
	}
	if left, _ := filepath.Glob(filepath.Join(v.dir(), "exec-*")); len(left) > 0 {
		t.Errorf("journals left: %s", left)
	}
}

// TestServerDied: status and delete do without a file server that is gone.
func TestServerDied(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	v := r.env("e")
	write(t, filepath.Join(v.st.Workspace, "g"), "y")
	p, err := os.FindProcess(v.files.Pid())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	<-v.files.Done()
	live, err := r.e.Status(t.Context(), api.Status{Env: "e"})
	if err != nil || len(live.Dirty) != 1 {
		t.Errorf("%+v, %v", live, err)
	}
	if _, err := r.delete("e", false); ExitCode(err) != ExitConflict {
		t.Errorf("delete: %v", err)
	}
	if _, err := r.delete("e", true); err != nil {
		t.Fatal(err)
	}
	r.left("e")
}

// TestHostLock: a git on the host that died with the lock of the index is no
// obstacle to anything.
func TestHostLock(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	v := r.env("e")
	v.mu.Lock()
	err := v.ensureIndex(t.Context())
	v.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	write(t, v.indexPath()+".lock", "")
	write(t, filepath.Join(v.st.Workspace, "g"), "y")
	r.commit(v)
	v.mu.Lock()
	err = errors.Join(v.suspend(t.Context(), true), v.mount(t.Context()), v.ensureIndex(t.Context()))
	v.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if st := git(t, v.st.Workspace, "status", "--porcelain"); st != "" {
		t.Errorf("status: %s", st)
	}
}
