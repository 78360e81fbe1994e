package containerd

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/runtime"
	"github.com/git-env/git-env/runtime/initproc"
)

// theirEnds are the descriptors that a process gets.
type theirEnds struct {
	kind initproc.Streams
	fds  []int
}

func (t *theirEnds) close() {
	for _, fd := range t.fds {
		_ = unix.Close(fd)
	}
	t.fds = nil
}

// newPipes connects a process by pipes that belong to uid, so that it can open
// them by their names in /proc.
func newPipes(streams runtime.IO, uid uint32) (_ *stdio, _ *theirEnds, err error) {
	s, theirs := &stdio{input: streams.Stdin}, &theirEnds{kind: initproc.StreamsOutput}
	defer func() {
		if err != nil {
			s.close()
			theirs.close()
		}
	}()
	if streams.Stdin != nil {
		theirs.kind = initproc.StreamsAll
		if s.in, err = theirs.pipe(1, uid); err != nil {
			return nil, nil, err
		}
	}
	for _, w := range [...]io.Writer{streams.Stdout, streams.Stderr} {
		f, err := theirs.pipe(0, uid)
		if err != nil {
			return nil, nil, err
		}
		s.addOut(f, w)
	}
	return s, theirs, nil
}

func (s *stdio) addOut(f *os.File, w io.Writer) {
	if w == nil {
		w = io.Discard
	}
	s.out = append(s.out, &outStream{f: f, w: w, drained: make(chan struct{}), done: make(chan struct{})})
}

// pipe makes a pipe and returns one end of it; the other one is theirs, and
// blocks, as programs expect.
func (t *theirEnds) pipe(ours int, uid uint32) (*os.File, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	t.fds = append(t.fds, p[1-ours])
	err := unix.SetNonblock(p[ours], true)
	if uid != 0 {
		err = errors.Join(err, unix.Fchown(p[ours], int(uid), -1))
	}
	if err != nil {
		_ = unix.Close(p[ours])
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	return os.NewFile(uintptr(p[ours]), "pipe"), nil
}

// newTerminal connects a process by a terminal of the container's own, so that
// its name means the same inside. master sets its size.
func (c *container) newTerminal(streams runtime.IO, uid uint32, width, height uint16) (_ *stdio, _ *theirEnds, master *os.File, err error) {
	s, theirs := &stdio{input: streams.Stdin}, &theirEnds{kind: initproc.StreamsTerminal}
	defer func() {
		if err != nil {
			s.close()
			theirs.close()
			err = fmt.Errorf("make a terminal: %w", err)
		}
	}()
	fd, err := c.openMaster()
	if err != nil {
		return nil, nil, nil, err
	}
	master = os.NewFile(uintptr(fd), "terminal")
	s.addOut(master, streams.Stdout)
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, nil, err
	}
	slave, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return nil, nil, nil, errno
	}
	theirs.fds = append(theirs.fds, int(slave))
	if err := unix.Fchown(int(slave), int(uid), -1); err != nil {
		return nil, nil, nil, err
	}
	if width > 0 && height > 0 {
		if err := setSize(master, width, height); err != nil {
			return nil, nil, nil, err
		}
	}
	second, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, nil, nil, err
	}
	s.in = os.NewFile(uintptr(second), "terminal")
	return s, theirs, master, nil
}

// openMaster makes a terminal in the container's own instance of devpts, and
// nothing else: what has its name inside may be anything.
func (c *container) openMaster() (fd int, err error) {
	at, err := c.openInside("/dev/pts/ptmx", unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	defer at.Close()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(at.Fd()), &fs); err != nil {
		return -1, err
	}
	if fs.Type != unix.DEVPTS_SUPER_MAGIC {
		return -1, errors.New("/dev/pts is no file system of terminals")
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(at.Fd()), &st); err != nil {
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(5, 2) {
		return -1, errors.New("/dev/pts/ptmx makes no terminals")
	}
	return unix.Open(procFd(at), unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
}

// setSize sets the size of a terminal; one that has gone is no error.
func setSize(master *os.File, width, height uint16) error {
	raw, err := master.SyscallConn()
	if err != nil {
		return nil
	}
	var setErr error
	if raw.Control(func(fd uintptr) {
		setErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height})
	}) != nil || errors.Is(setErr, unix.EIO) {
		return nil
	}
	return setErr
}
