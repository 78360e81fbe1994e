package environment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/git-env/git-env/internal/secret"
	"github.com/git-env/git-env/notes"
	"github.com/git-env/git-env/runtime"
)

const (
	firstPause  = 100 * time.Millisecond // before a service is started again
	longestWait = 30 * time.Second       // what that grows to, by doubling
	// steady is how long a service has to run for the pause to be short again.
	steady = 10 * time.Second
	// hopeless is how many times a service may fail in a row before it was ever
	// ready until whoever waits for it is told.
	hopeless = 3
	// logTailShown bounds what is shown of the output of a service that failed.
	logTailShown = 2 << 10
)

var errNotReady = errors.New("it was not ready in time")

// service is a service that is looked after.
type service struct {
	v       *Env
	set     Service
	ctr     runtime.Container
	addr    string
	home    procHome
	secrets []string // variables
	mask    *secret.Set
	// imageCommand is what the image says to run.
	imageCommand []string

	stop      chan time.Duration
	ended     chan struct{} // closed when it is not looked after any more
	ready     chan struct{} // closed when it was ready once
	readyOnce sync.Once

	trouble     chan struct{} // closed when hopeless
	troubleOnce sync.Once

	mu     sync.Mutex
	failed int    // times in a row, guarded by mu
	gaveUp bool   // it was ended because it did not become ready, guarded by mu
	why    string // of the last failure or check, guarded by mu
}

func newSupervised(v *Env, set Service, ctr runtime.Container) *service {
	return &service{v: v, set: set, ctr: ctr, addr: serviceAddress(v.fixed.ID, set.Name),
		stop: make(chan time.Duration), ended: make(chan struct{}), ready: make(chan struct{}), trouble: make(chan struct{})}
}

func (s *service) open(ctx context.Context) error {
	return s.home.open(ctx, s.v, Process{ID: newExecID(), Kind: KindService, Name: s.set.Name, Command: s.set.text(),
		Cwd: s.cwd(), State: ProcStarting, Started: now(), Address: s.addr, Ports: s.set.ports()})
}

func (s *service) cwd() string {
	switch {
	case s.set.Workdir != "":
		return s.set.Workdir
	case s.set.Image == "":
		return "/"
	}
	return ""
}

// over says whether it is not looked after any more.
func (s *service) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

func (s *service) wasReady() bool {
	select {
	case <-s.ready:
		return true
	default:
		return false
	}
}

// end asks a service to end and to stay so.
func (s *service) end(grace time.Duration) {
	select {
	case s.stop <- grace:
	case <-s.ended:
	}
}

func (s *service) wait(ctx context.Context) (string, []string, error) {
	select {
	case <-s.ended:
		return s.home.id(), nil, nil
	case <-ctx.Done():
		return "", nil, ctx.Err()
	}
}

// supervise runs the service until it is to end, or need not be started again.
func (s *service) supervise() {
	state, o := s.runs()
	s.mu.Lock()
	if s.gaveUp && state == ProcStopped {
		state = ProcFailed
	}
	s.mu.Unlock()
	if state == ProcExited && o == (notes.Outcome{}) {
		if s.set.Health == "" && len(s.set.Ports) == 0 {
			s.readyOnce.Do(func() { close(s.ready) })
		}
		// What has done its work is not started again by the next exec.
		s.v.keepDown(s.set.Name, s.wasReady())
	}
	s.home.close(state, o)
	s.v.dropService(s)
	close(s.ended)
}

func (s *service) runs() (state string, last notes.Outcome) {
	for pause := firstPause; ; pause = min(2*pause, longestWait) {
		begun := time.Now()
		o, stopped := s.once()
		switch {
		case stopped:
			return ProcStopped, o
		case !s.ctr.Running(context.Background()):
			return ProcInterrupted, notes.Outcome{Interrupted: true, Exit: ExitOurs}
		case s.set.Restart == "no", s.set.Restart == "on-failure" && o == (notes.Outcome{}):
			return ProcExited, o
		}
		if time.Since(begun) > steady {
			pause = firstPause
		}
		s.fails(o)
		s.home.update(func(p *Process) {
			p.State, p.Outcome, p.Pid, p.Health = ProcRestarting, o, 0, ""
			p.Restarts++
		})
		select {
		case <-s.stop:
			return ProcStopped, o
		case <-time.After(pause):
		}
		// The end of a container shows a moment after that of what ran in it, and its
		// id is soon another's.
		if !s.ctr.Running(context.Background()) {
			return ProcInterrupted, notes.Outcome{Interrupted: true, Exit: ExitOurs}
		}
	}
}

// fails counts a failure.
func (s *service) fails(o notes.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.why = "it ended with " + outcomeText(o)
	if s.failed++; s.failed == hopeless {
		s.troubleOnce.Do(func() { close(s.trouble) })
	}
}

