package containerd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/runtime"
	"github.com/git-env/git-env/runtime/initproc"
)

// wordPatience is how long the first process may take to tell how a command ended
// that the kernel says has ended.
const wordPatience = 5 * time.Second

// initExec is a process that the container's first process starts. What that one
// says is checked against what the kernel says, and never waited for without a
// limit: it may have been taken over from inside.
type initExec struct {
	p          *process
	rendezvous *os.File
	conn       *os.File // of this process alone
	master     *os.File // of its terminal, else nil
}

// start implements supervisor.
func (x *initExec) start(ctx context.Context, config *specs.Process, streams runtime.IO) (err error) {
	p := x.p
	var theirs *theirEnds
	if config.Terminal {
		var width, height uint16
		if size := config.ConsoleSize; size != nil {
			width, height = uint16(size.Width), uint16(size.Height)
		}
		p.io, theirs, x.master, err = p.c.newTerminal(streams, config.User.UID, width, height)
	} else {
		p.io, theirs, err = newPipes(streams, config.User.UID)
	}
	if err != nil {
		return err
	}
	defer theirs.close()
	defer func() {
		if err != nil {
			p.io.close()
			if x.conn != nil {
				_ = x.conn.Close()
			}
			if p.fd != nil {
				p.fd.close()
			}
		}
	}()
	if err := x.connect(ctx); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = x.conn.SetDeadline(deadline)
	}
	if err := x.ask(config, theirs); err != nil {
		return err
	}
	_ = x.conn.SetDeadline(time.Time{})
	return p.io.start(func() {})
}

