package environment

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/notes"
)

const (
	// startLook is how long a start watches its process: one that ends at once, for
	// want of a port or a file, is told of by the command that started it.
	startLook = 200 * time.Millisecond
	// treePause is how often it is looked whether what a process started has ended.
	treePause = 20 * time.Millisecond
	// tailBytes is how much of the output of such a process is shown.
	tailBytes = 4 << 10
)

// background is what an exec has besides when nobody waits for it. Its output goes
// through the daemon into a log, so that it is bounded and nothing gets to the
// disk that must not; the process does not outlive the daemon anyway, because the
// workspace does not.
type background struct {
	name string
	log  *procLog
	lock *durable.FileLock
	stop chan time.Duration // a wish to end it, and how long it has to end by itself

	state  Process // of the execution's goroutine
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
			x.bg.drop(e.store, v.name)
			v.end(x.rec.ID)
			x.cancel()
			return nil, err
		}
		close(x.bg.exited)
		x.endBackground(ProcFailed)
		return x.started(true)
	}
	x.bg.state.Pid = insidePid(x.proc.Pid())
	x.logErr("note the process", e.store.saveProcess(v.name, &x.bg.state))
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
func (b *background) open(ctx context.Context, v *Env, rec *notes.Record) (err error) {
	if other := v.backgroundNamed(b.name); other != nil {
		return Errorf(ExitBusy, "process '%s' is running already in environment '%s'", b.name, v.name).
			WithHint("'git env stop %s %s' ends it", v.name, b.name)
	}
	store := v.e.store
	b.state = Process{ID: rec.ID, Name: b.name, Command: rec.Command, Cwd: rec.Cwd, State: ProcRunning, Started: rec.Started}
	if b.log, err = newProcLog(store.logDir(v.name, rec.ID)); err != nil {
		return fmt.Errorf("cannot keep the output of the process: %w", err)
	}
	defer func() {
		if err != nil {
			b.drop(store, v.name)
		}
	}()
	if b.lock, err = store.lockProcess(ctx, v.name, rec.ID); err != nil {
		return err
	}
	return store.saveProcess(v.name, &b.state)
}

// drop forgets a process that was never started.
func (b *background) drop(store *Store, env string) {
	if b.lock != nil {
		_ = b.lock.Close()
	}
	b.log.end()
	_ = os.RemoveAll(store.procDir(env, b.state.ID))
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
	b, store := x.bg, x.v.e.store
	x.out.flush()
	b.log.end()
	var err error
	if x.out, err = recorderOf(b.log.dir); err != nil {
		x.logErr("read back its output", err)
	}
	b.state.State, b.state.Outcome, b.state.Ended, b.state.Pid = state, x.rec.Outcome, now(), 0
	x.logErr("note the end of the process", store.saveProcess(x.v.name, &b.state))
	x.logErr("let go of the process", b.lock.Close())
	b.ran, b.err = x.finish()
	if b.err != nil {
		x.v.e.notice("environment '%s', process %s: %v", x.v.name, b.state.Title(), b.err)
	}
	x.logErr("forget old processes", store.pruneProcs(x.v.name))
	x.v.end(x.rec.ID)
	x.cancel()
	close(b.ended)
}

// watch waits for the end of the process, by itself, by its time limit, or because
// it was asked to stop: it and its process group are sent TERM, what is left of
// its tree once it has ended too, and all that is there after the grace KILL.
func (x *execution) watch() (_ notes.Outcome, stopped bool) {
	defer x.proc.Close()
	bg := context.WithoutCancel(x.ctx)
	done := x.awaitEnd()
	var deadline, kill <-chan time.Time
	if x.p.Timeout > 0 {
		t := time.NewTimer(x.p.Timeout)
		defer t.Stop()
		deadline = t.C
	}
	gone := x.ctx.Done()
	timedOut := false
	term := func(grace time.Duration) {
		if !stopped {
			x.logErr("stop", x.proc.Signal(bg, syscall.SIGTERM))
		}
		stopped = true
		kill = time.After(grace)
	}
	for {
		select {
		case d := <-done:
			close(x.bg.exited)
			if stopped {
				x.endTree(bg, kill)
			}
			return outcome(d.exit, d.err, timedOut, x.p.Timeout), stopped
		case <-deadline:
			timedOut = true
			x.logErr("end the process tree", x.proc.KillTree(bg))
		case d := <-x.bg.stop:
			term(d)
		case <-gone:
			gone = nil
			term(grace)
		case <-kill:
			x.logErr("end the process tree", x.proc.KillTree(bg))
		}
	}
}

