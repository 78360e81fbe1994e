package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// errParent is why a run ends when the program that started it is gone.
var errParent = errors.New("the program that started this one has ended")

// endings is a context that ends with the first signal that asks for it, or
// with the parent. Later signals change nothing: what was started is taken down
// all the same. cause says which it was.
func endings(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		signal.Notify(signals, syscall.SIGHUP)
	}
	// A reader of our output that has gone must not end us before the mounts
	// are gone; caught rather than ignored, as what we start would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	go func() {
		select {
		case s := <-signals:
			cancel(fmt.Errorf("%v", s))
		case <-ctx.Done():
		}
	}()
	go watchParent(ctx, os.Getppid(), os.Getppid, time.Second, func() { cancel(errParent) })
	return ctx, func() { cancel(nil) }
}

// watchParent calls gone when now no longer gives first, the process id of the
// parent. It asks, since the kernel's own signal (PR_SET_PDEATHSIG) comes when
// the thread ends that started us, which need not be the end of the parent.
func watchParent(ctx context.Context, first int, now func() int, every time.Duration, gone func()) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if now() != first {
				gone()
				return
			}
		}
	}
}
