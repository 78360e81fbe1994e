package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// A run keeps a lock on a file of its temporary directory until it has ended,
// however it ends. A directory whose lock nobody holds was left by a run that
// was killed, and the next run takes it down.

const (
	workPrefix = "benchfs-"
	lockName   = "lock"
)

// makeWork makes the temporary directory of a run below parent and locks it.
func makeWork(parent string) (dir string, lock *os.File, err error) {
	if dir, err = os.MkdirTemp(parent, workPrefix); err != nil {
		return "", nil, err
	}
	lock, err = lockNew(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, lock, nil
}

// lockNew makes the lock of a new directory. It is held before it has its name,
// so that nobody sees it free.
func lockNew(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName+".new"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, lockName)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// leftovers lists the directories below parent that runs left behind, each with
// its lock, which the caller closes. A directory of somebody else, or one that
// others can write to, is none: programs in it are going to be started.
func leftovers(parent string) (map[string]*os.File, error) {
	parent, err := filepath.EvalSymlinks(parent)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil, err
	}
	found := map[string]*os.File{}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), workPrefix) {
			continue
		}
		dir := filepath.Join(parent, e.Name())
		if f := takeLock(dir); f != nil {
			found[dir] = f
		}
	}
	return found, nil
}

// takeLock is the lock of a directory of ours that no live run holds, or nil.
func takeLock(dir string) *os.File {
	fi, err := os.Lstat(dir)
	if err != nil || !fi.IsDir() || fi.Mode().Perm() != 0o700 {
		return nil
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Getuid() {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		f.Close()
		return nil
	}
	return f
}

// removeLeftovers takes down what earlier runs left below parent. What cannot be
// removed is said and left: it does not keep this run from measuring.
func (b *bench) removeLeftovers(ctx context.Context, parent string) error {
	found, err := leftovers(parent)
	if err != nil {
		return err
	}
	for dir, lock := range found {
		b.say("removing %s, which a run that was killed left behind", dir)
		old := &bench{options: b.options, work: dir}
		old.path = filepath.Join(dir, "bin") + ":" + os.Getenv("PATH")
		if err := old.takeDown(); err != nil {
			b.say("warning: %v", err)
		}
		lock.Close()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// takeDown ends every process of the run and removes everything of it. It does
// not stop when the run is interrupted: that is when it is needed.
func (b *bench) takeDown() error {
	s := &session{bench: b, back: &backing{dir: filepath.Join(b.work, "fs")}}
	var err error
	if _, e := os.Stat(s.repo()); e == nil {
		err = s.stopEnv() // a session that was not closed
	}
	// Every command has its home directory there; see baseEnv.
	mark := "HOME=" + filepath.Join(b.work, "home") + "\x00"
	err = errors.Join(err, endProcesses(mark, true), unmountBelow(b.work))
	if err != nil {
		return errors.Join(err, errors.New(b.work+" is left in place"))
	}
	return os.RemoveAll(b.work)
}
