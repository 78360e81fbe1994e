package environment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/fusefs/layer"
	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/runtime"
	"github.com/git-env/git-env/runtime/network"
)

// Env is one environment in an Engine.
type Env struct {
	e     *Engine
	name  string
	fixed State // what of st never changes: ID, Name, Worktree, Tree, LowerTime, Paths
	catch catchUp

	// mu is held while the environment is mounted, started, committed, forked or
	// deleted; never while an exec runs.
	mu      sync.Mutex
	st      *State
	files   *fusefs.Client    // the server that has the mount, guarded by mu
	mounted bool              // guarded by mu
	disk    int64             // the limit that the workspace was mounted with, 0 for none; guarded by mu
	hidden  *fusefs.Cone      // what a sparse environment hides, once it was asked for; guarded by mu
	ctr     runtime.Container // guarded by mu; nil when stopped
	timeout time.Duration     // of a command, guarded by mu; 0 for none
	workdir string            // of the container, guarded by mu
	secrets *envSecrets       // nil until a container was started, guarded by mu
	wanted  network.Rules     // what the settings let execs reach, guarded by mu
	reach   network.Rules     // what the container reaches now, guarded by mu
	// published are the ports that are listened on, guarded by mu.
	published map[PublishedPort]*network.Published
	// outputSizes are the bytes of the outputs that are kept, by blob, guarded by mu.
	outputSizes map[string]int64
	pending     []pendingCommit // ended execs that are not committed yet, guarded by mu
	configured  []Service       // services, as of when the container was started; guarded by mu
	svc         services
	// recovered tells that the execs which an earlier daemon left are recorded,
	// guarded by mu.
	recovered bool

	usage struct {
		sync.Mutex
		mounted bool
		execs   map[string]*running
		last    time.Time
		done    *sync.Cond
	}
}

// running is an exec under way.
type running struct {
	display string
	cancel  context.CancelFunc
	bg      *background // nil when its caller waits
}

func newEnv(e *Engine, st *State) *Env {
	v := &Env{e: e, name: st.Name, st: st, fixed: State{ID: st.ID, Name: st.Name, Worktree: st.Worktree, Tree: st.Tree, LowerTime: st.LowerTime, Paths: st.Paths}}
	v.usage.execs = map[string]*running{}
	v.usage.last = time.Now()
	v.usage.done = sync.NewCond(&v.usage.Mutex)
	return v
}

// use tells what is up, without waiting for mu.
func (v *Env) use() (mounted bool, execs int) {
	v.usage.Lock()
	defer v.usage.Unlock()
	return v.usage.mounted, len(v.usage.execs)
}

// inBackground is how many of the execs nobody waits for.
func (v *Env) inBackground() (n int) {
	v.usage.Lock()
	defer v.usage.Unlock()
	for _, r := range v.usage.execs {
		if r.bg != nil {
			n++
		}
	}
	return n
}

func (v *Env) begin(id string, r *running) {
	v.usage.Lock()
	v.usage.execs[id] = r
	v.usage.Unlock()
}

func (v *Env) end(id string) {
	v.usage.Lock()
	delete(v.usage.execs, id)
	v.usage.last = time.Now()
	v.usage.done.Broadcast()
	v.usage.Unlock()
}

func (v *Env) touch() {
	v.usage.Lock()
	v.usage.last = time.Now()
	v.usage.Unlock()
}

// idleFor is how long nothing has used the environment; 0 while an exec runs.
func (v *Env) idleFor() time.Duration {
	v.usage.Lock()
	defer v.usage.Unlock()
	if len(v.usage.execs) > 0 {
		return 0
	}
	return time.Since(v.usage.last)
}

func (v *Env) cancelExecs() {
	v.usage.Lock()
	defer v.usage.Unlock()
	for _, r := range v.usage.execs {
		r.cancel()
	}
}

