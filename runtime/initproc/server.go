package initproc

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// requestTimeout bounds how long a connection may take to say what it wants.
const requestTimeout = 30 * time.Second

// server takes requests.
type server struct {
	children *children
	in       int      // what the daemon's messages come out of
	null     *os.File // nil when there is no /dev/null
}

// newServer makes the rendezvous. The descriptor for the daemon is there once
// everything else is.
func newServer(c *children) (*server, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	s := &server{children: c, in: pair[0]}
	// Opened before any command can have replaced it.
	if fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
		s.null = os.NewFile(uintptr(fd), "/dev/null")
	}
	if err := unix.Dup3(pair[1], RendezvousFd, unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	return s, unix.Close(pair[1])
}

// serve takes connections for ever.
func (s *server) serve() {
	for {
		conn, err := receiveOne(s.in)
		if errors.Is(err, io.EOF) {
			return // nobody has the other end any more
		}
		if err != nil {
			time.Sleep(time.Millisecond) // for lack of descriptors or memory
			continue
		}
		if conn >= 0 {
			go s.handle(conn)
		}
	}
}

// receiveOne waits for a message; -1 when it carried no single descriptor.
func receiveOne(fd int) (int, error) {
	var data [8]byte
	oob := make([]byte, unix.CmsgSpace(4*4))
	for {
		size, n, _, _, err := unix.Recvmsg(fd, data[:], oob, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && size == 0 && n == 0 {
			err = io.EOF
		}
		if err != nil {
			return -1, err
		}
		fds := parseRights(oob[:n])
		if len(fds) != 1 {
			closeAll(fds)
			return -1, nil
		}
		return fds[0], nil
	}
}

// parseRights returns the descriptors in a control message.
func parseRights(oob []byte) (fds []int) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range messages {
		if some, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, some...)
		}
	}
	return fds
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// handle serves one connection: runs one command.
func (s *server) handle(fd int) {
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return
	}
	conn := os.NewFile(uintptr(fd), "command")
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(requestTimeout))
	req, fds, err := readRequest(conn)
	defer func() { closeAll(fds) }()
	if err != nil {
		_, _ = conn.Write(Reply{Kind: ReplyFailed, Stage: StageRequest, Value: uint32(syscall.EPROTO)}.Encode())
		return
	}
	end := make(chan syscall.WaitStatus, 1)
	pidfd, fail := s.start(req, fds, end)
	closeAll(fds) // the command has them: pipes are to end with it
	fds = nil
	if fail != nil {
		_, _ = conn.Write(fail.Encode())
		return
	}
	err = sendWith(conn, Reply{Kind: ReplyStarted}.Encode(), pidfd)
	if err != nil { // who asked has gone, and does not know of it
		_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
	}
	_ = unix.Close(pidfd)
	ws := <-end
	_, _ = conn.Write(Reply{Kind: ReplyEnded, Value: uint32(ws)}.Encode())
}

// readRequest reads a request and the descriptors with it.
func readRequest(conn *os.File) (*Request, []int, error) {
	var head [4]byte
	fds, err := receiveWith(conn, head[:])
	if err != nil {
		return nil, fds, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxRequest {
		return nil, fds, errMalformed
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(conn, data); err != nil {
		return nil, fds, err
	}
	req := &Request{}
	if err := req.Decode(data); err != nil {
		return nil, fds, err
	}
	if len(fds) != req.Streams.Count() {
		return nil, fds, errMalformed
	}
	return req, fds, nil
}

// receiveWith fills data with one message and returns the descriptors in it.
func receiveWith(conn *os.File, data []byte) (fds []int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	oob := make([]byte, unix.CmsgSpace(4*4))
	var n, oobn int
	var recvErr error
	err = raw.Read(func(fd uintptr) bool {
		n, oobn, _, _, recvErr = unix.Recvmsg(int(fd), data, oob, unix.MSG_CMSG_CLOEXEC)
		return !errors.Is(recvErr, unix.EAGAIN) && !errors.Is(recvErr, unix.EINTR)
	})
	if err = errors.Join(err, recvErr); err != nil {
		return nil, err
	}
	fds = parseRights(oob[:oobn])
	if n != len(data) {
		return fds, io.ErrUnexpectedEOF
	}
	return fds, nil
}

// sendWith sends one short message with a descriptor.
func sendWith(conn *os.File, data []byte, attached int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	err = raw.Write(func(fd uintptr) bool {
		sendErr = unix.Sendmsg(int(fd), data, unix.UnixRights(attached), nil, unix.MSG_NOSIGNAL)
		return !errors.Is(sendErr, unix.EAGAIN) && !errors.Is(sendErr, unix.EINTR)
	})
	return errors.Join(err, sendErr)
}
