package containerd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/git-env/git-env/runtime"
)

const (
	namespace   = "git-env"
	snapshotter = "overlayfs"
	runtimeName = "io.containerd.runc.v2"
)

// Backend is a runtime.Backend on containerd. It is safe for concurrent use.
type Backend struct {
	opts   Options
	socket string
	daemon *daemon // nil when an existing containerd is used
	roots  *rootStore

	client *client.Client
	grpc   *grpc.ClientConn // of client

	mu     sync.Mutex // held while the daemon is brought up; guards closed
	closed bool

	running sync.Map // container id -> *container: one object per running container
	starts  keyedMutex
}

var _ runtime.Backend = (*Backend)(nil)

// Open connects to containerd, starting the private one when none is named and
// it is not up. It fails with a *runtime.MissingError when the host lacks
// something.
func Open(ctx context.Context, opts Options) (*Backend, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, requirements()
	}
	b := &Backend{opts: opts, socket: opts.Socket}
	if b.socket == "" {
		b.daemon, err = openDaemon(ctx, opts.DataDir, opts.RunDir)
		if err != nil {
			return nil, err
		}
		b.socket = b.daemon.socket()
		b.opts.RunDir = b.daemon.runDir
	} else {
		if !listening(b.socket) {
			return nil, missingSocket(b.socket)
		}
		for _, name := range []string{"io", "box"} {
			if err := os.MkdirAll(filepath.Join(opts.RunDir, name), 0o700); err != nil {
				return nil, fmt.Errorf("prepare containerd: %w", err)
			}
		}
	}
	b.roots = newRootStore(b, filepath.Join(opts.StateDir, "rootfs"), filepath.Join(filepath.Dir(opts.DataDir), "host"))
	b.roots.sweep()
	if b.client, b.grpc, err = connect(b.socket); err != nil {
		_ = b.Close()
		return nil, fmt.Errorf("connect to containerd: %w", err)
	}
	return b, nil
}

// connect prepares a client; the connection is made by its first request. It is
// made again, with short pauses, whenever it breaks.
func connect(socket string) (*client.Client, *grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", socket)
		}),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(defaults.DefaultMaxRecvMsgSize),
			grpc.MaxCallSendMsgSize(defaults.DefaultMaxSendMsgSize)))
	if err != nil {
		return nil, nil, err
	}
	c, err := client.NewWithConn(conn, client.WithDefaultNamespace(namespace))
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return c, conn, nil
}

// Close implements runtime.Backend.
func (b *Backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	b.running.Range(func(_, value any) bool {
		value.(*container).release()
		return true
	})
	if b.roots != nil {
		b.roots.host.close()
	}
	var errs []error
	if b.client != nil {
		errs = append(errs, b.client.Close())
	}
	if b.daemon != nil {
		errs = append(errs, b.daemon.close())
	}
	return errors.Join(errs...)
}

// conn returns a client whose daemon was up a moment ago: a connection that is
// not ready makes us look, and start the private daemon again when it has died.
func (b *Backend) conn(ctx context.Context) (*client.Client, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errors.New("runtime is closed")
	}
	if b.grpc.GetState() == connectivity.Ready {
		return b.client, nil
	}
	if b.daemon != nil {
		if err := b.daemon.ensure(ctx); err != nil {
			return nil, err
		}
	} else if !listening(b.socket) {
		return nil, missingSocket(b.socket)
	}
	b.grpc.ResetConnectBackoff()
	return b.client, nil
}

// call runs an idempotent request, again when the daemon went away under it.
func (b *Backend) call(ctx context.Context, request func(ctx context.Context, c *client.Client) error) error {
	ctx = namespaces.WithNamespace(ctx, namespace)
	for attempt := 0; ; attempt++ {
		c, err := b.conn(ctx)
		if err != nil {
			return err
		}
		err = request(ctx, c)
		if err == nil || attempt == 3 || ctx.Err() != nil || !errdefs.IsUnavailable(native(err)) {
			return native(err)
		}
		// The connection notices a moment later than the request; a daemon that
		// has just started needs a moment until its services answer.
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Duration(attempt+1) * 10 * time.Millisecond):
		}
	}
}

// once runs a request that must not be repeated.
func (b *Backend) once(ctx context.Context, request func(ctx context.Context, c *client.Client) error) error {
	c, err := b.conn(ctx)
	if err != nil {
		return err
	}
	return native(request(namespaces.WithNamespace(ctx, namespace), c))
}

// native maps gRPC errors to containerd's error classes. Errors of the client's
// own wrappers are mapped already, and would lose their class a second time.
func native(err error) error {
	if _, ok := status.FromError(err); !ok || err == nil {
		return err
	}
	return errgrpc.ToNative(err)
}

// Info implements runtime.Backend.
func (b *Backend) Info(ctx context.Context) (runtime.Info, error) {
	info := runtime.Info{Socket: b.socket, Private: b.daemon != nil, Runtime: runtimeName, Seccomp: seccompSupported()}
	err := b.call(ctx, func(ctx context.Context, c *client.Client) error {
		version, err := c.Version(ctx)
		info.Version = version.Version
		return err
	})
	return info, err
}

// List implements runtime.Backend.
func (b *Backend) List(ctx context.Context, labelKey, labelValue string) ([]string, error) {
	var ids []string
	err := b.call(ctx, func(ctx context.Context, c *client.Client) error {
		found, err := c.ContainerService().List(ctx, fmt.Sprintf("labels.%q==%q", labelKey, labelValue))
		ids = ids[:0]
		for _, f := range found {
			ids = append(ids, f.ID)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	return ids, nil
}

func (b *Backend) ioDir() string                { return filepath.Join(b.opts.RunDir, "io") }
func (b *Backend) boxDir(id string) string      { return filepath.Join(b.opts.RunDir, "box", id) }
func (b *Backend) warn(format string, a ...any) { fmt.Fprintf(b.opts.Log, format+"\n", a...) }

// keyedMutex serialises work by key.
type keyedMutex struct {
	mu   sync.Mutex
	held map[string]*keyedLock // guarded by mu
}

type keyedLock struct {
	mu    sync.Mutex
	users int // guarded by keyedMutex.mu
}

func (k *keyedMutex) lock(key string) (unlock func()) {
	k.mu.Lock()
	if k.held == nil {
		k.held = make(map[string]*keyedLock)
	}
	l := k.held[key]
	if l == nil {
		l = &keyedLock{}
		k.held[key] = l
	}
	l.users++
	k.mu.Unlock()
	l.mu.Lock()
	return func() {
		l.mu.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.held, key)
		}
	}
}
