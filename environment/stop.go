package environment

import (
	"context"
	"time"

	"github.com/git-env/git-env/environment/api"
)

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
		id, warnings, err := b.wait(ctx)
		if err != nil {
			return nil, err
		}
		out.Procs, out.Warnings = append(out.Procs, id), append(out.Warnings, warnings...)
	}
	return out, nil
}

// stoppable is a background process or a service that runs.
type stoppable interface {
	// end asks for its end; it may be killed after the grace.
	end(grace time.Duration)
	// wait returns when it has ended and all is recorded.
	wait(ctx context.Context) (id string, warnings []string, err error)
}

func (b *background) wait(ctx context.Context) (string, []string, error) {
	select {
	case <-b.ended:
	case <-ctx.Done():
		return "", nil, ctx.Err()
	}
	if b.err != nil {
		return "", nil, b.err
	}
	return b.home.id(), b.ran.Warnings, nil
}

func (b *background) end(grace time.Duration) {
	select {
	case b.stop <- grace:
	case <-b.exited:
	}
}

// toStop finds the processes that are meant.
func (v *Env) toStop(p api.Stop, out *api.Stopped) ([]stoppable, error) {
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
	var procs []stoppable
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
		b, s := v.backgroundNamed(proc.ID), v.serviceNamed(proc.ID)
		switch {
		case b != nil:
			procs = append(procs, b)
		case s != nil:
			v.keepDown(s.set.Name, true)
			procs = append(procs, s)
		default:
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
	log := v.logOf(p.Proc)
	if log == nil {
		return r.tell(view, stdout, stderr, rep.Warn)
	}
	for {
		changed, ended := log.more() // before it is read, so that nothing is missed
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

// logOf is the log of a process or service that runs; nil when none does.
func (v *Env) logOf(id string) *procLog {
	if b := v.backgroundNamed(id); b != nil {
		return b.home.log
	}
	if s := v.serviceNamed(id); s != nil {
		return s.home.log
	}
	return nil
}
