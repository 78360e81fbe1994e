package environment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/internal/conversion"
	"github.com/git-env/git-env/internal/objects"
	"github.com/git-env/git-env/internal/wire"
	"github.com/git-env/git-env/notes"
	"github.com/git-env/git-env/runtime"
	"github.com/git-env/git-env/runtime/containerd"
)

// Reporter receives what long work reports; safe for concurrent use.
type Reporter interface {
	Progress(phase string, done, total int64)
	Warn(text string)
}

// Streams connects an exec to its caller.
type Streams struct {
	Stdin          interface{ Read([]byte) (int, error) } // nil: empty
	Stdout, Stderr interface{ Write([]byte) (int, error) }
	Signals        chan string // names without SIG
	Resizes        chan wire.ResizeMsg
	Report         Reporter
}

// EngineOptions says what an Engine needs besides its Store.
type EngineOptions struct {
	// Exe is the git-env binary, for the file server and the containers' init.
	Exe string
	Log *slog.Logger
}

// Engine is the writing side of a repository's environments. There is one per
// repository, in its daemon. Safe for concurrent use.
type Engine struct {
	store  *Store
	opts   EngineOptions
	log    *slog.Logger
	writer *objects.Writer
	execs  *notes.Ref
	states *notes.Ref
	// converts reads what the user's configuration converts.
	converts *conversion.Source
	idle     time.Duration

	warmOnce  sync.Once
	merging   merging
	ruleFiles ruleFiles

	life    context.Context // ends when the engine closes
	end     context.CancelFunc
	indexes struct {
		sync.WaitGroup
		sync.Mutex
		making map[string]bool // guarded by Mutex
	}

	ports sync.Mutex // held while ports are given away and saved; after that of an Env

	mu      sync.Mutex
	envs    map[string]*Env // guarded by mu
	files   *fusefs.Client  // guarded by mu; nil until the first mount
	backend runtime.Backend // guarded by mu; nil until the first container
	busy    map[string]bool // names being created or deleted, guarded by mu
	// preparing are the environments, and the prepared root filesystems, that are
	// being made ready, each with what is closed when that ends; guarded by mu.
	preparing map[string]chan struct{}
	// worktrees are registrations that are about to be made, guarded by mu.
	worktrees map[string]bool
	closing   bool      // guarded by mu
	setting   *Settings // of git config, for the daemon's own needs
	merges    bool      // the notes' merge strategies are set, guarded by mu
	socket    string    // of the containerd in use, guarded by mu
	notices   notices
}

// OpenEngine takes over a repository's environments: what an earlier daemon left
// half done is finished or undone. The caller holds the daemon's lock.
func OpenEngine(ctx context.Context, store *Store, opts EngineOptions) (*Engine, error) {
	w, err := objects.NewWriter(filepath.Join(store.Repo.CommonDir, "objects"), store.Repo.ObjectFormat)
	if err != nil {
		return nil, err
	}
	set, err := store.readSettings(ctx, "")
	if err != nil {
		return nil, err
	}
	e := &Engine{
		store: store, opts: opts, log: opts.Log, writer: w,
		execs:    notes.NewRef(execNotes, store.Git, store.Reader, w),
		states:   notes.NewRef(stateNotes, store.Git, store.Reader, w),
		converts: conversion.NewSource(store.Git),
		idle:     set.Idle, setting: &set,
		envs: map[string]*Env{}, busy: map[string]bool{}, preparing: map[string]chan struct{}{}, worktrees: map[string]bool{},
	}
	e.life, e.end = context.WithCancel(context.Background())
	if err := e.recover(ctx); err != nil {
		e.end()
		return nil, err
	}
	return e, nil
}

// IdleTimeout is how long an environment, and the daemon, stay up unused.
func (e *Engine) IdleTimeout() time.Duration { return e.idle }