// waitExecs waits until no exec is running.
func (v *Env) waitExecs(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		v.usage.Lock()
		v.usage.done.Broadcast()
		v.usage.Unlock()
	})
	defer stop()
	v.usage.Lock()
	defer v.usage.Unlock()
	for len(v.usage.execs) > 0 && ctx.Err() == nil {
		v.usage.done.Wait()
	}
	return ctx.Err()
}

func (v *Env) setMounted(m bool) {
	v.mounted = m
	v.usage.Lock()
	v.usage.mounted = m
	v.usage.Unlock()
}

// mount brings the workspace up; v.mu is held.
func (v *Env) mount(ctx context.Context) error {
	if v.st.Phase != PhaseReady {
		return Errorf(ExitNoEnv, "environment '%s' was deleted", v.st.Name)
	}
	if v.mounted {
		select {
		case <-v.files.Done(): // its mounts went with it, and the container's view of them
			v.setMounted(false)
			v.e.notice("the file server had ended; the workspace of environment '%s' is mounted again with everything that was written", v.name)
			if err := v.stopContainer(ctx); err != nil {
				return err
			}
		default:
			if err := v.forgetUnmounted(ctx, false); err != nil || v.mounted {
				return err
			}
		}
	}
	if err := v.adoptMerged(); err != nil {
		return err
	}
	took := startLaps()
	limit := v.limitBeside(ctx)
	fc, err := v.e.fileServer(ctx)
	if err != nil {
		return err
	}
	took.lap("file server")
	dir := v.st.Workspace
	if err := fusefs.AbortStale(dir); err != nil {
		return Errorf(ExitFailed, "cannot remove the stale mount at %s: %w", dir, err)
	}
	if err := v.e.store.checkLayers(v.st); err != nil {
		return err
	}
	if err := v.e.store.repairWorktree(v.st); err != nil {
		return Errorf(ExitFailed, "cannot register the worktree: %w", err)
	}
	if err := v.writeSparse(ctx); err != nil {
		return Errorf(ExitFailed, "cannot tell git what is hidden: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Errorf(ExitFailed, "cannot make the workspace's directory: %w", err)
	}
	v.stopFollowing()
	if err := v.checkConversions(); err != nil {
		return err
	}
	disk, err := limit()
	if err != nil {
		return err
	}
	discard(v.indexPath() + ".lock") // of a git that was killed: nobody works in what is not mounted
	tip, err := v.e.store.Tip(ctx, v.st.Name)
	held := err == nil && v.behind(tip)
	err = fc.Mount(ctx, fusefs.MountSpec{
		ID: v.st.ID, Dir: dir, Tree: v.st.Tree, Time: v.st.LowerTime,
		Layers: v.st.Layers, DotGit: v.e.store.dotGit(v.st), Paths: v.st.Paths, Quota: disk,
		UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Held: held, Profile: v.st.Profile,
	})
	if err != nil {
		_ = os.Remove(dir)
		if errors.Is(err, layer.ErrDamaged) {
			return v.e.store.damaged(v.name, err)
		}
		return mountError(dir, err)
	}
	v.files, v.disk = fc, disk
	v.setMounted(true)
	v.mountedHeld(fc, held)
	if held {
		v.follow(tip)
	}
	for _, r := range fc.Repairs(v.st.ID) {
		v.e.notice("environment '%s': %s", v.name, r)
	}
	took.lap("mount")
	v.e.log.Info("mounted", append([]any{"env", v.st.Name}, took.parts...)...)
	v.tidyLayers(ctx)
	v.e.store.noteTop(v.st)
	if err := v.recoverExecs(ctx); err != nil {
		// Not in the way of this use; what commits next tries again.
		v.e.log.Warn("cannot record interrupted execs", "env", v.name, "err", err)
	}
	return nil
}

// forgetUnmounted notices that somebody took the mount away behind our back, or
// ended its connection, so that it is mounted again. Execs that still have it go
// on undisturbed; a command that needs it on the host is then refused.
func (v *Env) forgetUnmounted(ctx context.Context, onHost bool) error {
	if !v.mounted || v.serverDied() {
		return nil
	}
	if there, err := fusefs.Mounted(v.st.Workspace); err != nil || there {
		return err
	}
	if _, execs := v.use(); execs > 0 && v.files.Serving(ctx, v.st.ID) == nil {
		if !onHost {
			return nil
		}
		return Errorf(ExitBusy, "the workspace of environment '%s' was unmounted while %d exec(s) run in it", v.name, execs).
			WithHint("it is mounted again when they have ended")
	}
	v.e.notice("the workspace of environment '%s' was unmounted by somebody; it is mounted again", v.name)
	return v.suspend(ctx, true)
}

// mountError names what the host lacks.
func mountError(dir string, err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		return fuseMissing(err)
	}
	return Errorf(ExitFailed, "cannot mount the workspace at %s: %w", dir, err)
}