// endTree ends what a stopped process has left behind.
func (x *execution) endTree(ctx context.Context, kill <-chan time.Time) {
	n, err := x.proc.SignalTree(ctx, syscall.SIGTERM)
	tick := time.NewTicker(treePause)
	defer tick.Stop()
	for n > 0 && err == nil {
		select {
		case <-tick.C:
			n, err = x.proc.SignalTree(ctx, 0)
		case <-kill:
			n, err = 0, x.proc.KillTree(ctx)
		}
	}
	x.logErr("end the process tree", err)
}

// insidePid is the number that a process has in its own namespace; 0 when it
// cannot be told.
func insidePid(pid int) int {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(data) {
		if rest, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
			if f := strings.Fields(string(rest)); len(f) > 0 {
				n, _ := strconv.Atoi(f[len(f)-1])
				return n
			}
		}
	}
	return 0
}

// Stop ends background processes and returns when all have ended and are
// recorded. That one had ended before is no error.
func (e *Engine) Stop(ctx context.Context, p api.Stop) (*api.Stopped, error) {
	v, err := e.env(p.Env)
	if err != nil {
		return nil, err
	}
	out := &api.Stopped{Procs: []string{}}
	procs, err := v.toStop(p, out)
	if err != nil {
		return nil, err
	}
	for _, b := range procs {
		go b.end(p.Grace)
	}
	for _, b := range procs {
		select {
		case <-b.ended:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		out.Procs = append(out.Procs, b.state.ID)
		if b.err != nil {
			return nil, b.err
		}
		out.Warnings = append(out.Warnings, b.ran.Warnings...)
	}
	return out, nil
}

func (b *background) end(grace time.Duration) {
	select {
	case b.stop <- grace:
	case <-b.exited:
	}
}

// toStop finds the processes that are meant.
func (v *Env) toStop(p api.Stop, out *api.Stopped) ([]*background, error) {
	refs := p.Procs
	if p.All {
		all, err := v.e.store.Processes(v.name)
		if err != nil {
			return nil, err
		}
		for _, proc := range all {
			if proc.Running() {
				refs = append(refs, proc.ID)
			}
		}
	} else if len(refs) == 0 {
		refs = []string{""}
	}
	var procs []*background
	seen := map[string]bool{}
	for _, ref := range refs {
		proc, err := v.e.store.FindProcess(v.name, ref)
		if err != nil {
			return nil, err
		}
		if seen[proc.ID] {
			continue
		}
		seen[proc.ID] = true
		if b := v.backgroundNamed(proc.ID); b != nil {
			procs = append(procs, b)
		} else {
			out.Idle = append(out.Idle, proc.ID)
		}
	}
	return procs, nil
}

// Logs writes what a background process printed, and goes on with what it prints
// until it ends or ctx does.
func (e *Engine) Logs(ctx context.Context, p api.Logs, stdout, stderr interface{ Write([]byte) (int, error) }, rep Reporter) error {
	v, err := e.env(p.Env)
	if err != nil {
		return err
	}
	r := &logReader{dir: e.store.logDir(v.name, p.Proc)}
	defer r.close()
	view := logView{p.Lines, p.Since}
	b := v.backgroundNamed(p.Proc)
	if b == nil {
		return r.tell(view, stdout, stderr, rep.Warn)
	}
	for {
		changed, ended := b.log.more() // before it is read, so that nothing is missed
		if err := r.tell(view, stdout, stderr, rep.Warn); err != nil || ended {
			return err
		}
		view.lines = -1
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
