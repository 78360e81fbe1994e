package environment

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/notes"
	"github.com/git-env/git-env/runtime"
)

// bareWorkdir is where the steps begin that run without the workspace.
const bareWorkdir = "/"

func beingSetUp(env string) error {
	return Errorf(ExitBusy, "environment '%s' is being set up", env).
		WithHint("'git env status %s' shows the step that runs; wait for it, or interrupt the command that set it going", env)
}

// notPrepared refuses what cannot be done while the environment is being prepared,
// and warns that its preparation has failed; rep may be nil. v.mu is held.
func (v *Env) notPrepared(rep Reporter) error {
	v.e.mu.Lock()
	busy := v.e.preparing[v.name] != nil
	v.e.mu.Unlock()
	if busy {
		return beingSetUp(v.name)
	}
	if rep == nil {
		return nil
	}
	view, err := v.e.store.SetupOf(v.name)
	if err == nil && view != nil && (view.State == SetupFailed || view.State == SetupInterrupted) {
		rep.Warn(fmt.Sprintf("the setup of environment '%s' is not complete: %s; 'git env setup %s' goes on with it", v.name, view, v.name))
	}
	return err
}

// ownRootFS notes that commands run on a root filesystem whose steps have not all
// succeeded: it is the environment's own then. v.mu is held.
func (v *Env) ownRootFS() error {
	s, err := v.e.store.loadSetup(v.name)
	if err != nil || s == nil || s.Own || s.rootReady() {
		return err
	}
	s.Own = true
	return v.e.store.saveSetup(v.name, s)
}

// Setup runs those steps of an environment's preparation that have not succeeded
// yet, and stops at the first that fails, which is no error of Setup. What a step
// prints goes to st; each is recorded like any exec.
func (e *Engine) Setup(ctx context.Context, p api.Setup, st Streams) (*api.SetUp, error) {
	v, err := e.env(p.Env)
	if err != nil {
		return nil, err
	}
	s, err := e.store.loadSetup(p.Env)
	if err != nil || s == nil {
		return &api.SetUp{}, err
	}
	if s.next() < 0 {
		return &api.SetUp{Steps: len(s.Steps)}, nil
	}
	release, err := e.beginSetup(ctx, v)
	if err != nil {
		return nil, err
	}
	defer release()
	lock, err := durable.TryLock(e.store.setupLock(p.Env))
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if s, err = e.store.readSetup(p.Env); err != nil || s == nil { // as it is now that nobody else changes it
		return &api.SetUp{}, err
	}
	if s.Skipped {
		s.Skipped = false
	}
	u := &setup{e: e, v: v, s: s, st: st, caller: p.Caller, out: api.SetUp{Steps: len(s.Steps)}}
	if err := u.run(ctx); err != nil {
		return nil, err
	}
	return &u.out, nil
}

// beginSetup keeps everybody else from running anything in the environment, and
// ends its idle container.
func (e *Engine) beginSetup(ctx context.Context, v *Env) (release func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.preparing[v.name] != nil {
		return nil, beingSetUp(v.name)
	}
	if e.busy[v.name] {
		return nil, Errorf(ExitBusy, "environment '%s' is being created or deleted", v.name)
	}
	if _, n := v.use(); n > 0 {
		return nil, Errorf(ExitBusy, "%d exec(s) are running in environment '%s'", n, v.name).
			WithHint("the setup runs when nothing else does; wait for them, or end them with 'git env stop %s'", v.name)
	}
	done := make(chan struct{})
	e.preparing[v.name] = done
	return func() {
		e.mu.Lock()
		delete(e.preparing, v.name)
		e.mu.Unlock()
		close(done)
	}, nil
}

// setup is one run of an environment's preparation.
type setup struct {
	e      *Engine
	v      *Env
	s      *Setup
	st     Streams
	caller api.Caller
	out    api.SetUp

	b    runtime.Backend
	img  runtime.Image
	root recipe
}

