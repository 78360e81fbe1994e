package fusefs

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// idleThreads counts the threads of the file server that let others go before.
func (r *rig) idleThreads() int {
	r.t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", r.c.Pid()))
	must(r.t, err)
	n := 0
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		must(r.t, err)
		if attr, err := unix.SchedGetAttr(tid, 0); err == nil && attr.Policy == unix.SCHED_IDLE {
			n++
		}
	}
	return n
}

// The workers let others go before while there is much to answer, and not when
// others want their processor all the time.
func TestWorkersYield(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	if !r.usesUring() {
		t.Skip("no FUSE over io_uring")
	}
	if runtime.NumCPU() < 2 {
		t.Skip("one processor")
	}
	ask := func() {
		for i := range 200 {
			_, _ = os.Lstat(r.path(fmt.Sprintf("missing%d-%d", i, time.Now().UnixNano())))
		}
	}
	eventually(t, func() bool {
		ask()
		return r.idleThreads() > 0
	})
	eventually(t, func() bool { return r.idleThreads() == 0 }) // nothing is asked any more

	stop := make(chan struct{})
	defer close(stop)
	for cpu := range 2 * runtime.NumCPU() {
		go func() { // not a goroutine's time slice: the processor's
			runtime.LockOSThread()
			var set unix.CPUSet
			set.Set(cpu % runtime.NumCPU())
			_ = unix.SchedSetaffinity(0, &set)
			for {
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
	}
	// It is switched off whenever a worker has to wait.
	eventually(t, func() bool {
		off := 0
		for range 20 {
			ask()
			if r.idleThreads() == 0 {
				off++
			}
		}
		return off > 0
	})
}
