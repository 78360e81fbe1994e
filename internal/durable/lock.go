package durable

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lockPollMin = time.Millisecond
	lockPollMax = 25 * time.Millisecond
)

// ErrLocked means that another holder has the lock.
var ErrLocked = errors.New("locked")

// LockedError is an ErrLocked that names the holder.
type LockedError struct {
	Path string
	// PID is the holder's process id, 0 when it has not said yet.
	PID int
}

func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s is locked", e.Path)
	}
	return fmt.Sprintf("%s is locked by process %d", e.Path, e.PID)
}

// Is makes errors.Is(err, ErrLocked) hold.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// FileLock is an exclusive lock on a file, which the kernel releases when the
// process ends, however it ends. Two locks exclude each other within one
// process too.
type FileLock struct{ f *os.File }

// Lock takes the lock, waiting as long as ctx allows. The file is made when
// missing, mode 0600, and stays. When ctx ends the error is both ctx's and
// ErrLocked.
func Lock(ctx context.Context, path string) (*FileLock, error) {
	for wait := lockPollMin; ; wait = min(2*wait, lockPollMax) {
		l, err := TryLock(path)
		if !errors.Is(err, ErrLocked) {
			return l, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("%w: %w", err, context.Cause(ctx))
		}
	}
}

// TryLock takes the lock if nobody has it; otherwise the error is a
// *LockedError.
func TryLock(path string) (*FileLock, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		err = flock(f)
		if errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, &LockedError{Path: path, PID: LockPID(path)}
		}
		if err != nil {
			f.Close()
			return nil, &fs.PathError{Op: "flock", Path: path, Err: err}
		}
		if !current(f, path) {
			// It was removed while we opened it: a lock on nothing.
			f.Close()
			continue
		}
		if err := recordPID(f); err != nil {
			f.Close()
			return nil, err
		}
		return &FileLock{f}, nil
	}
}

// Close releases the lock.
func (l *FileLock) Close() error {
	// Emptied first, so that nobody is told of a process that has let go.
	return errors.Join(l.f.Truncate(0), l.f.Close())
}

// LockPID returns the process id recorded in a lock file, 0 when there is none.
// Only a failed TryLock proves that the process still holds the lock.
func LockPID(path string) int {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0
	}
	return pid
}

func flock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func current(f *os.File, path string) bool {
	there, err := os.Stat(path)
	if err != nil {
		return false
	}
	mine, err := f.Stat()
	return err == nil && os.SameFile(there, mine)
}

func recordPID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// Held says whether somebody has the lock, without taking it or making its file.
func Held(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	for {
		// Shared, so that those who ask do not take each other for a holder.
		err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		switch {
		case err == nil:
			return false, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return true, nil
		case !errors.Is(err, unix.EINTR):
			return false, &fs.PathError{Op: "flock", Path: path, Err: err}
		}
	}
}
