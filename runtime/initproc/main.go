package initproc

import (
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Serve is the argument with which the process takes requests to run commands.
const Serve = "serve"

// RendezvousFd is the number of the descriptor that the daemon takes a copy of.
// Nothing comes near it by itself.
const RendezvousFd = 300

// Main reaps children until it is told to leave by TERM or INT, and returns the
// exit code. It runs commands when its only argument is Serve. It uses no file
// but /dev/null and no environment variable.
func Main(args []string) int {
	// Before anything can run beside it: see the package's description.
	_ = unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	serve := len(args) == 1 && args[0] == Serve
	if serve {
		serve = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) == nil
	}
	// Hundreds of environments may be up at once: one small, quiet process each.
	debug.SetMemoryLimit(8 << 20)
	runtime.GOMAXPROCS(2)
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT)
	children := &children{}
	if serve {
		keepThreads(6)
		if s, err := newServer(children); err == nil {
			go s.serve()
		}
	}
	children.reap() // those that ended before the handler was there
	for sig := range signals {
		if sig != syscall.SIGCHLD {
			return 0
		}
		children.reap()
	}
	return 0
}

// keepThreads makes threads ahead, which the Go runtime then keeps: when commands
// have used up the container's limit of processes, the runtime could make none,
// and would end this process and with it the container.
func keepThreads(n int) {
	var all, left sync.WaitGroup
	all.Add(n)
	for range n {
		left.Go(func() {
			runtime.LockOSThread() // for itself alone until all are there
			defer runtime.UnlockOSThread()
			all.Done()
			all.Wait()
		})
	}
	left.Wait()
}