func (u *setup) run(ctx context.Context) error {
	if !u.s.rootReady() {
		if err := u.rootFS(ctx); err != nil || u.out.Failed > 0 {
			return err
		}
	}
	for i := u.s.next(); i >= 0; i = u.s.next() {
		if ok, err := u.step(ctx, i, nil); err != nil || !ok {
			return err
		}
	}
	return nil
}

// rootFS runs the steps that make the root filesystem, each in a container of its
// own, so that what the step before has made is kept for others in between.
func (u *setup) rootFS(ctx context.Context) error {
	if err := u.openRoot(ctx); err != nil {
		return err
	}
	if u.s.Own {
		return u.rootSteps(ctx, false)
	}
	release, err := u.e.alone(ctx, u.root.id(len(u.root.Steps)), func() {
		u.say("waiting for another environment that prepares the same")
	})
	if err != nil {
		return err
	}
	defer release()
	if err := u.beginRoot(ctx); err != nil {
		return err
	}
	return u.rootSteps(ctx, true)
}

func (u *setup) rootSteps(ctx context.Context, share bool) error {
	for i := u.s.next(); i >= 0 && i < len(u.s.rootSteps()); i = u.s.next() {
		ok, err := u.bareStep(ctx, i)
		if err != nil || !ok {
			return err
		}
		if share {
			u.e.keepPrepared(context.WithoutCancel(ctx), u.b, u.img, u.root, i+1, u.v.st.RootFS)
		}
	}
	return nil
}

// openRoot finds out what the root filesystem is to be made of.
func (u *setup) openRoot(ctx context.Context) (err error) {
	v := u.v
	v.mu.Lock()
	defer v.mu.Unlock()
	if u.b, err = u.e.runtimeBackend(ctx); err != nil {
		return err
	}
	if err := v.stopContainer(ctx); err != nil {
		return err
	}
	u.img, err = u.b.Resolve(ctx, v.imageRef(), func(p runtime.Progress) { u.st.Report.Progress(p.Phase, p.Done, p.Total) })
	if err != nil {
		return imageError(v.st.Image.Ref, err)
	}
	id, err := u.b.Identity(u.img)
	if err != nil {
		return err
	}
	set, err := v.settings(ctx)
	if err != nil {
		return err
	}
	u.root = recipe{Version: 1, Repo: u.e.store.Key(), Image: id, Vars: set.Vars}
	for _, s := range set.Secrets {
		u.root.Secrets = append(u.root.Secrets, s.Target())
	}
	for _, s := range u.s.rootSteps() {
		u.root.Steps = append(u.root.Steps, s.Command)
	}
	return nil
}

// beginRoot makes the root filesystem anew, from as much as is prepared already:
// what a step that failed has left goes.
func (u *setup) beginRoot(ctx context.Context) error {
	v := u.v
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.writeFile("started", nil); err != nil { // a delete has a root filesystem to remove
		return err
	}
	if err := u.b.RemoveRootFS(ctx, v.st.RootFS); err != nil {
		return err
	}
	n, err := u.e.usePrepared(ctx, u.b, u.img, u.root, v.st.RootFS)
	if err != nil {
		u.st.Report.Warn(err.Error())
	}
	if n == 0 {
		if err := u.b.CreateRootFS(ctx, v.st.RootFS, u.img); err != nil {
			return capability(fmt.Errorf("cannot make the root filesystem: %w", err))
		}
	}
	for i := range u.s.rootSteps() {
		step := &u.s.Steps[i]
		switch {
		case i >= n:
			step.State = SetupPending
		case step.State != SetupDone:
			step.State = SetupCached
			u.out.Cached++
		}
	}
	if n > 0 {
		u.say(fmt.Sprintf("%d of %d steps are prepared already", n, len(u.s.Steps)))
	}
	return u.e.store.saveSetup(v.name, u.s)
}

