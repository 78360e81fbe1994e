package fusefs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Flush makes the kernel pass on to the file server what processes have
// written into shared mappings of files, so that a Freeze after it has all of
// it. Everything else that was written is there without it. It gives up after
// wait, which is no error: done tells.
//
// A call that is given up goes on until the kernel is done with it. The file
// server never waits for it.
func (c *Client) Flush(ctx context.Context, id string, wait time.Duration) (done bool, err error) {
	c.mu.Lock()
	m := c.mounts[id]
	there := m != nil && m.dev != nil
	c.mu.Unlock()
	if !there {
		return false, fmt.Errorf("%w: %s", ErrNotMounted, id)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	type result struct {
		done bool
		err  error
	}
	ended := make(chan result, 1)
	go func() {
		var r result
		r.done, r.err = flush(ctx, m.dir)
		ended <- r
	}()
	select {
	case r := <-ended:
		return r.done, r.err
	case <-ctx.Done():
		return false, nil
	}
}

// flush writes the pages of mappings of files below dir back. Since Linux 6.18
// syncfs(2) only sends them on their way on a FUSE mount, and what waits for
// them to arrive is per file (fsync). So it looks at how many requests the
// connection has that are not answered: those that were sent before are, once
// there is a moment with none.
func flush(ctx context.Context, dir string) (bool, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(fd)
	var where unix.Statfs_t
	if err := unix.Fstatfs(fd, &where); err != nil {
		return false, fmt.Errorf("stat %s: %w", dir, err)
	}
	if where.Type != unix.FUSE_SUPER_MAGIC {
		return false, fmt.Errorf("%s: %w: somebody unmounted it", dir, ErrNotMounted)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, fmt.Errorf("stat %s: %w", dir, err)
	}
	if err := unix.Syncfs(fd); err != nil {
		return false, fmt.Errorf("syncfs %s: %w", dir, err)
	}
	control, err := openControl()
	if err != nil {
		return false, err
	}
	defer unix.Close(control)
	waiting := fmt.Sprintf("%d/waiting", unix.Minor(st.Dev))
	for pause := 20 * time.Microsecond; ctx.Err() == nil; pause = min(2*pause, time.Millisecond) {
		n, err := readControl(control, waiting)
		if err != nil {
			return false, err
		}
		if string(n) == "0" {
			return true, nil
		}
		time.Sleep(pause)
	}
	return false, nil
}

// openControl opens the control file system of FUSE, which is mounted at
// /sys/fs/fuse/connections or, as in containers, nowhere: so it is mounted
// where nobody sees it.
func openControl() (int, error) {
	fsfd, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("fsopen fusectl", err)
	}
	defer unix.Close(fsfd)
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return -1, os.NewSyscallError("fsconfig fusectl", err)
	}
	mnt, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, 0)
	return mnt, os.NewSyscallError("fsmount fusectl", err)
}

func readControl(dir int, name string) ([]byte, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "fusectl: " + name, Err: err}
	}
	defer unix.Close(fd)
	var b [32]byte
	n, err := unix.Read(fd, b[:])
	if err != nil {
		return nil, &os.PathError{Op: "read", Path: "fusectl: " + name, Err: err}
	}
	return bytes.TrimSpace(b[:n]), nil
}
