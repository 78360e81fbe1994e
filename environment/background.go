package environment

import (
	"context"
	"time"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/notes"
)

const (
	// startLook is how long a start watches its process: one that ends at once, for
	// want of a port or a file, is told of by the command that started it.
	startLook = 200 * time.Millisecond
	// tailBytes is how much of the output of such a process is shown.
	tailBytes = 4 << 10
)

// background is what an exec has besides when nobody waits for it. Its output goes
// through the daemon into a log, so that it is bounded and nothing gets to the
// disk that must not; the process does not outlive the daemon anyway, because the
// workspace does not.
type background struct {
	name string
	home procHome
	stop chan time.Duration // a wish to end it, and how long it has to end by itself

	exited chan struct{}
	ended  chan struct{} // closed after the record was made; ran and err are set
	ran    *api.Ran
	err    error
}

func newBackground(name string) *background {
	return &background{name: name, stop: make(chan time.Duration), exited: make(chan struct{}), ended: make(chan struct{})}
}

// Start starts a background process. It returns soon after that, or when the
// process has ended before; what the process changes is committed by whatever
// commits next, and when it ends it is recorded like any exec.
func (e *Engine) Start(ctx context.Context, p api.Run, rep Reporter) (*api.Started, error) {
	if len(p.Args) == 0 {
		return nil, Errorf(ExitUsage, "no command given")
	}
	if err := checkProcName(p.Name); err != nil {
		return nil, err
	}
	v, err := e.env(p.Env)
	if err != nil {
		return nil, err
	}
	x := &execution{v: v, p: p, st: Streams{Report: rep}, out: &recorder{}, bg: newBackground(p.Name)}
	if err := x.prepare(ctx); err != nil {
		return nil, err
	}
	startErr := x.launch()
	if startErr != nil {
		if err := x.notStarted(startErr); err != nil {
			x.bg.home.drop()
			v.end(x.rec.ID)
			x.cancel()
			return nil, err
		}
		close(x.bg.exited)
		x.endBackground(ProcFailed)
		return x.started(true)
	}
	x.bg.home.update(func(p *Process) { p.Pid = insidePid(x.proc.Pid()) })
	go x.supervise()
	look := time.NewTimer(startLook)
	defer look.Stop()
	select {
	case <-x.bg.exited:
		<-x.bg.ended
		return x.started(true)
	case <-look.C:
	case <-ctx.Done():
	}
	return x.started(false)
}

// started is the answer to a start.
func (x *execution) started(over bool) (*api.Started, error) {
	out := &api.Started{Exec: x.rec.ID}
	if !over {
		return out, nil
	}
	out.Ran = x.bg.ran
	head, tail, _ := x.out.kept()
	last := append(append([]byte(nil), head...), tail...)
	out.Tail = last[max(0, len(last)-tailBytes):]
	return out, x.bg.err
}

// open makes the place where a background process is known; v.mu is held.
func (b *background) open(ctx context.Context, v *Env, rec *notes.Record) error {
	if v.backgroundNamed(b.name) != nil || v.serviceNamed(b.name) != nil {
		return Errorf(ExitBusy, "process '%s' is running already in environment '%s'", b.name, v.name).
			WithHint("'git env stop %s %s' ends it", v.name, b.name)
	}
	return b.home.open(ctx, v, Process{ID: rec.ID, Kind: KindProcess, Name: b.name, Command: rec.Command, Cwd: rec.Cwd, State: ProcRunning, Started: rec.Started})
}

// backgroundNamed returns the running background process of a name or id.
func (v *Env) backgroundNamed(ref string) *background {
	v.usage.Lock()
	defer v.usage.Unlock()
	for id, r := range v.usage.execs {
		if r.bg != nil && ref != "" && (id == ref || r.bg.name == ref) {
			return r.bg
		}
	}
	return nil
}

// supervise waits for the end of the process and records it.
func (x *execution) supervise() {
	outcome, stopped := x.watch()
	x.rec.Outcome, x.rec.Duration = outcome, time.Since(x.rec.Started)
	state := ProcExited
	switch {
	case stopped:
		state = ProcStopped
	case outcome.Interrupted:
		state = ProcInterrupted
	}
	x.endBackground(state)
}

// endBackground makes the record of a process that has ended.
func (x *execution) endBackground(state string) {
	b := x.bg
	x.out.flush()
	b.home.log.end()
	var err error
	if x.out, err = recorderOf(b.home.log.dir); err != nil {
		x.logErr("read back its output", err)
	}
	b.home.close(state, x.rec.Outcome)
	b.ran, b.err = x.finish()
	if b.err != nil {
		x.v.e.notice("environment '%s', process %s: %v", x.v.name, b.home.title(), b.err)
	}
	x.logErr("forget old processes", x.v.e.store.pruneProcs(x.v.name))
	x.v.end(x.rec.ID)
	x.cancel()
	close(b.ended)
}

// watch waits for the end of the process.
func (x *execution) watch() (_ notes.Outcome, stopped bool) {
	defer x.proc.Close()
	w := &procWatch{proc: x.proc, stop: x.bg.stop, gone: x.ctx.Done(), limit: x.p.Timeout, warn: x.logErr}
	d, stopped, timedOut := w.wait(context.WithoutCancel(x.ctx))
	close(x.bg.exited)
	return outcome(d.exit, d.err, timedOut, x.p.Timeout), stopped
}