// bareStep runs a step on the root filesystem alone.
func (u *setup) bareStep(ctx context.Context, i int) (ok bool, err error) {
	v := u.v
	spec, files, err := v.bareSpec(ctx, u.img)
	if err != nil {
		return false, err
	}
	if err := u.b.CreateRootFS(ctx, v.st.RootFS, u.img); err != nil && !errors.Is(err, runtime.ErrExists) {
		return false, capability(fmt.Errorf("cannot make the root filesystem: %w", err))
	}
	ctr, err := u.b.Start(ctx, spec)
	if err != nil {
		return false, capability(fmt.Errorf("cannot start the container: %w", err))
	}
	defer func() {
		if rerr := u.b.Remove(context.WithoutCancel(ctx), spec.ID); rerr != nil {
			ok, err = false, errors.Join(err, fmt.Errorf("cannot end the container of the setup: %w", rerr))
		}
	}()
	if len(files) > 0 {
		if err := ctr.PutSecrets(ctx, files); err != nil {
			return false, Errorf(ExitFailed, "cannot put the secrets into the container: %w", err)
		}
	}
	return u.step(ctx, i, ctr)
}

// bareSpec is that of a container on the environment's root filesystem with nothing
// of the environment in it, so that what is made there may be another's as well.
// It also returns the files with secrets.
func (v *Env) bareSpec(ctx context.Context, img runtime.Image) (runtime.Spec, []runtime.SecretFile, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	set, err := v.settings(ctx)
	if err == nil {
		err = v.e.store.checkTrust(ctx, set)
	}
	if err == nil {
		err = v.bringSecrets(ctx, &set)
	}
	if err != nil {
		return runtime.Spec{}, nil, err
	}
	spec, err := v.rootSpec(set)
	if err != nil {
		return runtime.Spec{}, nil, err
	}
	spec.Env = slices.Clone(spec.Env)
	v.st.Config.expandLate(spec.Env, img.Env)
	spec.ID += "-setup"
	spec.Image, spec.Cwd, spec.Hostname = img, bareWorkdir, "setup"
	files := v.secrets.files("")
	spec.Secrets = len(files) > 0
	return spec, files, nil
}

// step runs a step, in bare if that is not nil, and notes how it ended.
func (u *setup) step(ctx context.Context, i int, bare runtime.Container) (ok bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	step := &u.s.Steps[i]
	u.say(fmt.Sprintf("%d of %d, %s: %s", i+1, len(u.s.Steps), step.Stage, subject(step.Command)))
	x := &execution{v: u.v, st: u.st, out: &recorder{}, step: true, bare: bare, p: api.Run{
		Caller: u.caller, Env: u.v.name, Args: []string{"sh", "-c", step.Command}, Display: step.Command,
	}}
	if err := x.prepare(ctx); err != nil {
		return false, err
	}
	defer x.cancel()
	step.State, step.Exec, step.Outcome = SetupRunning, x.rec.ID, notes.Outcome{}
	if err := u.e.store.saveSetup(u.v.name, u.s); err != nil {
		u.v.end(x.rec.ID)
		return false, err
	}
	u.out.Ran++
	ran, err := x.run()
	u.v.end(x.rec.ID)
	step.State, step.Outcome = SetupFailed, x.rec.Outcome
	switch {
	case x.ctx.Err() != nil || x.rec.Outcome.Interrupted:
		step.State = SetupInterrupted
	case err == nil && x.rec.Outcome == notes.Outcome{}:
		step.State = SetupDone
	}
	if serr := u.e.store.saveSetup(u.v.name, u.s); serr != nil || err != nil {
		return false, errors.Join(redacted(x.known, err), serr)
	}
	for _, w := range ran.Warnings {
		u.st.Report.Warn(w)
	}
	if step.State != SetupDone {
		u.out.Failed, u.out.Command, u.out.Exec, u.out.Ending = i+1, step.Command, step.Exec, ending(step.Outcome)
		return false, nil
	}
	return true, nil
}

// say tells the caller how far it is, among what the steps print.
func (u *setup) say(text string) { _, _ = fmt.Fprintln(u.st.Stderr, "setup: "+text) }
