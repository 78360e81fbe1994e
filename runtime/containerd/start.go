package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/git-env/git-env/runtime"
	"github.com/git-env/git-env/runtime/network"
)

// removeTimeout bounds the wait for the processes of a killed container.
const removeTimeout = 20 * time.Second

// Start implements runtime.Backend.
func (b *Backend) Start(ctx context.Context, spec runtime.Spec) (runtime.Container, error) {
	if err := checkID(spec.ID); err != nil {
		return nil, err
	}
	defer b.starts.lock(spec.ID)()
	c, err := b.attach(ctx, spec.ID)
	if err == nil {
		return c, nil
	}
	if !errors.Is(err, runtime.ErrNotFound) {
		return nil, err
	}
	defer b.roots.lock(spec.RootFS)()
	if c, err = b.start(ctx, &spec); err != nil {
		return nil, fmt.Errorf("start container: %w", err)
	}
	return c, nil
}

func (b *Backend) start(ctx context.Context, spec *runtime.Spec) (_ *container, err error) {
	level, err := isolationOf(spec.Isolation)
	if err != nil {
		return nil, err
	}
	user, err := b.userOf(ctx, spec.RootFS)
	if err != nil {
		return nil, err
	}
	if user != nil {
		return nil, fmt.Errorf("container %s is running on root filesystem %s", user.id, spec.RootFS)
	}
	plan, err := b.plan(ctx, spec.RootFS)
	if err != nil {
		return nil, err
	}
	config, err := b.ociSpec(ctx, spec, plan)
	if err != nil {
		return nil, err
	}
	labels := containerLabels(spec)
	labels[labelIsolation] = string(level)
	if err := b.create(ctx, spec, config, labels); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			if undo := b.remove(context.WithoutCancel(ctx), spec.ID); undo != nil {
				b.warn("container %s: %v", spec.ID, undo)
			}
		}
	}()
	pid, net, err := b.run(ctx, spec, plan.root)
	if err != nil {
		return nil, err
	}
	return newContainer(b, spec.ID, pid, config, labels, net)
}

func containerLabels(spec *runtime.Spec) map[string]string {
	labels := map[string]string{labelRootFS: spec.RootFS, labelCwd: spec.Cwd, labelUser: spec.Image.User,
		labelNetwork: encodeRules(ownRules(spec))}
	if spec.Cwd == "" {
		labels[labelCwd] = spec.Image.WorkingDir
	}
	for key, value := range spec.Labels {
		labels[key] = value
	}
	return labels
}

// create records the container with containerd, replacing a dead one of its id.
func (b *Backend) create(ctx context.Context, spec *runtime.Spec, config *specs.Spec, labels map[string]string) error {
	encoded, err := typeurl.MarshalAny(config)
	if err != nil {
		return err
	}
	// A state directory of our own: by default all containerds of a host share one,
	// and the ids in it.
	options, err := typeurl.MarshalAny(&options.Options{Root: filepath.Join(b.opts.RunDir, "runc")})
	if err != nil {
		return err
	}
	record := containers.Container{
		ID:      spec.ID,
		Labels:  labels,
		Image:   spec.Image.Ref,
		Runtime: containers.RuntimeInfo{Name: runtimeName, Options: options},
		Spec:    encoded,
	}
	create := func(ctx context.Context, c *client.Client) error {
		_, err := c.ContainerService().Create(ctx, record)
		return err
	}
	err = b.call(ctx, create)
	if errdefs.IsAlreadyExists(err) {
		if err := b.remove(ctx, spec.ID); err != nil {
			return err
		}
		err = b.call(ctx, create)
	}
	return err
}

// run makes and starts the container's first process, and its network.
func (b *Backend) run(ctx context.Context, spec *runtime.Spec, root *types.Mount) (pid int, net *network.Network, err error) {
	var starting *startedNetwork
	err = b.call(ctx, func(ctx context.Context, c *client.Client) error {
		created, err := c.TaskService().Create(ctx, &tasks.CreateTaskRequest{ContainerID: spec.ID, Rootfs: []*types.Mount{root}})
		if err != nil {
			return err
		}
		pid = int(created.Pid)
		_, _ = starting.wait(true) // of an attempt before this one
		starting = b.startNetwork(spec.ID, pid, ownRules(spec))
		_, err = c.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: spec.ID})
		return err
	})
	net, netErr := starting.wait(err != nil)
	if err == nil && netErr != nil {
		return 0, nil, netErr
	}
	if err != nil {
		return 0, nil, errors.New(oneLine(err.Error()))
	}
	return pid, net, nil
}

