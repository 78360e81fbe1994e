package containerd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/git-env/git-env/runtime"
)

// process is one exec.
type process struct {
	c       *container
	id      string
	command string // Args[0]
	pid     int
	fd      *pidfd // nil when the process had ended before we could get hold of it
	io      *stdio
	via     supervisor

	ended chan struct{} // closed when exit and err are set and the output is drained
	exit  runtime.Exit
	err   error

	abandoned chan struct{} // closed when the Backend is closed
	leave     sync.Once
}

var _ runtime.Process = (*process)(nil)

// supervisor is who runs a process inside: the container's first process, or
// containerd where that cannot.
type supervisor interface {
	// start has the process made and started, and sets its pid, fd and io. When it
	// fails nothing of it is left, or soon will be.
	start(ctx context.Context, config *specs.Process, streams runtime.IO) error
	// await waits for the end and returns the exit code as shells have it, or fails
	// when nobody can know it any more. The kernel's own word goes before it.
	await() (int, error)
	// ending looks at an exit code once the output is complete.
	ending(exit runtime.Exit) runtime.Exit
	// resize sets the size of the terminal.
	resize(ctx context.Context, width, height uint16) error
	// forget drops what is kept about a process that has ended.
	forget()
	// abandon makes await return; the process goes on.
	abandon()
}

// execTimeout bounds the start of a process.
const execTimeout = time.Minute

// Exec implements runtime.Container. A start that is given up is finished and
// its process killed: a request that is cut short can leave the shim starting
// what nobody knows of any more.
func (c *container) Exec(ctx context.Context, spec runtime.ExecSpec, streams runtime.IO) (runtime.Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), execTimeout)
	defer cancel()
	p, err := c.startExec(bounded, spec, streams)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, errors.Join(context.Cause(ctx), p.Close())
	}
	return p, nil
}

func (c *container) startExec(ctx context.Context, spec runtime.ExecSpec, streams runtime.IO) (*process, error) {
	if err := checkID(spec.ID); err != nil {
		return nil, err
	}
	if len(spec.Args) == 0 || spec.Args[0] == "" {
		return nil, &runtime.Error{Kind: runtime.ErrCommandNotFound, Message: "no command given"}
	}
	config, err := c.execConfig(&spec)
	if err != nil {
		return nil, err
	}
	// Waits while the container is being forked or a tree is being killed.
	c.freezing.RLock()
	defer c.freezing.RUnlock()
	if c.paused {
		return nil, fmt.Errorf("container %s is paused", c.id)
	}
	if !c.fd.alive() { // there may be another of its id already
		return nil, &runtime.Error{Kind: runtime.ErrNotFound, Message: "container " + c.id + " is not running"}
	}
	p := &process{c: c, id: spec.ID, command: spec.Args[0], ended: make(chan struct{}), abandoned: make(chan struct{})}
	if err := c.addExec(p); err != nil {
		return nil, err
	}
	if err := p.start(ctx, config, streams); err != nil {
		c.dropExec(p)
		return nil, err
	}
	go p.watch()
	return p, nil
}

// start has the first process run it, else containerd.
func (p *process) start(ctx context.Context, config *specs.Process, streams runtime.IO) error {
	rendezvous, err := p.c.rendezvous.get(ctx, p.c)
	if err == nil {
		p.via = &initExec{p: p, rendezvous: rendezvous}
		err = p.via.start(ctx, config, streams)
	}
	if errors.Is(err, errNoInit) {
		p.via = &shimExec{p: p}
		if err = p.via.start(ctx, config, streams); err != nil {
			err = p.c.explain(err, config)
		}
	}
	return err
}

// execConfig is the process as the runtime wants it.
func (c *container) execConfig(spec *runtime.ExecSpec) (*specs.Process, error) {
	config := c.process
	config.Args = spec.Args
	config.Terminal = spec.TTY
	config.Env = mergeEnv(c.process.Env, spec.Env)
	config.Cwd = spec.Cwd
	if config.Cwd == "" {
		config.Cwd = c.cwd
	}
	if config.Cwd == "" {
		config.Cwd = "/"
	}
	home := "/root"
	if spec.User != "" || c.user != "" {
		var err error
		if config.User, home, err = c.userOf(spec.User); err != nil {
			return nil, err
		}
		config.Capabilities = capabilitiesOf(config.User, config.Capabilities)
	}
	defaults := []string{"HOME=" + home}
	if spec.TTY {
		defaults = append(defaults, "TERM=xterm")
		if spec.Width > 0 && spec.Height > 0 {
			config.ConsoleSize = &specs.Box{Width: uint(spec.Width), Height: uint(spec.Height)}
		}
	}
	config.Env = append(mergeEnv(defaults, config.Env), execVariable+"="+spec.ID)
	return &config, nil
}

// watch collects the end of the process.
func (p *process) watch() {
	code, err := p.via.await()
	var ws syscall.WaitStatus
	known := false
	if p.fd != nil {
		ws, known = p.fd.status()
	}
	switch {
	case err == nil:
		p.exit = exitFrom(code, ws, known)
	case known:
		p.exit = exitFrom(0, ws, true)
	default:
		p.err = err
	}
	if p.err == nil {
		p.io.settle()
		p.exit = p.via.ending(p.exit)
	}
	p.c.dropExec(p)
	close(p.ended)
	p.finish()
}

// finish has the runtime forget the process. As long as children hold the pipes,
// they are kept open and drained: closing them would kill the children.
func (p *process) finish() {
	p.io.wait()
	p.via.forget()
	if p.fd != nil {
		p.fd.close()
	}
}

// abandon lets go of a process without ending it.
func (p *process) abandon() {
	p.leave.Do(func() { close(p.abandoned) })
	p.via.abandon()
	p.io.close()
}

// Pid implements runtime.Process.
func (p *process) Pid() int { return p.pid }

// Wait implements runtime.Process.
func (p *process) Wait() (runtime.Exit, error) {
	<-p.ended
	return p.exit, p.err
}

// Signal implements runtime.Process.
func (p *process) Signal(_ context.Context, sig syscall.Signal) error {
	if p.fd == nil {
		return nil
	}
	select {
	case <-p.ended:
		return nil
	default:
	}
	if err := p.fd.signalGroup(p.pid, sig); err != nil {
		return fmt.Errorf("signal exec %s: %w", p.id, err)
	}
	return nil
}

// Resize implements runtime.Process.
func (p *process) Resize(ctx context.Context, width, height uint16) error {
	err := p.via.resize(ctx, width, height)
	select {
	case <-p.ended:
		return nil
	default:
	}
	if err != nil {
		return fmt.Errorf("resize the terminal of exec %s: %w", p.id, err)
	}
	return nil
}

// Close implements runtime.Process.
func (p *process) Close() error {
	select {
	case <-p.ended:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	err := p.KillTree(ctx)
	select {
	case <-p.ended:
	case <-ctx.Done():
		err = errors.Join(err, context.Cause(ctx))
	}
	return err
}