// connect hands one end of a new connection to the first process.
func (x *initExec) connect(ctx context.Context) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("make a socket: %w", err)
	}
	defer unix.Close(pair[1])
	x.conn = os.NewFile(uintptr(pair[0]), "exec")
	raw, err := x.rendezvous.SyscallConn()
	if err != nil {
		return fmt.Errorf("container %s is not running", x.p.c.id)
	}
	for {
		var sendErr error
		if err := raw.Control(func(fd uintptr) {
			sendErr = unix.Sendmsg(int(fd), []byte{0}, unix.UnixRights(pair[1]), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		}); err != nil {
			return fmt.Errorf("container %s is not running", x.p.c.id)
		}
		if !errors.Is(sendErr, unix.EAGAIN) && !errors.Is(sendErr, unix.EINTR) {
			return sendErr
		}
		select { // it does not take what is there already
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
}

// ask sends the request and takes the answer.
func (x *initExec) ask(config *specs.Process, theirs *theirEnds) error {
	req := initproc.Request{
		Args: config.Args, Env: config.Env, Cwd: config.Cwd, Streams: theirs.kind,
		UID: config.User.UID, GID: config.User.GID, Groups: config.User.AdditionalGids,
	}
	data := req.Encode(make([]byte, 4, 4096))
	if len(data)-4 > initproc.MaxRequest {
		return &runtime.Error{Kind: runtime.ErrNotExecutable, Message: config.Args[0] + ": argument list too long"}
	}
	binary.BigEndian.PutUint32(data, uint32(len(data)-4))
	err := x.send(data[:4], theirs.fds)
	if err == nil {
		_, err = x.conn.Write(data[4:])
	}
	var reply initproc.Reply
	fd := -1
	if err == nil {
		reply, fd, err = x.receive()
	}
	if err != nil {
		x.giveUp()
		return fmt.Errorf("start command: the container's first process: %w", err)
	}
	switch {
	case reply.Kind == initproc.ReplyFailed:
		closeIf(fd)
		return x.explain(reply, config)
	case reply.Kind != initproc.ReplyStarted || fd < 0:
		closeIf(fd)
		return errors.New("start command: the container's first process talks nonsense")
	}
	return x.take(fd)
}

func closeIf(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// giveUp makes sure that a process whose start nobody waits for any more does not
// stay: the first process kills one that it cannot report.
func (x *initExec) giveUp() {
	raw, err := x.conn.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	_ = x.conn.SetDeadline(time.Now().Add(time.Second))
	if reply, fd, err := x.receive(); err == nil && reply.Kind == initproc.ReplyStarted && fd >= 0 {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // fails for what is no process
		_ = unix.Close(fd)
	}
}

func (x *initExec) send(data []byte, fds []int) error {
	raw, err := x.conn.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	err = raw.Write(func(fd uintptr) bool {
		sendErr = unix.Sendmsg(int(fd), data, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
		return !errors.Is(sendErr, unix.EAGAIN) && !errors.Is(sendErr, unix.EINTR)
	})
	return errors.Join(err, sendErr)
}

// receive reads one reply and the descriptor with it, -1 when there is none.
func (x *initExec) receive() (initproc.Reply, int, error) {
	var data [initproc.ReplySize]byte
	oob := make([]byte, unix.CmsgSpace(4)) // for more there is no room: the kernel drops it
	var n, oobn int
	raw, err := x.conn.SyscallConn()
	if err != nil {
		return initproc.Reply{}, -1, err
	}
	var recvErr error
	err = raw.Read(func(fd uintptr) bool {
		n, oobn, _, _, recvErr = unix.Recvmsg(int(fd), data[:], oob, unix.MSG_CMSG_CLOEXEC)
		return !errors.Is(recvErr, unix.EAGAIN) && !errors.Is(recvErr, unix.EINTR)
	})
	if err = errors.Join(err, recvErr); err != nil {
		return initproc.Reply{}, -1, err
	}
	fd := -1
	if messages, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(messages) == 1 {
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) > 0 {
			fd = fds[0]
		}
	}
	if n == 0 {
		closeIf(fd)
		return initproc.Reply{}, -1, io.EOF
	}
	reply, err := initproc.DecodeReply(data[:n])
	if err != nil {
		closeIf(fd)
		return reply, -1, err
	}
	return reply, fd, nil
}

// take makes sure that a pidfd is of a process of this container.
func (x *initExec) take(fd int) error {
	pid, err := pidOf(fd)
	if err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("start command: the container's first process talks nonsense: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return err
	}
	x.p.pid, x.p.fd = pid, &pidfd{f: os.NewFile(uintptr(fd), "pidfd")}
	// One that is just ending is in no group any more, a moment before it has ended.
	for range 1000 {
		group, err := cgroupOf(pid)
		if err != nil || group == x.p.c.cgroup || !x.p.fd.alive() {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("start command: the container's first process names a process of another container")
}

// pidOf returns the pid of a pidfd, -1 when that process has been reaped. It fails
// for what is no pidfd.
func pidOf(fd int) (int, error) {
	data, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return -1, err
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "Pid:"); ok {
			return strconv.Atoi(strings.TrimSpace(value))
		}
	}
	return -1, errors.New("no handle of a process")
}

// await implements supervisor.
func (x *initExec) await() (int, error) {
	go func() {
		if x.p.fd.wait() {
			_ = x.conn.SetReadDeadline(time.Now().Add(wordPatience))
		}
	}()
	reply, fd, err := x.receive()
	closeIf(fd)
	select {
	case <-x.p.abandoned:
		return 0, errors.New("runtime was closed")
	default:
	}
	if err != nil || reply.Kind != initproc.ReplyEnded {
		// The first process has ended, and everything with it, or is not itself.
		_ = x.p.fd.signal(syscall.SIGKILL)
		x.p.fd.waitFor(wordPatience)
		return 128 + int(syscall.SIGKILL), nil
	}
	ws := syscall.WaitStatus(reply.Value)
	if ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return ws.ExitStatus(), nil
}

// ending implements supervisor.
func (x *initExec) ending(exit runtime.Exit) runtime.Exit { return exit }

// resize implements supervisor.
func (x *initExec) resize(_ context.Context, width, height uint16) error {
	if x.master == nil {
		return nil
	}
	return setSize(x.master, width, height)
}

// forget implements supervisor.
func (x *initExec) forget() { _ = x.conn.Close() }

// abandon implements supervisor.
func (x *initExec) abandon() { _ = x.conn.Close() }

// explain turns a failed start into what a caller can act on.
func (x *initExec) explain(reply initproc.Reply, config *specs.Process) error {
	errno := syscall.Errno(reply.Value)
	fail := func(kind error, format string, a ...any) error {
		return &runtime.Error{Kind: kind, Message: fmt.Sprintf(format, a...), Err: errno}
	}
	name := config.Args[0]
	at := name // as the first process sees it
	if !path.IsAbs(at) {
		at = path.Join(config.Cwd, at)
	}
	switch reply.Stage {
	case initproc.StageRequest:
		return errNoInit
	case initproc.StageDirectory:
		return x.p.c.explain(fmt.Errorf("chdir to cwd: %w", errno), config)
	case initproc.StageLookup:
		if errno == unix.ENOENT {
			return fail(runtime.ErrCommandNotFound, "%s: command not found", name)
		}
	}
	switch errno {
	case unix.ENOENT, unix.ENOTDIR:
		if _, err := x.p.c.statInside(at); strings.Contains(name, "/") && err != nil {
			return fail(runtime.ErrCommandNotFound, "%s: no such file or directory", name)
		}
		return fail(runtime.ErrNotExecutable, "%s: its interpreter does not exist", name)
	case unix.EAGAIN:
		return fail(runtime.ErrLimit, "%s: no process can be made: there are as many as may be", name)
	case unix.ENOMEM, unix.ENFILE, unix.EMFILE, unix.EIO:
		return fmt.Errorf("start command: make a process: %w", errno)
	case unix.ENOEXEC:
		return fail(runtime.ErrNotExecutable, "%s: cannot execute: exec format error", name)
	case unix.EACCES:
		if st, err := x.p.c.statInside(at); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return fail(runtime.ErrNotExecutable, "%s: is a directory", name)
		}
	}
	return fail(runtime.ErrNotExecutable, "%s: %s", name, errno)
}
