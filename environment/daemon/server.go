package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/internal/version"
	"github.com/git-env/git-env/internal/wire"
)

// requestTimeout bounds how long a client may take to say what it wants.
const requestTimeout = 30 * time.Second

type server struct {
	engine  *environment.Engine
	lock    io.Closer
	l       *net.UnixListener
	log     *slog.Logger
	dir     string
	started time.Time

	quit     chan struct{}
	quitOnce sync.Once
	wg       sync.WaitGroup

	mu      sync.Mutex
	active  int       // connections, guarded by mu
	last    time.Time // when active last changed, guarded by mu
	work    int       // requests under way that change something, guarded by mu
	leaving bool      // nothing more is taken on, guarded by mu
}

// patience is how long a client that is to go may take to read what is sent.
const patience = 5 * time.Second

// acceptPause is how long to wait when connections cannot be accepted, for lack
// of descriptors say.
const acceptPause = 50 * time.Millisecond

// serve accepts connections until ctx ends, a stop is asked for, or nothing has
// needed the daemon for the engine's idle time.
func (s *server) serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.last = time.Now()
	go s.watchIdle(ctx)
	go func() {
		select {
		case <-ctx.Done():
		case <-s.quit:
		}
		_ = s.l.Close()
	}()
	for {
		c, err := s.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			s.log.Warn("cannot accept a connection", "err", err)
			time.Sleep(acceptPause)
			continue
		}
		s.wg.Add(1)
		go func() {
			defer s.wg.Done()
			s.handle(ctx, c)
		}()
	}
	cancel()
	s.wg.Wait()
}

func (s *server) stop() { s.quitOnce.Do(func() { close(s.quit) }) }

func (s *server) close() error {
	_ = os.Remove(filepath.Join(s.dir, "daemon.sock"))
	err := s.engine.Close()
	return errors.Join(err, s.lock.Close())
}

