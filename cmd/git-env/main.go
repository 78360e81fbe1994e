package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/daemon"
	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/runtime/initproc"
)

func main() {
	if code, hidden := runHidden(os.Args[1:]); hidden {
		os.Exit(code)
	}
	os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// runHidden runs what git-env starts itself as: the daemon, the file server, its
// watchdog, the first process of a container and what puts secrets there. It comes before anything else, because the
// last one is to be small and all are to be quick.
func runHidden(args []string) (code int, hidden bool) {
	if len(args) == 0 {
		return 0, false
	}
	switch {
	case args[0] == "init":
		return initproc.Main(args[1:]), true
	case args[0] == "put-secrets":
		return initproc.PutSecrets(os.Stdin, os.Stderr), true
	case args[0] == "fusefs":
		return fusefs.ServerMain(context.Background(), args[1:]), true
	case args[0] == "watchdog":
		return fusefs.WatchdogMain(context.Background(), args[1:]), true
	case args[0] == "daemon" && len(args) > 1 && args[1] == "serve":
		return daemon.Main(args[2:]), true
	}
	return 0, false
}

// Main runs one command and returns its exit code.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := newApp(stdin, stdout, stderr)
	defer a.close()
	return a.main(args)
}

func (a *app) main(args []string) int {
	run, err := a.parse(args)
	if err == nil && run != nil {
		err = run()
	}
	return a.exit(err)
}

// exitStatus is an exit code that needs no word said about it.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// exit reports err and maps it to the exit code, in this one place.
func (a *app) exit(err error) int {
	var status exitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	if sig := a.caught.Load(); sig != 0 && err != nil {
		// What was cut short has said so, or has nothing to say.
		var ge *gitcmd.Error // a git of ours that the terminal interrupted too
		cut := errors.As(err, &ge) && ge.ExitCode < 0
		if !cut && !errors.Is(err, context.Canceled) && environment.ExitCode(err) != environment.ExitInterrupted {
			a.report(err)
		}
		return 128 + int(sig)
	}
	if err == nil {
		return environment.ExitOK
	}
	a.report(err)
	return environment.ExitCode(err)
}

// interruptible returns a context that ends when the user interrupts the
// command; the exit code is then 130 or 143.
func (a *app) interruptible() (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		select {
		case sig := <-ch:
			if s, ok := sig.(syscall.Signal); ok {
				a.caught.Store(int32(s))
			}
			cancel()
		case <-done:
		}
	}()
	return ctx, func() {
		signal.Stop(ch)
		close(done)
		cancel()
	}
}