// Get implements runtime.Backend.
func (b *Backend) Get(ctx context.Context, id string) (runtime.Container, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	c, err := b.attach(ctx, id)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// attach returns the object of a running container, making one for a container
// that was started by somebody before us.
func (b *Backend) attach(ctx context.Context, id string) (*container, error) {
	if c, ok := b.running.Load(id); ok && c.(*container).fd.alive() {
		return c.(*container), nil
	}
	notRunning := &runtime.Error{Kind: runtime.ErrNotFound, Message: "container " + id + " is not running"}
	var status *task.Process
	var record containers.Container
	err := b.call(ctx, func(ctx context.Context, c *client.Client) error {
		got, err := c.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: id})
		if err != nil {
			return err
		}
		status = got.Process
		record, err = c.ContainerService().Get(ctx, id)
		return err
	})
	if errdefs.IsNotFound(err) {
		return nil, notRunning
	}
	if err != nil {
		return nil, fmt.Errorf("look at container %s: %w", id, err)
	}
	switch status.Status {
	case task.Status_RUNNING, task.Status_PAUSED, task.Status_PAUSING:
	default:
		return nil, notRunning
	}
	var config specs.Spec
	if err := json.Unmarshal(record.Spec.GetValue(), &config); err != nil {
		return nil, fmt.Errorf("look at container %s: %w", id, err)
	}
	rules, err := labelledRules(record.Labels)
	if err != nil {
		return nil, fmt.Errorf("look at container %s: %w", id, err)
	}
	net, err := b.joinNetwork(id, int(status.Pid), rules)
	if errors.Is(err, network.ErrTaken) {
		b.warn("container %s: %v", id, err)
		err = nil // it has a network, if none that we could change
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("network of container %s: %w", id, err)
	}
	c, err := newContainer(b, id, int(status.Pid), &config, record.Labels, net)
	if err != nil {
		return nil, notRunning // it has ended meanwhile
	}
	// Whoever froze it, to fork it or to kill something, did not come back.
	if err := c.cgroup.thaw(); err != nil {
		b.warn("container %s: %v", id, err)
	}
	return c, nil
}

// Remove implements runtime.Backend.
func (b *Backend) Remove(ctx context.Context, id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	defer b.starts.lock(id)()
	if err := b.remove(ctx, id); err != nil {
		return fmt.Errorf("remove container %s: %w", id, err)
	}
	return nil
}

func (b *Backend) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	old, known := b.running.Load(id)
	if known {
		// The end of the first process is the end of all, whatever containerd does.
		c := old.(*container)
		_ = c.fd.signal(9)
		_ = c.cgroup.thaw()
	}
	defer b.holdPipes(id)()
	if err := b.deleteTask(ctx, id); err != nil {
		return err
	}
	if known {
		// On its way out its first process may still be seen: a start that comes
		// now is not to get this container back.
		b.running.CompareAndDelete(id, old)
	}
	rootID := ""
	err := b.call(ctx, func(ctx context.Context, c *client.Client) error {
		record, err := c.ContainerService().Get(ctx, id)
		if err != nil {
			return err
		}
		rootID = record.Labels[labelRootFS]
		return c.ContainerService().Delete(ctx, id)
	})
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if rootID != "" {
		_ = os.RemoveAll(b.linkDir(rootID))
	}
	return os.RemoveAll(b.boxDir(id))
}

// deleteTask kills a container's processes and waits until they have ended and
// the root filesystem is unmounted.
func (b *Backend) deleteTask(ctx context.Context, id string) error {
	for {
		gone, err := b.killTask(ctx, id)
		if err != nil {
			return err
		}
		if gone {
			return b.tryDelete(ctx, id)
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("its processes do not end: %w", context.Cause(ctx))
		}
	}
}

// holdPipes opens the named pipes that a dead daemon left of a container's execs.
// A shim that was just opening one waits for its other end, and answers no
// request until it comes.
func (b *Backend) holdPipes(id string) (release func()) {
	var held []*os.File
	entries, _ := os.ReadDir(b.ioDir())
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), id+"-") && e.Type() == os.ModeNamedPipe {
			f, err := os.OpenFile(filepath.Join(b.ioDir(), e.Name()), os.O_RDWR|syscall.O_NONBLOCK, 0)
			if err == nil {
				held = append(held, f)
			}
		}
	}
	return func() {
		for _, f := range held {
			_ = f.Close()
		}
	}
}

// killPatience is how long killed processes have to end before they are killed
// again: a request may go to a shim that is not up yet after a restart, and who
// supervised the container before may have died while it was frozen, which keeps
// the dead from dying.
const killPatience = time.Second

// killTask kills what is in a container once and reports whether all of it ended.
func (b *Backend) killTask(ctx context.Context, id string) (gone bool, err error) {
	err = b.call(ctx, func(ctx context.Context, c *client.Client) error {
		_, _ = c.TaskService().Resume(ctx, &tasks.ResumeTaskRequest{ContainerID: id})
		_, err := c.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: 9, All: true})
		if err != nil && !errdefs.IsNotFound(native(err)) {
			return nil // dead, or never started: waiting will tell
		}
		return err
	})
	if errdefs.IsNotFound(err) {
		return true, nil // no process; a task that never ran or has ended may still be there
	}
	if err != nil {
		return false, err
	}
	wait, cancel := context.WithTimeout(ctx, killPatience)
	defer cancel()
	err = b.call(wait, func(ctx context.Context, c *client.Client) error {
		_, err := c.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: id})
		return err
	})
	// Whoever cannot be waited for is deleted, which says what is wrong.
	return err == nil || wait.Err() == nil, nil
}

// tryDelete forgets a task. One whose processes are still ending refuses, and one
// whose shim was killed fails in ways of its own until containerd has noticed
// and cleaned up behind it.
func (b *Backend) tryDelete(ctx context.Context, id string) error {
	const patience = 3 * time.Second
	for start := time.Now(); ; {
		err := b.call(ctx, func(ctx context.Context, c *client.Client) error {
			_, err := c.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
			return err
		})
		if err == nil || errdefs.IsNotFound(err) {
			return nil
		}
		if ctx.Err() != nil || !errdefs.IsFailedPrecondition(err) && time.Since(start) > patience {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