func outcomeText(o notes.Outcome) string {
	if o.Signal != "" {
		return "signal " + o.Signal
	}
	return fmt.Sprintf("exit %d", o.Exit)
}

// once starts the service and waits for its end.
func (s *service) once() (o notes.Outcome, stopped bool) {
	ctx := context.Background()
	masks := &recorder{secrets: s.mask}
	stdout, stderr := masks.masked(s.home.log.stream(streamStdout)), masks.masked(s.home.log.stream(streamStderr))
	defer masks.flush()
	proc, err := s.ctr.Exec(ctx, s.spec(s.args()), runtime.IO{Stdout: stdout, Stderr: stderr})
	if err != nil {
		code, text := startFailure(err)
		if code == 0 {
			code, text = ExitOurs, err.Error()
		}
		fmt.Fprintf(stderr, "git env: %s\n", text)
		return notes.Outcome{Exit: code}, false
	}
	defer proc.Close()
	s.home.update(func(p *Process) { p.State, p.Pid = ProcStarting, insidePid(proc.Pid()) })
	checks, cancel := context.WithCancel(ctx)
	var checking sync.WaitGroup
	checking.Go(func() { s.check(checks) })
	w := &procWatch{proc: proc, stop: s.stop, warn: s.warn}
	d, stopped, _ := w.wait(ctx)
	cancel()
	checking.Wait()
	return outcome(d.exit, d.err, false, 0), stopped
}

func (s *service) warn(what string, err error) {
	if err != nil {
		s.v.e.log.Warn("cannot "+what, "env", s.v.name, "service", s.set.Name, "err", err)
	}
}

func (s *service) args() []string {
	if s.set.Command != "" {
		return []string{"sh", "-c", s.set.Command}
	}
	return s.imageCommand
}

// spec is a process of the service: itself, or a health check.
func (s *service) spec(args []string) runtime.ExecSpec {
	return runtime.ExecSpec{
		ID: strings.ToLower(newExecID()), Args: args, Cwd: s.cwd(), User: s.set.User,
		Env: append([]string{"GIT_ENV=" + s.v.name, "GIT_ENV_SERVICE=" + s.set.Name, "GIT_ENV_ADDRESS=" + s.addr}, slices.Concat(s.set.Vars, s.secrets)...),
	}
}

// awaitReady returns when the service was ready once. One that does not become so
// is not looked after any more: the next exec tries again.
func (s *service) awaitReady(ctx context.Context, rep Reporter) error {
	rep.Progress("waiting for service "+s.set.Name, 0, 0)
	select {
	case <-s.ready:
		return nil
	case <-s.trouble:
	case <-s.ended:
	case <-ctx.Done():
	}
	if s.wasReady() {
		return nil
	}
	if err := context.Cause(ctx); err != nil && !errors.Is(err, errNotReady) {
		return err
	}
	s.mu.Lock()
	s.gaveUp = true
	s.mu.Unlock()
	s.end(serviceGrace)
	<-s.ended
	return s.notReady()
}

// notReady says why a service is not there, with the last of what it printed.
func (s *service) notReady() error {
	s.mu.Lock()
	why := s.why
	s.mu.Unlock()
	p := s.home.now()
	if why == "" {
		why = "it ended with " + outcomeText(p.Outcome)
	}
	msg := fmt.Sprintf("service '%s' of environment '%s' does not become ready: %s", s.set.Name, s.v.name, why)
	if out, err := recorderOf(s.home.log.dir); err == nil && out.bytes() > 0 {
		head, tail, _ := out.kept()
		last := append(bytes.Clone(head), tail...)
		last = last[max(0, len(last)-logTailShown):]
		msg += "; it printed last:\n" + strings.TrimRight(string(notes.Excerpt(last, nil, int64(len(last)))), "\n")
	}
	return Errorf(ExitFailed, "%s", msg).
		WithHint("'git env logs %s %s' shows all of it; 'git env run --no-services' runs without", s.v.name, s.set.Name)
}

// becameReady notes that the service can be used.
func (s *service) becameReady(health string) {
	s.mu.Lock()
	s.failed = 0
	s.mu.Unlock()
	s.home.update(func(p *Process) { p.State, p.Health = ProcRunning, health })
	s.readyOnce.Do(func() { close(s.ready) })
}

// lastBytes keeps the end of what is written.
type lastBytes struct {
	mu  sync.Mutex
	buf []byte // guarded by mu
}

func (l *lastBytes) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	l.buf = l.buf[max(0, len(l.buf)-logTailShown):]
	return len(p), nil
}

func (l *lastBytes) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(string(notes.Excerpt(l.buf, nil, int64(len(l.buf)))))
}

var _ io.Writer = (*lastBytes)(nil)
