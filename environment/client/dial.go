package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/secret"
	"github.com/git-env/git-env/internal/version"
	"github.com/git-env/git-env/internal/wire"
)

// ErrNoDaemon is returned when no daemon runs and none was to be started.
var ErrNoDaemon = errors.New("no daemon is running for this repository")

// How often and how long apart connecting is tried while daemons come and go.
const (
	connectTries = 6
	connectPause = 20 * time.Millisecond
)

// staleAfter is how long a connection may wait for its request: the daemon drops
// those that say nothing.
const staleAfter = 15 * time.Second

// helloTimeout bounds how long a daemon may take to greet a connection it
// accepted.
const helloTimeout = 10 * time.Second

// Options says how to connect.
type Options struct {
	// Exe is the git-env binary to start as the daemon.
	Exe string
	// Start starts a daemon when none runs.
	Start bool
	// AnyVersion talks to a daemon of whatever version: for asking how it is and
	// for stopping it, which never change.
	AnyVersion bool
	// Secret fetches the value of a secret when the daemon asks for it; nil refuses.
	Secret func(context.Context, secret.Spec) (secret.Value, error)
}

// Client is a way to one repository's daemon; each call is a connection of its
// own. Safe for concurrent use.
type Client struct {
	dir  string // $GIT_COMMON_DIR/env
	git  string // $GIT_COMMON_DIR
	opts Options
	// Started tells, after Dial, whether this client started the daemon.
	Started bool
	pending *wire.Conn // the connection that Dial made, for the first call
	dialed  time.Time  // when that was
}

// Dial connects to the daemon of a repository, starting one if opts.Start. A
// daemon of another version is asked to leave, which it does unless it is busy.
func Dial(ctx context.Context, repo *gitcmd.Repo, opts Options) (*Client, error) {
	c := &Client{dir: filepath.Join(repo.CommonDir, "env"), git: repo.CommonDir, opts: opts}
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	c.pending, c.dialed = conn, time.Now()
	return c, nil
}

// Close drops the connection if no call used it.
func (c *Client) Close() error {
	if c.pending != nil {
		err := c.pending.Close()
		c.pending = nil
		return err
	}
	return nil
}

func (c *Client) take(ctx context.Context) (*wire.Conn, error) {
	if conn := c.pending; conn != nil {
		c.pending = nil
		if time.Since(c.dialed) < staleAfter {
			return conn, nil
		}
		_ = conn.Close()
	}
	return c.connect(ctx)
}

