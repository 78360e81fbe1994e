package fusefs

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A worker answers on the processor from which the request came, and wakes the
// process up there. The scheduler, however, sees that this processor is in use,
// by the worker, and moves the process to one that is not; its next request
// then comes from there. On a machine with little else to do each request so
// wakes a processor up, which costs more than the request, in a virtual machine
// several times over.
//
// It looks upon a processor on which only tasks of the policy SCHED_IDLE run as
// free, and lets others go before. So the workers have that policy while many
// requests come, unless something else wants their processor: then they would
// wait as long as it does, and every request with them. Whoever watches over
// that sees it within about a millisecond, gives them the usual policy back,
// and leaves it so for a while.

const (
	yieldTick = time.Millisecond
	// yieldLeast is from how many requests in a tick on it is worth it.
	yieldLeast = 4
	// yieldQuiet is after how many ticks with fewer it ends.
	yieldQuiet = 20
	// yieldRan is what a worker that is not kept waiting runs in a tick.
	yieldRan = yieldTick / 10
	// yieldProof is how long one that is must have waited.
	yieldProof = 200 * time.Microsecond
	// yieldBackoff is for how long it is left after that, twice as long each
	// time up to yieldLongest. What stood in the way is most often the kernel
	// writing something out, and gone in a moment; where it stays, a worker
	// waits a two hundredth of the time.
	yieldBackoff = 2 * yieldTick
	yieldLongest = 256 * yieldTick
	// yieldWell times the last break without another one: it was the last.
	yieldWell = 4
)

// yielder switches the policy of the workers of a pool.
type yielder struct {
	workers []*uringWorker
	threads []yieldThread
	asleep  atomic.Bool
	stir    chan struct{}
	quit    chan struct{}

	on      bool
	until   time.Time     // not before
	backoff time.Duration // the next one
	since   time.Time     // when it was switched on
}

type yieldThread struct {
	tid   int
	stat  *os.File
	clock int32
	ran   time.Duration // at the last tick
}

// startYielder starts the watch over workers that run. It returns nil where
// there is nothing to be gained or the kernel does not let us.
func startYielder(workers []*uringWorker) *yielder {
	if len(workers) < 2 {
		return nil
	}
	y := &yielder{workers: workers, stir: make(chan struct{}, 1), quit: make(chan struct{}), backoff: yieldBackoff}
	for _, w := range workers {
		stat, err := os.Open("/proc/self/task/" + strconv.Itoa(w.tid) + "/stat")
		if err != nil {
			y.close()
			return nil
		}
		// The number of a thread's clock is made as <linux/posix-timers.h> says.
		y.threads = append(y.threads, yieldThread{tid: w.tid, stat: stat, clock: int32(^w.tid<<3 | 6)})
	}
	y.asleep.Store(true)
	go y.run()
	return y
}

func (y *yielder) close() {
	for _, t := range y.threads {
		t.stat.Close()
	}
}

// served is called by a worker for each request.
func (y *yielder) served() {
	if y != nil && y.asleep.Load() && y.asleep.CompareAndSwap(true, false) {
		select {
		case y.stir <- struct{}{}:
		default:
		}
	}
}

func (y *yielder) run() {
	defer y.close()
	last, quiet := uint64(0), 0
	for {
		if quiet >= yieldQuiet {
			y.set(false)
			y.asleep.Store(true)
			select {
			case <-y.stir:
			case <-y.quit:
				return
			}
			quiet = 0
		}
		select {
		case <-y.quit:
			return
		default:
		}
		time.Sleep(yieldTick)
		count := uint64(0)
		for _, w := range y.workers {
			count += w.requests.Load()
		}
		if count-last < yieldLeast {
			quiet++
		} else {
			quiet = 0
		}
		last = count
		y.tick(time.Now())
	}
}

func (y *yielder) tick(now time.Time) {
	switch {
	case !y.on && now.After(y.until):
		for i := range y.threads {
			y.threads[i].ran = y.threads[i].cpu()
		}
		y.set(true)
		y.since = now
	case y.on && y.starving():
		y.set(false)
		y.until = now.Add(y.backoff)
		y.backoff = min(2*y.backoff, yieldLongest)
	case y.on && now.Sub(y.since) > yieldWell*y.backoff:
		y.backoff = yieldBackoff
	}
}

// set gives the workers a policy.
func (y *yielder) set(on bool) {
	if y.on == on {
		return
	}
	y.on = on
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}
	if on {
		attr.Policy = unix.SCHED_IDLE
	}
	for _, t := range y.threads {
		// A thread that is gone needs none; one that we may not slow down stays
		// as it is.
		if err := unix.SchedSetAttr(t.tid, &attr, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			y.until = time.Now().Add(time.Hour)
		}
	}
}

// starving reports whether a worker wants to run and may not.
func (y *yielder) starving() bool {
	for i := range y.threads {
		t := &y.threads[i]
		before := t.ran
		if t.ran = t.cpu(); t.ran-before >= yieldRan || !t.runnable() {
			continue
		}
		time.Sleep(yieldProof)
		now := t.cpu()
		if now == t.ran && t.runnable() {
			return true
		}
		t.ran = now
	}
	return false
}

// cpu is for how long the thread has run.
func (t *yieldThread) cpu() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(t.clock, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// runnable reports whether the thread runs or wants to.
func (t *yieldThread) runnable() bool {
	var buf [256]byte
	n, err := t.stat.ReadAt(buf[:], 0)
	if n == 0 && err != nil {
		return false
	}
	i := bytes.LastIndexByte(buf[:n], ')')
	return i >= 0 && i+2 < n && buf[i+2] == 'R'
}
