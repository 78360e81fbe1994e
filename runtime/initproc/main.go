package initproc

import (
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

// Main reaps children until it is told to leave by TERM or INT, and returns the
// exit code. It uses no argument, no file and no environment variable.
func Main() int {
	// Hundreds of environments may be up at once: one small, quiet process each.
	debug.SetMemoryLimit(8 << 20)
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT)
	reap() // children that ended before the handler was there
	for sig := range signals {
		if sig != syscall.SIGCHLD {
			return 0
		}
		reap()
	}
	return 0
}

// reap collects every child that has ended; signals coalesce, so one SIGCHLD may
// stand for many.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
	}
}