func fuseMissing(err error) error {
	return (&Error{Code: ExitCapability, Msg: fmt.Sprintf("FUSE is not available: %v", err), Err: err}).
		WithHint("it needs root and /dev/fuse: 'modprobe fuse', the package 'fuse3', or --device /dev/fuse for a container; 'git env doctor' checks everything")
}

// CheckRoot says whether this process may do what the daemon has to.
func CheckRoot() error {
	if os.Geteuid() != 0 {
		return Errorf(ExitCapability, "git env needs root to mount workspaces and run containers").WithHint("run it as root")
	}
	return nil
}

// CheckHost says at once, before anything is made, what an environment could
// not do without.
func CheckHost() error {
	if err := CheckRoot(); err != nil {
		return err
	}
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return fuseMissing(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Rdev != unix.Mkdev(10, 229) {
		return fuseMissing(errors.New("/dev/fuse is not the FUSE device"))
	}
	return nil
}

// unmount takes the workspace down. Unless forced, a workspace that somebody on
// the host has open stays.
func (v *Env) unmount(ctx context.Context, force bool) error {
	if !v.mounted {
		return nil
	}
	if !force {
		// Asked of the kernel first: it knows whether somebody is inside.
		if busy, err := mountBusy(v.st.Workspace); err != nil || busy {
			return err
		}
	}
	if err := v.files.Unmount(ctx, v.st.ID); err != nil {
		select {
		case <-v.files.Done():
		default:
			return err
		}
	}
	v.setMounted(false)
	if err := v.adoptMerged(); err != nil {
		v.e.log.Warn("cannot take over merged layers", "env", v.st.Name, "err", err)
	}
	removeUpTo(v.st.Workspace, filepath.Join(DataHome(), "git-env"))
	return nil
}

// mountBusy marks the mount as expired and asks whether it was in use since: the
// kernel answers EBUSY when it is, and unmounts nothing the first time.
func mountBusy(dir string) (bool, error) {
	err := unix.Unmount(dir, unix.MNT_EXPIRE|unix.UMOUNT_NOFOLLOW)
	switch {
	case err == nil, errors.Is(err, unix.EAGAIN):
		return false, nil
	case errors.Is(err, unix.EBUSY):
		return true, nil
	case errors.Is(err, unix.EINVAL): // not a mount any more
		return false, nil
	}
	return false, err
}

// removeUpTo removes empty directories from dir upwards, below top.
func removeUpTo(dir, top string) {
	for dir != top && strings.HasPrefix(dir, top+"/") {
		if os.Remove(dir) != nil {
			return
		}
		dir = filepath.Dir(dir)
	}
}

// start brings the container up; v.mu is held and the workspace mounted.
func (v *Env) start(ctx context.Context, rep Reporter) error { return v.startWith(ctx, rep, nil) }

// startWith is start with a network other than that of the settings, if any.
func (v *Env) startWith(ctx context.Context, rep Reporter, reach *network.Rules) error {
	if v.ctr != nil {
		if v.ctr.Running(ctx) {
			return nil
		}
		if err := v.stopContainer(ctx); err != nil {
			return err
		}
	}
	took := startLaps()
	spec := v.specBeside(ctx) // git's part of it takes as long as the runtime's
	defer spec.end()
	b, err := v.e.runtimeBackend(ctx)
	if err != nil {
		return err
	}
	took.lap("runtime")
	img, err := b.Resolve(ctx, v.imageRef(), func(p runtime.Progress) { rep.Progress(p.Phase, p.Done, p.Total) })
	if err != nil {
		return imageError(v.st.Image.Ref, err)
	}
	took.lap("image")
	// From here on a delete has a root filesystem to remove.
	if err := v.writeFile("started", nil); err != nil {
		return err
	}
	if err := v.ownRootFS(); err != nil {
		return err
	}
	if err := b.CreateRootFS(ctx, v.st.RootFS, img); err != nil && !errors.Is(err, runtime.ErrExists) {
		return capability(fmt.Errorf("cannot make the root filesystem: %w", err))
	}
	took.lap("rootfs")
	spec.wait()
	if spec.err != nil {
		return spec.err
	}
	took.lap("git")
	v.st.Config.expandLate(spec.Env, img.Env)
	if err := v.bringSecrets(ctx, &spec.set); err != nil {
		return err
	}
	v.configured = spec.set.Services
	files := v.secretFiles()
	took.lap("secrets")
	spec.Image, spec.Secrets = img, len(files) > 0
	v.workdir, v.timeout, v.wanted = spec.Cwd, spec.set.Timeout, spec.Network
	if reach != nil {
		spec.Network = *reach
	}
	v.reach = spec.Network
	v.ctr, err = b.Start(ctx, spec.Spec)
	if err != nil {
		return capability(fmt.Errorf("cannot start the container: %w", err))
	}
	if err := checkMounted(v.ctr, spec.held); err != nil {
		return errors.Join(err, v.stopContainer(ctx))
	}
	if len(files) > 0 {
		if err := v.ctr.PutSecrets(ctx, files); err != nil {
			return errors.Join(Errorf(ExitFailed, "cannot put the secrets into the container: %w", err), v.stopContainer(ctx))
		}
	}
	if err := v.assign(spec.set.Ports, false); err != nil {
		v.e.notice("environment '%s': cannot publish its ports: %v", v.name, err)
	}
	v.openPorts()
	took.lap("container")
	v.e.log.Info("brought up", append([]any{"env", v.st.Name}, took.parts...)...)
	return nil
}

// imageRef is what the environment's image resolved to, so that a tag that moved
// does not change the environment.
func (v *Env) imageRef() string { return v.st.Image.pinned() }

func imageError(ref string, err error) error {
	switch {
	case errors.Is(err, runtime.ErrImageNotFound):
		return &Error{Code: ExitFailed, Msg: err.Error(), Err: err, Hint: "a reference reads [<registry>/]<name>[:<tag>]; 'host' is this machine's own tools"}
	case errors.Is(err, runtime.ErrPlatform):
		return &Error{Code: ExitFailed, Msg: err.Error(), Err: err, Hint: "take an image that is made for this machine, or 'host'"}
	case errors.Is(err, runtime.ErrRegistry):
		return &Error{Code: ExitFailed, Msg: err.Error(), Err: err, Hint: "nothing was made or changed; try again when the registry answers, or take another image"}
	case errors.Is(err, context.Canceled):
		return err
	}
	return capability(fmt.Errorf("image %s: %w", ref, err))
}

// containerID is unique among repositories and re-creations of a name.
func (v *Env) containerID() string { return "git-env-" + strings.ToLower(v.st.ID) }

// coming is a specification that is being made.
type coming struct {
	runtime.Spec
	set  Settings // that it was made of
	held []held
	err  error
	done chan struct{}
}

func (c *coming) wait() { <-c.done }

// end waits for it and lets go of what it holds.
func (c *coming) end() {
	c.wait()
	release(c.held)
}

// specBeside makes the specification, all but the image, while the caller does
// something else. v.mu is held until it was waited for.
func (v *Env) specBeside(ctx context.Context) *coming {
	c := &coming{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.Spec, c.set, c.held, c.err = v.spec(ctx)
	}()
	return c
}

// spec also returns what the specification's mounts show of this machine, for the
// caller to release.
func (v *Env) spec(ctx context.Context) (runtime.Spec, Settings, []held, error) {
	set, err := v.settings(ctx)
	if err != nil {
		return runtime.Spec{}, set, nil, err
	}
	if err := v.e.store.checkTrust(ctx, set); err != nil {
		return runtime.Spec{}, set, nil, err
	}
	mounts, err := v.gitMounts(ctx)
	if err != nil {
		return runtime.Spec{}, set, nil, err
	}
	mounts = append([]runtime.Mount{{Source: v.st.Workspace, Target: defaultWorkdir}}, mounts...)
	shown, err := v.e.hostMounts(ctx, set)
	if err != nil {
		return runtime.Spec{}, set, nil, err
	}
	for _, h := range shown {
		mounts = append(mounts, h.Mount)
	}
	volumes, err := v.insideVolumes(set.Services)
	if err != nil {
		return runtime.Spec{}, set, shown, err
	}
	mounts = append(mounts, volumes...)
	spec, err := v.rootSpec(set)
	if err != nil {
		return runtime.Spec{}, set, shown, err
	}
	spec.Mounts = append(mounts, spec.Mounts...)
	spec.Env = append([]string{"GIT_ENV=" + v.st.Name}, set.Vars...)
	spec.Cwd, spec.Hostname, spec.Hosts = set.Workdir, hostname(v.st.Name), v.hosts(set.Services)
	return spec, set, shown, nil
}

// rootSpec is what all containers of the environment have in common, with the
// workspace or without.
func (v *Env) rootSpec(set Settings) (runtime.Spec, error) {
	caches, err := v.e.store.cacheMounts(set.Caches)
	if err != nil {
		return runtime.Spec{}, err
	}
	rules, err := set.rules()
	if err != nil {
		return runtime.Spec{}, err
	}
	return runtime.Spec{
		ID: v.containerID(), RootFS: v.st.RootFS, Env: set.Vars, Mounts: caches,
		Labels:      map[string]string{repoLabel: v.e.store.Key(), "io.git-env.environment": v.st.Name},
		Network:     rules,
		MemoryBytes: set.Memory, CPUs: set.CPUs, PidsLimit: set.runtimePids(),
		Isolation: set.runtimeIsolation(),
	}, nil
}

// hostname makes an environment's name fit for gethostname(2).
func hostname(name string) string {
	h := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, name)
	return strings.Trim(h[:min(len(h), 63)], "-")
}

