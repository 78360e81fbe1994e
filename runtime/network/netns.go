package network

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// inNamespace runs do on a thread that is in a network namespace. What do opens
// there stays there, whoever uses it later. It must not start goroutines.
func inNamespace(ns *os.File, do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer own.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("enter the network namespace: %w", err)
			return
		}
		err = do()
		if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
			// The thread ends with this goroutine, as it is still locked.
			done <- errors.Join(err, fmt.Errorf("leave the network namespace: %w", back))
			return
		}
		runtime.UnlockOSThread()
		done <- err
	}()
	return <-done
}