// Close suspends every environment and releases everything.
func (e *Engine) Close() error {
	ctx := context.Background()
	e.mu.Lock()
	e.closing = true
	envs := make([]*Env, 0, len(e.envs))
	for _, v := range e.envs {
		envs = append(envs, v)
	}
	e.mu.Unlock()
	for _, v := range envs {
		v.cancelExecs()
	}
	for _, v := range envs {
		_ = v.waitExecs(ctx)
	}
	e.indexes.Lock() // so that none begins after the wait
	e.end()
	e.indexes.Unlock()
	e.indexes.Wait()
	e.endMerging()
	var errs []error
	for _, v := range envs {
		v.mu.Lock()
		errs = append(errs, v.suspend(ctx, true))
		v.mu.Unlock()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.files != nil {
		errs = append(errs, e.files.Close())
	}
	if e.backend != nil {
		errs = append(errs, e.backend.Close())
	}
	for _, n := range []*notes.Ref{e.execs, e.states} {
		errs = append(errs, n.Settle(ctx))
	}
	errs = append(errs, e.store.Close())
	return errors.Join(errs...)
}

// env returns the environment of that name, loading its state.
func (e *Engine) env(name string) (*Env, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return nil, Errorf(ExitBusy, "the daemon is leaving").WithHint("try again")
	}
	if e.busy[name] {
		return nil, Errorf(ExitBusy, "environment '%s' is being created or deleted", name)
	}
	if v, ok := e.envs[name]; ok {
		return v, nil
	}
	st, err := e.store.Load(name)
	if err != nil {
		return nil, err
	}
	if st.Phase != PhaseReady {
		return nil, Errorf(ExitRepository, "environment '%s' is half %s", name, st.Phase).
			WithHint("'git env delete --force %s' removes what is left of it", name)
	}
	v := newEnv(e, st)
	e.envs[name] = v
	return v, nil
}

// mergeStrategies lets a plain git notes merge join the records of two machines;
// once per daemon, and by one at a time, because git locks its config.
func (e *Engine) mergeStrategies(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.merges {
		return nil
	}
	err := notes.EnsureMergeStrategy(ctx, e.store.Git)
	e.merges = err == nil
	return err
}

// claim reserves a name while it is created or deleted.
func (e *Engine) claim(name string) (release func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.busy[name] {
		return nil, Errorf(ExitBusy, "environment '%s' is being created or deleted", name)
	}
	if e.preparing[name] != nil {
		return nil, beingSetUp(name)
	}
	e.busy[name] = true
	return func() {
		e.mu.Lock()
		delete(e.busy, name)
		e.mu.Unlock()
	}, nil
}

// fileServer returns the file server, starting one when there is none or the
// last one died.
func (e *Engine) fileServer(ctx context.Context) (*fusefs.Client, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.files != nil {
		select {
		case <-e.files.Done():
			e.log.Warn("the file server died", "pid", e.files.Pid())
			_ = e.files.Close()
			e.files = nil
		default:
			return e.files, nil
		}
	}
	log, err := e.openLog()
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c, err := fusefs.StartServer(ctx, fusefs.ServerOptions{
		Exe: e.opts.Exe, GitDir: e.store.Repo.CommonDir,
		BlobDir: filepath.Join(e.store.Dir, "blobs"), LayerDir: e.layerDir(), Log: log,
		Uring: e.setting.Uring, BlobCache: e.setting.BlobCache,
		Watchdog: e.setting.Watchdog, Notices: e.noticeFile(),
	})
	if err != nil {
		return nil, Errorf(ExitFailed, "cannot start the file server: %w", err)
	}
	e.files = c
	return c, nil
}