// watchIdle suspends environments that nothing uses and ends the daemon when
// none is left.
func (s *server) watchIdle(ctx context.Context) {
	idle := s.engine.IdleTimeout()
	tick := time.NewTicker(max(idle/10, 50*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		left := s.engine.SuspendIdle(ctx, idle)
		s.mu.Lock()
		s.leaving = left == 0 && s.active == 0 && time.Since(s.last) > idle
		leaving := s.leaving
		s.mu.Unlock()
		if leaving {
			s.log.Info("idle, leaving")
			s.stop()
			return
		}
	}
}

// begin counts a connection; false means that it came too late. Its client hears
// nothing, and starts the next daemon.
func (s *server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving {
		return false
	}
	s.active++
	return true
}

func (s *server) end() {
	s.mu.Lock()
	s.active--
	s.last = time.Now()
	s.mu.Unlock()
}

// reads are the methods that a stop need not wait for.
func reads(method string) bool {
	switch method {
	case api.MethodStatus, api.MethodLogs, api.MethodDaemonStatus, api.MethodDaemonStop:
		return true
	}
	return false
}

// take counts a request that changes something.
func (s *server) take(method string) (done func(), err error) {
	if reads(method) {
		return func() {}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving {
		return nil, environment.Errorf(environment.ExitBusy, "the daemon is leaving").WithHint("try again")
	}
	s.work++
	return func() {
		s.mu.Lock()
		s.work--
		s.mu.Unlock()
	}, nil
}

// leave makes sure that nothing is begun any more before the daemon says that it
// leaves. Unless forced it refuses while something is under way.
func (s *server) leave(ctx context.Context, force bool) error {
	if err := s.engine.Quiesce(ctx, force); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.work > 0 && !force {
		return environment.Errorf(environment.ExitBusy, "%d command(s) are under way", s.work).
			WithHint("wait for them, or 'git env daemon stop --force' ends them")
	}
	s.leaving = true
	return nil
}

// handle serves one connection: hello, one request, its answer.
func (s *server) handle(ctx context.Context, c net.Conn) {
	conn := wire.New(c)
	defer conn.Close()
	if !s.begin() {
		return
	}
	defer s.end()
	_ = c.SetReadDeadline(time.Now().Add(requestTimeout))
	if err := conn.SendJSON(wire.Hello, wire.HelloMsg{Protocol: wire.Protocol, Version: version.String(), Pid: os.Getpid()}); err != nil {
		return
	}
	if t, _, err := conn.Recv(); err != nil || t != wire.Hello {
		return
	}
	t, data, err := conn.Recv()
	if err != nil || t != wire.Request {
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	var req wire.RequestMsg
	if err := json.Unmarshal(data, &req); err != nil {
		return
	}
	start := time.Now()
	result, err := s.request(ctx, conn, req)
	s.log.Info("request", "method", req.Method, "ms", time.Since(start).Milliseconds(), "err", err)
	if !reads(req.Method) {
		for _, n := range s.engine.Notices() {
			reporter{conn}.Warn(n)
		}
	}
	if err == nil && req.Method == api.MethodDaemonStop {
		defer s.stop()
	}
	if err == nil {
		err = conn.SendJSON(wire.Result, result)
	}
	if err != nil {
		_ = conn.SendJSON(wire.Failure, failure(err))
	}
}

func failure(err error) wire.FailureMsg {
	const longest = 64 << 10 // bytes, far below what a frame takes
	msg := err.Error()
	return wire.FailureMsg{Code: environment.ExitCode(err), Msg: msg[:min(len(msg), longest)], Hint: environment.Hint(err)}
}

func (s *server) request(ctx context.Context, conn *wire.Conn, req wire.RequestMsg) (any, error) {
	done, err := s.take(req.Method)
	if err != nil {
		return nil, err
	}
	defer done()
	return s.dispatch(ctx, conn, req)
}

// decode reads the parameters of a request.
func decode[T any](req wire.RequestMsg) (T, error) {
	var p T
	if err := json.Unmarshal(req.Params, &p); err != nil {
		return p, environment.Errorf(environment.ExitUsage, "bad parameters of %s: %w", req.Method, err)
	}
	return p, nil
}

// call decodes the parameters, runs f and returns its answer.
func call[P, R any](req wire.RequestMsg, f func(P) (R, error)) (any, error) {
	p, err := decode[P](req)
	if err != nil {
		return nil, err
	}
	return f(p)
}

func (s *server) dispatch(ctx context.Context, conn *wire.Conn, req wire.RequestMsg) (any, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A client that does not read, stopped in its terminal say, would otherwise
	// hold up the end of what it asked for.
	stop := context.AfterFunc(ctx, func() { conn.Hurry(patience) })
	defer stop()
	asks := newAsker(conn)
	ctx = environment.WithSecretSource(ctx, asks.ask)
	rep := reporter{conn}
	if req.Method == api.MethodRun {
		p, err := decode[api.Run](req)
		if err != nil {
			return nil, err
		}
		return s.run(ctx, cancel, conn, p, rep, asks)
	}
	go func() { // the client has only answers to say; its end is a wish to cancel
		for {
			if t, data, err := conn.Recv(); err != nil || !asks.take(t, data) {
				break
			}
		}
		close(asks.gone)
		cancel()
	}()
	switch req.Method {
	case api.MethodCreate:
		return call(req, func(p api.Create) (*api.Created, error) { return s.engine.Create(ctx, p, rep) })
	case api.MethodSetup:
		return call(req, func(p api.Setup) (*api.SetUp, error) {
			st := environment.Streams{Stdout: conn.Writer(wire.Stdout), Stderr: conn.Writer(wire.Stderr), Report: rep}
			return s.engine.Setup(ctx, p, st)
		})
	case api.MethodStart:
		return call(req, func(p api.Run) (*api.Started, error) { return s.engine.Start(ctx, p, rep) })
	case api.MethodPublish:
		return call(req, func(p api.Publish) (*api.Ports, error) { return s.engine.Publish(ctx, p) })
	case api.MethodStop:
		return call(req, func(p api.Stop) (*api.Stopped, error) { return s.engine.Stop(ctx, p) })
	case api.MethodRestart:
		return call(req, func(p api.Restart) (*api.Restarted, error) { return s.engine.Restart(ctx, p, rep) })
	case api.MethodLogs:
		return call(req, func(p api.Logs) (struct{}, error) {
			return struct{}{}, s.engine.Logs(ctx, p, conn.Writer(wire.Stdout), conn.Writer(wire.Stderr), rep)
		})
	case api.MethodFork:
		return call(req, func(p api.Fork) (*api.Created, error) { return s.engine.Fork(ctx, p, rep) })
	case api.MethodDelete:
		return call(req, func(p api.Delete) (*api.Deleted, error) { return s.engine.Delete(ctx, p) })
	case api.MethodPath:
		return call(req, func(p api.Path) (*api.PathAnswer, error) { return s.engine.Path(ctx, p, rep) })
	case api.MethodFreeze:
		return call(req, func(p api.Freeze) (*api.Frozen, error) { return s.engine.Freeze(ctx, p) })
	case api.MethodHydrate:
		return call(req, func(p api.Hydrate) (*api.Hydrated, error) { return s.engine.Hydrate(ctx, p, rep) })
	case api.MethodRootDiff:
		return call(req, func(p api.RootDiff) (*api.RootDiffed, error) { return s.engine.RootDiff(ctx, p) })
	case api.MethodCommit:
		return call(req, func(p api.Commit) (*api.Committed, error) { return s.engine.Commit(ctx, p) })
	case api.MethodMerge:
		return call(req, func(p api.Merge) (*api.Merged, error) { return s.engine.Merge(ctx, p) })
	case api.MethodStatus:
		return call(req, func(p api.Status) (*api.Live, error) { return s.engine.Status(ctx, p) })
	case api.MethodDaemonStatus:
		st := s.engine.DaemonStatus(ctx)
		st.Pid, st.Version, st.Started = os.Getpid(), version.String(), s.started
		return st, nil
	case api.MethodDaemonStop:
		p, err := decode[api.DaemonStop](req)
		if err != nil {
			return nil, err
		}
		return struct{}{}, s.leave(ctx, p.Force)
	}
	return nil, environment.Errorf(environment.ExitUsage, "unknown method %q", req.Method)
}

// reporter passes what the engine reports on to the client.
type reporter struct{ conn *wire.Conn }

func (r reporter) Progress(phase string, done, total int64) {
	_ = r.conn.SendJSON(wire.Progress, wire.ProgressMsg{Phase: phase, Done: done, Total: total})
}

func (r reporter) Warn(text string) { _ = r.conn.Send(wire.Warning, []byte(text)) }

// run serves an exec: frames from the client become stdin, signals and sizes.
func (s *server) run(ctx context.Context, cancel context.CancelFunc, conn *wire.Conn, p api.Run, rep reporter, asks *asker) (*api.Ran, error) {
	st := environment.Streams{
		Stdout:  conn.Writer(wire.Stdout),
		Stderr:  conn.Writer(wire.Stderr),
		Signals: make(chan string, 16),
		Resizes: make(chan wire.ResizeMsg, 4),
		Report:  rep,
	}
	q := newStdinQueue(conn)
	if p.Stdin {
		st.Stdin = q
	}
	defer q.close()
	go func() {
		defer cancel()
		defer q.close()
		defer close(asks.gone)
		receive(conn, q, st, asks)
	}()
	return s.engine.Run(ctx, p, st)
}

// receive takes the client's frames until it goes away.
func receive(conn *wire.Conn, stdin *stdinQueue, st environment.Streams, asks *asker) {
	for {
		t, data, err := conn.Recv()
		if err != nil {
			return
		}
		switch t {
		case wire.Answer:
			asks.take(t, data)
		case wire.Stdin:
			if !stdin.put(data) {
				return
			}
		case wire.StdinEOF:
			stdin.close()
		case wire.Signal:
			select {
			case st.Signals <- string(data):
			default:
			}
		case wire.Resize:
			var r wire.ResizeMsg
			if json.Unmarshal(data, &r) == nil {
				select {
				case st.Resizes <- r:
				default:
				}
			}
		}
	}
}