// stopContainer removes the container; its root filesystem stays.
func (v *Env) stopContainer(ctx context.Context) error {
	if v.ctr == nil {
		return nil
	}
	v.closePorts()
	if v.ctr.Network() != nil { // that of its services too
		v.stopServices()
		if err := v.removeBoxes(ctx); err != nil {
			return err
		}
	}
	b, err := v.e.runtimeBackend(ctx)
	if err != nil {
		return err
	}
	if err := b.Remove(ctx, v.containerID()); err != nil {
		return err
	}
	v.ctr = nil
	return nil
}

// suspend stops the container and takes the workspace down, after committing
// nothing: what is uncommitted is in the layers. v.mu is held.
func (v *Env) suspend(ctx context.Context, force bool) error {
	v.stopFollowing()
	if err := v.suspendServices(ctx); err != nil {
		return fmt.Errorf("environment '%s': %w", v.st.Name, err)
	}
	if err := v.stopContainer(ctx); err != nil {
		return fmt.Errorf("environment '%s': %w", v.st.Name, err)
	}
	if err := v.unmount(ctx, force); err != nil {
		return fmt.Errorf("environment '%s': %w", v.st.Name, err)
	}
	v.secrets = nil
	return nil
}

func (v *Env) dir() string { return v.e.store.EnvDir(v.name) }

func (v *Env) writeFile(name string, data []byte) error {
	return durable.WriteFile(filepath.Join(v.dir(), name), data, 0o600)
}
