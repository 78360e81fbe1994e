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

	"github.com/git-env/git-env/runtime"
)

// treePause is how often it is looked whether what a process started has ended.
const treePause = 20 * time.Millisecond

// procWatch waits for the end of a process that nobody waits for at a terminal:
// by itself, by its time limit, or because it was asked to stop. Then it and its
// process group are sent TERM, what is left of its tree once it has ended too, and
// all that is there after the grace KILL.
type procWatch struct {
	proc  runtime.Process
	stop  <-chan time.Duration // a wish to end it, and its grace
	gone  <-chan struct{}      // the same, with the usual grace
	limit time.Duration        // 0 for none
	warn  func(what string, err error)
}

func (w *procWatch) wait(ctx context.Context) (d ended, stopped, timedOut bool) {
	done := awaitEnd(w.proc)
	var deadline, kill <-chan time.Time
	if w.limit > 0 {
		t := time.NewTimer(w.limit)
		defer t.Stop()
		deadline = t.C
	}
	gone := w.gone
	term := func(grace time.Duration) {
		if !stopped {
			w.warn("stop", w.proc.Signal(ctx, syscall.SIGTERM))
		}
		stopped = true
		kill = time.After(grace)
	}
	for {
		select {
		case d := <-done:
			if stopped {
				w.endTree(ctx, kill)
			}
			return d, stopped, timedOut
		case <-deadline:
			timedOut = true
			w.warn("end the process tree", w.proc.KillTree(ctx))
		case grace := <-w.stop:
			term(grace)
		case <-gone:
			gone = nil
			term(grace)
		case <-kill:
			w.warn("end the process tree", w.proc.KillTree(ctx))
		}
	}
}

// endTree ends what a stopped process has left behind.
func (w *procWatch) endTree(ctx context.Context, kill <-chan time.Time) {
	n, err := w.proc.SignalTree(ctx, syscall.SIGTERM)
	tick := time.NewTicker(treePause)
	defer tick.Stop()
	for n > 0 && err == nil {
		select {
		case <-tick.C:
			n, err = w.proc.SignalTree(ctx, 0)
		case <-kill:
			n, err = 0, w.proc.KillTree(ctx)
		}
	}
	w.warn("end the process tree", err)
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
