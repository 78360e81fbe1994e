package containerd

import (
	"context"
	"errors"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/git-env/git-env/runtime"
)

// shimExec is a process that containerd has the runtime start: for containers
// whose first process cannot.
type shimExec struct{ p *process }

// start implements supervisor.
func (x *shimExec) start(ctx context.Context, config *specs.Process, streams runtime.IO) (err error) {
	b := x.p.c.b
	// Several containers may have an exec of one id.
	if x.p.io, err = newStdio(b.ioDir(), x.p.c.id+"-"+x.p.id, streams, config.Terminal); err != nil {
		return err
	}
	made := false
	defer func() {
		if err == nil {
			return
		}
		x.p.io.unlink()
		x.p.io.close()
		if x.p.fd != nil {
			x.p.fd.close()
		}
		if made {
			go x.undo() // after the answer: a failed command is not to wait for it
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
			ContainerID: x.p.c.id, ExecID: x.p.id, Terminal: config.Terminal, Spec: encoded,
			Stdin: x.p.io.stdin, Stdout: x.p.io.stdout, Stderr: x.p.io.stderr,
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
		started, err := c.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: x.p.c.id, ExecID: x.p.id})
		if err == nil {
			x.p.pid = int(started.Pid)
		}
		return err
	})
	if err != nil {
		return err
	}
	if x.p.fd, err = openPidfd(x.p.pid); err != nil {
		x.p.fd = nil // it was quick, and has been reaped
	}
	return x.p.io.start(x.closeInput)
}

// ending recognises what the kernel refused.
func (x *shimExec) ending(exit runtime.Exit) runtime.Exit {
	if exit.Code == 1 && refusedByKernel(x.p.command, x.p.io.words()) {
		exit.Code = codeNotExecutable
	}
	return exit
}

// abandon does nothing: await looks itself.
func (x *shimExec) abandon() {}

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
func (x *shimExec) await() (int, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-x.p.abandoned:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		var code int
		err := x.p.c.b.call(ctx, func(ctx context.Context, c *client.Client) error {
			r, err := c.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: x.p.c.id, ExecID: x.p.id})
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
		if x.p.fd == nil || !x.p.fd.alive() || !x.p.c.fd.alive() {
			return 128 + int(syscall.SIGKILL), nil
		}
		select { // a daemon that is being restarted
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (x *shimExec) forget() {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	select {
	case <-x.p.abandoned:
		return
	default:
	}
	if err := x.delete(ctx); err != nil && x.p.c.fd.alive() {
		x.p.c.b.warn("exec %s: %v", x.p.id, err)
	}
}

// delete has the runtime drop its record of the process.
func (x *shimExec) delete(ctx context.Context) error {
	err := x.p.c.b.call(ctx, func(ctx context.Context, c *client.Client) error {
		_, err := c.TaskService().DeleteProcess(ctx, &tasks.DeleteProcessRequest{ContainerID: x.p.c.id, ExecID: x.p.id})
		return err
	})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// undo takes back a failed start. When it failed for lack of time or of an
// answer, the process may come up all the same, and must not stay.
func (x *shimExec) undo() {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	for pause := 5 * time.Millisecond; x.p.c.fd.alive(); pause = min(2*pause, time.Second) {
		err := x.delete(ctx)
		if err == nil {
			return
		}
		// Refused while it runs: killing is what helps.
		_ = x.p.c.b.call(ctx, func(ctx context.Context, c *client.Client) error {
			_, err := c.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: x.p.c.id, ExecID: x.p.id, Signal: uint32(syscall.SIGKILL)})
			return err
		})
		select {
		case <-ctx.Done():
			x.p.c.b.warn("exec %s: %v", x.p.id, err)
			return
		case <-time.After(pause):
		}
	}
}

// closeInput tells the shim, which holds the pipe open, that input has ended.
func (x *shimExec) closeInput() {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	select {
	case <-x.p.ended:
		return
	default:
	}
	// Fails only for a process that is gone.
	_ = x.p.c.b.call(ctx, func(ctx context.Context, c *client.Client) error {
		_, err := c.TaskService().CloseIO(ctx, &tasks.CloseIORequest{ContainerID: x.p.c.id, ExecID: x.p.id, Stdin: true})
		return err
	})
}

// resize implements supervisor.
func (x *shimExec) resize(ctx context.Context, width, height uint16) error {
	err := x.p.c.b.call(ctx, func(ctx context.Context, c *client.Client) error {
		_, err := c.TaskService().ResizePty(ctx, &tasks.ResizePtyRequest{
			ContainerID: x.p.c.id, ExecID: x.p.id, Width: uint32(width), Height: uint32(height)})
		return err
	})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}
