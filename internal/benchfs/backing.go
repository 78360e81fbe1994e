package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// backing is the file system that one session works on: made for it and thrown
// away after it, because ext4 creates files several times slower for minutes
// after many were deleted.
type backing struct {
	dir   string // where it is
	image string // the ext4 image; "" for a plain directory
}

// newBacking makes a fresh one below the work directory.
func newBacking(ctx context.Context, kind, work string) (*backing, error) {
	b := &backing{dir: filepath.Join(work, "fs")}
	if err := os.Mkdir(b.dir, 0o755); err != nil {
		return nil, err
	}
	if kind == "disk" {
		return b, nil
	}
	b.image = filepath.Join(work, "ram", "image")
	if kind == "file" {
		b.image = filepath.Join(work, "image")
	}
	if err := b.format(ctx); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *backing) format(ctx context.Context) error {
	f, err := os.Create(b.image)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(8<<30), f.Close()); err != nil {
		return err
	}
	// Nothing is left to be initialised in the background while we measure.
	if err := run(ctx, "mkfs.ext4", "-q", "-F", "-N", "700000", "-E", "lazy_itable_init=0,lazy_journal_init=0", b.image); err != nil {
		return err
	}
	return run(ctx, "mount", "-o", "loop", b.image, b.dir)
}

// close unmounts and removes everything of it; whatever is still mounted below
// goes first.
func (b *backing) close() error {
	err := unmountBelow(b.dir)
	if b.image != "" {
		err = errors.Join(err, remove(b.image))
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(b.dir)
}

func remove(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// unmountBelow unmounts what is mounted at or below dir, newest first.
func unmountBelow(dir string) error {
	mounts, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	var all error
	for i := len(mounts) - 1; i >= 0; i-- {
		all = errors.Join(all, unmount(mounts[i]))
	}
	return all
}

// mountsBelow lists mount points at or below dir in the order they were made.
func mountsBelow(dir string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) > 4 && (f[4] == dir || strings.HasPrefix(f[4], dir+"/")) {
			found = append(found, f[4])
		}
	}
	return found, nil
}

// unmount waits a while for the last user of a mount to leave. Then it detaches
// it: what is left of it goes with the process that holds it.
func unmount(dir string) error {
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = syscall.Unmount(dir, 0); err == nil || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOENT) {
			return nil
		}
		if !errors.Is(err, syscall.EBUSY) {
			break
		}
	}
	if lazy := syscall.Unmount(dir, syscall.MNT_DETACH); lazy != nil {
		return fmt.Errorf("unmount %s: %w", dir, lazy)
	}
	fmt.Fprintf(os.Stderr, "warning: %s was detached: %v\n", dir, err)
	return nil
}

// deviceOf is the minor number of the file system mounted at dir, which names
// its FUSE connection. It asks the mount table, which never waits for a server.
func deviceOf(dir string) (string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	minor := ""
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) > 4 && f[4] == dir {
			_, minor, _ = strings.Cut(f[2], ":")
		}
	}
	if minor == "" {
		return "", fmt.Errorf("nothing is mounted at %s", dir)
	}
	return minor, nil
}