func (c *Client) connect(ctx context.Context) (*wire.Conn, error) {
	for try := range connectTries {
		if try > 1 { // a daemon is on its way out and does not take us on
			select {
			case <-time.After(time.Duration(try) * connectPause):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		conn, hello, err := c.greet(ctx)
		switch {
		case err == nil && (c.opts.AnyVersion || hello.Version == version.String() && hello.Protocol == wire.Protocol):
			return conn, nil
		case err == nil:
			if err := c.replace(ctx, conn, hello); err != nil {
				return nil, err
			}
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, fs.ErrPermission):
			if err := environment.CheckRoot(); err != nil {
				return nil, err
			}
			return nil, environment.Errorf(environment.ExitCapability, "cannot reach the daemon of this repository: %w", err)
		case !c.opts.Start:
			return nil, ErrNoDaemon
		}
		if !c.opts.Start {
			return nil, ErrNoDaemon
		}
		if err := c.start(ctx); err != nil {
			return nil, err
		}
	}
	return nil, environment.Errorf(environment.ExitFailed, "the daemon of this repository does not answer").
		WithHint("see %s", filepath.Join(c.dir, "daemon.log"))
}

// greet connects and exchanges hellos.
func (c *Client) greet(ctx context.Context) (*wire.Conn, *wire.HelloMsg, error) {
	raw, err := dialSocket(ctx, c.dir)
	if err != nil {
		return nil, nil, err
	}
	conn := wire.New(raw)
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	_ = raw.SetDeadline(time.Now().Add(helloTimeout))
	err = conn.SendJSON(wire.Hello, wire.HelloMsg{Protocol: wire.Protocol, Version: version.String(), Pid: os.Getpid()})
	if err == nil {
		var t wire.Type
		var data []byte
		if t, data, err = conn.Recv(); err == nil {
			var hello wire.HelloMsg
			if t != wire.Hello {
				err = fmt.Errorf("unexpected frame %q", t)
			} else if err = json.Unmarshal(data, &hello); err == nil {
				_ = raw.SetDeadline(time.Time{})
				return conn, &hello, nil
			}
		}
	}
	_ = conn.Close()
	return nil, nil, err
}

// replace asks a daemon of another version to leave.
func (c *Client) replace(ctx context.Context, conn *wire.Conn, hello *wire.HelloMsg) error {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	other := func(err error) error {
		return environment.Errorf(environment.ExitBusy, "the daemon of this repository is of another version (%s, this is %s) and %v",
			hello.Version, version.String(), err).WithHint("let its commands finish, or stop it with 'git env daemon stop --force'")
	}
	if !c.opts.Start {
		return other(errors.New("still running"))
	}
	params, err := json.Marshal(api.DaemonStop{})
	if err != nil {
		return err
	}
	if err := conn.SendJSON(wire.Request, wire.RequestMsg{Method: api.MethodDaemonStop, Params: params}); err != nil {
		return nil // it left by itself
	}
	for {
		t, data, err := conn.Recv()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil || t == wire.Result {
			return nil
		}
		if t == wire.Failure {
			var f wire.FailureMsg
			if err := json.Unmarshal(data, &f); err != nil {
				return other(err)
			}
			return other(errors.New(f.Msg))
		}
	}
}

// dialSocket connects to the daemon's socket in dir. The path goes through a
// directory descriptor, because a socket's address holds 107 bytes at most.
func dialSocket(ctx context.Context, dir string) (net.Conn, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var d net.Dialer
	return d.DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(fd)+"/daemon.sock")
}

// start runs the daemon and waits until it says that it is ready. Clients that
// come at once queue on a lock, so that one of them starts it.
func (c *Client) start(ctx context.Context) error {
	if err := environment.CheckRoot(); err != nil {
		return err
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return environment.Errorf(environment.ExitFailed, "cannot make the state directory: %w", err)
	}
	lock, err := durable.Lock(ctx, filepath.Join(c.dir, "daemon.start"))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return environment.Errorf(environment.ExitFailed, "cannot lock the start of the daemon: %w", err)
	}
	defer lock.Close()
	if conn, err := dialSocket(ctx, c.dir); err == nil {
		_ = conn.Close() // another client was quicker
		return nil
	}
	c.Started = true
	return c.spawn(ctx)
}

func (c *Client) spawn(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(c.dir, "daemon.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return environment.Errorf(environment.ExitFailed, "cannot open the daemon's log: %w", err)
	}
	defer log.Close()
	ready, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	cmd := exec.Command(c.opts.Exe, "daemon", "serve", c.git)
	cmd.Args[0] = "git-env"
	cmd.Env = daemonEnviron(os.Environ())
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return environment.Errorf(environment.ExitFailed, "cannot start the daemon: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Now()) })
	defer stop()
	answer, err := io.ReadAll(io.LimitReader(ready, 64<<10))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil && strings.TrimSpace(string(answer)) == "ready" {
		return cmd.Process.Release()
	}
	_ = cmd.Wait()
	var f wire.FailureMsg
	if json.Unmarshal(answer, &f) == nil && f.Msg != "" {
		return &environment.Error{Code: f.Code, Msg: f.Msg, Hint: f.Hint}
	}
	return environment.Errorf(environment.ExitFailed, "the daemon ended before it was ready").
		WithHint("see %s", filepath.Join(c.dir, "daemon.log"))
}

// daemonEnviron drops what git hands down to its children: it describes one
// command's repository and index, and the daemon serves many commands.
func daemonEnviron(environ []string) []string {
	out := environ[:0:0]
	for _, kv := range environ {
		if !strings.HasPrefix(kv, "GIT_") {
			out = append(out, kv)
		}
	}
	return out
}
