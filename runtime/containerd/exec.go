package containerd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
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

	ended chan struct{} // closed when exit and err are set and the output is drained
	exit  runtime.Exit
	err   error

	abandoned chan struct{} // closed when the Backend is closed
	leave     sync.Once
}

var _ runtime.Process = (*process)(nil)

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
	p := &process{c: c, id: spec.ID, command: spec.Args[0], ended: make(chan struct{}), abandoned: make(chan struct{})}
	if err := c.addExec(p); err != nil {
		return nil, err
	}
	if err := p.start(ctx, config, streams); err != nil {
		c.dropExec(p)
		return nil, c.explain(err, config)
	}
	go p.watch()
	return p, nil
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
	if c.user != "" {
		if err := c.lookUpUser(); err != nil {
			return nil, err
		}
		config.User, home = c.identity.User, c.identity.home
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

// start has the process made and started, and its streams connected.
func (p *process) start(ctx context.Context, config *specs.Process, streams runtime.IO) (err error) {
	b := p.c.b
	// Several containers may have an exec of one id.
	if p.io, err = newStdio(b.ioDir(), p.c.id+"-"+p.id, streams, config.Terminal); err != nil {
		return err
	}
	made := false
	defer func() {
		if err == nil {
			return
		}
		p.io.unlink()
		p.io.close()
		if p.fd != nil {
			p.fd.close()
		}
		if made {
			go p.undo() // after the answer: a failed command is not to wait for it
		}
	}()
	encoded, err := typeurl.MarshalAnyToProto(config)
	if err != nil {
		return err
	}
	tries := 0
	err = b.call(ctx, func(ctx context.Context, c *client.Client) error {
		tries++
		_, err := c.TaskService().Exec(ctx, &tasks.ExecProcessRequest{
			ContainerID: p.c.id, ExecID: p.id, Terminal: config.Terminal, Spec: encoded,
			Stdin: p.io.stdin, Stdout: p.io.stdout, Stderr: p.io.stderr,
		})
		if tries > 1 && errdefs.IsAlreadyExists(native(err)) {
			return nil // made by a request whose answer was lost
		}
		return err
	})
	if err != nil {
		return err
	}
	made = true
	err = b.once(ctx, func(ctx context.Context, c *client.Client) error {
		started, err := c.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: p.c.id, ExecID: p.id})
		if err == nil {
			p.pid = int(started.Pid)
		}
		return err
	})
	if err != nil {
		return err
	}
	if p.fd, err = openPidfd(p.pid); err != nil {
		p.fd = nil // it was quick, and has been reaped
	}
	return p.io.start(p.closeInput)
}

// watch collects the end of the process.
func (p *process) watch() {
	code, err := p.await()
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
		if p.exit.Code == 1 && refusedByKernel(p.command, p.io.words()) {
			p.exit.Code = codeNotExecutable
		}
	}
	p.c.dropExec(p)
	close(p.ended)
	p.finish()
}

// codeNotExecutable is the exit code of a command that the kernel refuses.
const codeNotExecutable = 126

// refusedByKernel recognises what runc leaves behind when execve(2) fails at the
// very last: too late for an error, it prints a line as the command and exits 1.
func refusedByKernel(command, output string) bool {
	rest, ok := strings.CutPrefix(strings.ReplaceAll(output, "\r\n", "\n"), "exec ")
	if !ok || !strings.HasSuffix(rest, "\n") || strings.Count(rest, "\n") != 1 {
		return false
	}
	name, reason, ok := strings.Cut(rest, ": ")
	if !ok || path.Base(name) != path.Base(command) {
		return false
	}
	switch strings.TrimSuffix(reason, "\n") {
	case "exec format error", "no such file or directory", "permission denied", "text file busy",
		"argument list too long", "accessing a corrupted shared library", "too many levels of symbolic links":
		return true
	}
	return false
}

// await asks the runtime for the exit code until it knows, across restarts of
// containerd. When nobody knows any more, the process counts as killed.
func (p *process) await() (int, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-p.abandoned:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		var code int
		err := p.c.b.call(ctx, func(ctx context.Context, c *client.Client) error {
			r, err := c.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: p.c.id, ExecID: p.id})
			if err == nil {
				code = int(r.ExitStatus)
			}
			return err
		})
		if err == nil {
			return code, nil
		}
		if ctx.Err() != nil {
			return 0, errors.New("runtime was closed")
		}
		if p.fd == nil || !p.fd.alive() || !p.c.fd.alive() {
			return 128 + int(syscall.SIGKILL), nil
		}
		select { // a daemon that is being restarted
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// finish has the runtime forget the process. As long as children hold the pipes,
// they are kept open and drained: closing them would kill the children.
func (p *process) finish() {
	p.io.wait()
	p.forget()
	if p.fd != nil {
		p.fd.close()
	}
}

func (p *process) forget() {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	select {
	case <-p.abandoned:
		return
	default:
	}
	if err := p.delete(ctx); err != nil && p.c.fd.alive() {
		p.c.b.warn("exec %s: %v", p.id, err)
	}
}

// delete has the runtime drop its record of the process.
func (p *process) delete(ctx context.Context) error {
	err := p.c.b.call(ctx, func(ctx context.Context, c *client.Client) error {
		_, err := c.TaskService().DeleteProcess(ctx, &tasks.DeleteProcessRequest{ContainerID: p.c.id, ExecID: p.id})
		return err
	})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// undo takes back a failed start. When it failed for lack of time or of an
// answer, the process may come up all the same, and must not stay.
func (p *process) undo() {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	for pause := 5 * time.Millisecond; p.c.fd.alive(); pause = min(2*pause, time.Second) {
		err := p.delete(ctx)
		if err == nil {
			return
		}
		// Refused while it runs: killing is what helps.
		_ = p.c.b.call(ctx, func(ctx context.Context, c *client.Client) error {
			_, err := c.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: p.c.id, ExecID: p.id, Signal: uint32(syscall.SIGKILL)})
			return err
		})
		select {
		case <-ctx.Done():
			p.c.b.warn("exec %s: %v", p.id, err)
			return
		case <-time.After(pause):
		}
	}
}

// abandon lets go of a process without ending it.
func (p *process) abandon() {
	p.leave.Do(func() { close(p.abandoned) })
	p.io.close()
}

// closeInput tells the shim, which holds the pipe open, that input has ended.
func (p *process) closeInput() {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	select {
	case <-p.ended:
		return
	default:
	}
	// Fails only for a process that is gone.
	_ = p.c.b.call(ctx, func(ctx context.Context, c *client.Client) error {
		_, err := c.TaskService().CloseIO(ctx, &tasks.CloseIORequest{ContainerID: p.c.id, ExecID: p.id, Stdin: true})
		return err
	})
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
	err := p.c.b.call(ctx, func(ctx context.Context, c *client.Client) error {
		_, err := c.TaskService().ResizePty(ctx, &tasks.ResizePtyRequest{
			ContainerID: p.c.id, ExecID: p.id, Width: uint32(width), Height: uint32(height)})
		return err
	})
	select {
	case <-p.ended:
		return nil
	default:
	}
	if err != nil && !errdefs.IsNotFound(err) {
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