// openLog opens the daemon's log for a process of ours.
func (e *Engine) openLog() (*os.File, error) {
	return os.OpenFile(filepath.Join(e.store.Dir, "daemon.log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE|oNofollow, 0o600)
}

func (e *Engine) layerDir() string { return filepath.Join(e.store.Dir, "layers") }
func (e *Engine) tmpDir() string   { return filepath.Join(e.store.Dir, "tmp") }

// repoLabel marks the containers of this repository.
const repoLabel = "io.git-env.repository"

// runtimeBackend returns the container runtime, connecting to it and removing
// what an earlier daemon's containers left when it is used for the first time.
func (e *Engine) runtimeBackend(ctx context.Context) (runtime.Backend, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.backend != nil {
		return e.backend, nil
	}
	if e.closing {
		return nil, Errorf(ExitBusy, "the daemon is leaving").WithHint("try again")
	}
	base := filepath.Join(DataHome(), "git-env", "containerd")
	b, err := containerd.Open(ctx, containerd.Options{
		Socket:   e.setting.Containerd,
		DataDir:  base,
		RunDir:   filepath.Join(RunHome(), "git-env", "containerd"),
		StateDir: e.store.Dir,
		Exe:      e.opts.Exe,
		Network:  networkOptions(e.setting),
	})
	if err != nil {
		return nil, capability(err)
	}
	// Their mounts went with the daemon that made them.
	ids, err := b.List(ctx, repoLabel, e.store.Key())
	if err == nil {
		for _, id := range ids {
			err = errors.Join(err, b.Remove(ctx, id))
		}
	}
	if err != nil {
		_ = b.Close()
		return nil, capability(fmt.Errorf("cannot clear old containers: %w", err))
	}
	if info, err := b.Info(ctx); err == nil {
		e.socket = info.Socket
	}
	e.backend = b
	return b, nil
}

// warm brings the container runtime up while the user still types: whoever makes
// an environment runs something in it next. It is no more than a head start, so a
// failure waits for the exec that meets it.
func (e *Engine) warm(image string) {
	b, err := e.runtimeBackend(context.Background())
	if err == nil {
		_, err = b.Resolve(context.Background(), image, nil)
	}
	if err != nil {
		e.log.Info("no head start", "err", err)
	}
}

// capability turns a missing part of the host into exit code 20 with the name of
// the package that brings it.
func capability(err error) error {
	var m *runtime.MissingError
	if !errors.As(err, &m) {
		return err
	}
	out := &Error{Code: ExitCapability, Msg: m.Error(), Err: err}
	switch {
	case m.Hint != "":
		out.Hint = m.Hint
	case m.Package != "":
		out.Hint = fmt.Sprintf("install the package '%s'; 'git env doctor' checks everything", m.Package)
	default:
		out.Hint = "'git env doctor' checks everything"
	}
	return out
}

// DaemonStatus describes what is up.
func (e *Engine) DaemonStatus(context.Context) *api.DaemonStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := &api.DaemonStatus{Containerd: e.socket}
	if e.files != nil {
		st.FilePid = e.files.Pid()
	}
	if names, err := e.store.Names(); err == nil {
		st.Envs = len(names)
	}
	for _, v := range e.envs {
		mounted, execs := v.use()
		if mounted {
			st.Mounts++
		}
		st.Execs += execs
	}
	return st
}

// Quiesce makes ready to leave: it refuses while execs run, unless forced, when
// they are ended and recorded.
func (e *Engine) Quiesce(ctx context.Context, force bool) error {
	e.mu.Lock()
	var running []*Env
	n, behind := 0, 0
	for _, v := range e.envs {
		if _, execs := v.use(); execs > 0 {
			running = append(running, v)
			n += execs
			behind += v.inBackground()
		}
	}
	e.mu.Unlock()
	switch {
	case n == 0:
		return nil
	case !force && behind > 0:
		return Errorf(ExitBusy, "%d exec(s) are running, %d of them in the background", n, behind).
			WithHint("'git env ps' lists those and 'git env stop' ends them; 'git env daemon stop --force' ends all")
	case !force:
		return Errorf(ExitBusy, "%d exec(s) are running", n).WithHint("wait for them, or 'git env daemon stop --force' ends them")
	}
	for _, v := range running {
		v.cancelExecs()
	}
	for _, v := range running {
		if err := v.waitExecs(ctx); err != nil {
			return err
		}
	}
	return nil
}

// SuspendIdle suspends the environments that nothing has used for d and returns
// how many are still up.
func (e *Engine) SuspendIdle(ctx context.Context, d time.Duration) int {
	e.mu.Lock()
	envs := make([]*Env, 0, len(e.envs))
	for _, v := range e.envs {
		envs = append(envs, v)
	}
	e.mu.Unlock()
	up := 0
	for _, v := range envs {
		if !v.mu.TryLock() {
			up++
			continue
		}
		if v.idleFor() > d {
			if err := v.suspend(ctx, false); err != nil {
				e.log.Warn("cannot suspend", "env", v.st.Name, "err", err)
			}
		}
		if v.mounted || v.ctr != nil {
			up++
		}
		v.mu.Unlock()
	}
	return up
}
