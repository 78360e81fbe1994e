package initproc

import (
	"encoding/binary"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// startServer serves in this process and returns what the daemon would get.
func startServer(t *testing.T) int {
	t.Helper()
	if os.Geteuid() != 0 && os.Getenv("GITENV_TEST_REQUIRE") != "1" {
		t.Skip("sets users and groups, which takes root")
	}
	c := &children{}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD)
	go func() {
		for range signals {
			c.reap()
		}
	}()
	t.Cleanup(func() { signal.Stop(signals); close(signals) })
	s, err := newServer(c)
	if err != nil {
		t.Fatal(err)
	}
	go s.serve()
	own, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(own)
	fd, err := unix.PidfdGetfd(own, RendezvousFd, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// connection is one with the server.
func connection(t *testing.T, rendezvous int) *os.File {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn := os.NewFile(uintptr(pair[0]), "conn")
	t.Cleanup(func() { _ = conn.Close() })
	if err := unix.Sendmsg(rendezvous, []byte{0}, unix.UnixRights(pair[1]), nil, 0); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(pair[1])
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	return conn
}

// ask sends a request with the write end of a pipe as both outputs, and returns
// the read end.
func ask(t *testing.T, conn *os.File, req Request) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	defer w.Close()
	data := req.Encode(make([]byte, 4))
	binary.BigEndian.PutUint32(data, uint32(len(data)-4))
	fd := int(w.Fd())
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(c uintptr) { err = unix.Sendmsg(int(c), data, unix.UnixRights(fd, fd), nil, 0) }); err != nil {
		t.Fatal(err)
	}
	return r
}

func answer(t *testing.T, conn *os.File) (Reply, []int) {
	t.Helper()
	data := make([]byte, ReplySize)
	fds, err := receiveWith(conn, data)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := DecodeReply(data)
	if err != nil {
		t.Fatal(err)
	}
	return reply, fds
}

func TestServe(t *testing.T) {
	rendezvous := startServer(t)
	env := []string{"PATH=/bin:/usr/bin", "A=b"}
	for range 20 { // some end before their start is noted
		conn := connection(t, rendezvous)
		out := ask(t, conn, Request{Args: []string{"sh", "-c", `echo "$A" "$PWD"; cat; exit 3`}, Env: env, Cwd: "/usr"})
		reply, fds := answer(t, conn)
		if reply.Kind != ReplyStarted || len(fds) != 1 {
			t.Fatalf("%+v, %v", reply, fds)
		}
		if text, err := io.ReadAll(out); err != nil || string(text) != "b /usr\n" {
			t.Errorf("%q, %v", text, err)
		}
		reply, _ = answer(t, conn)
		if ws := syscall.WaitStatus(reply.Value); reply.Kind != ReplyEnded || ws.ExitStatus() != 3 {
			t.Errorf("%+v", reply)
		}
		closeAll(fds)
	}
	for _, test := range []struct {
		req  Request
		want Reply
	}{
		{Request{Args: []string{"no-such"}, Env: env, Cwd: "/"}, Reply{ReplyFailed, StageLookup, uint32(unix.ENOENT)}},
		{Request{Args: []string{"/no/such"}, Env: env, Cwd: "/"}, Reply{ReplyFailed, StageExec, uint32(unix.ENOENT)}},
		{Request{Args: []string{"/etc"}, Env: env, Cwd: "/"}, Reply{ReplyFailed, StageExec, uint32(unix.EACCES)}},
		{Request{Args: []string{"true"}, Env: env, Cwd: "/no/such"}, Reply{ReplyFailed, StageDirectory, uint32(unix.ENOENT)}},
		{Request{Args: []string{"/bin/true"}, Env: env, Cwd: "/etc/passwd"}, Reply{ReplyFailed, StageDirectory, uint32(unix.ENOTDIR)}},
		{Request{Args: []string{"true"}, Cwd: "/"}, Reply{ReplyFailed, StageLookup, uint32(unix.ENOENT)}},
		{Request{Args: []string{"true"}, Env: env, Cwd: "/", Streams: StreamsTerminal}, Reply{ReplyFailed, StageRequest, uint32(unix.EPROTO)}},
	} {
		conn := connection(t, rendezvous)
		ask(t, conn, test.req)
		if reply, fds := answer(t, conn); reply != test.want || len(fds) != 0 {
			t.Errorf("%v: %+v, want %+v", test.req.Args, reply, test.want)
		}
	}
}

// TestGivenUp: a command whose start cannot be reported does not stay.
func TestGivenUp(t *testing.T) {
	rendezvous := startServer(t)
	conn := connection(t, rendezvous)
	out := ask(t, conn, Request{Args: []string{"sleep", "1000"}, Env: []string{"PATH=/bin:/usr/bin"}, Cwd: "/"})
	_ = conn.Close()
	_ = out.SetReadDeadline(time.Now().Add(30 * time.Second))
	if text, err := io.ReadAll(out); err != nil || len(text) != 0 {
		t.Errorf("%q, %v", text, err)
	}
}

func TestMessagesWithoutConnection(t *testing.T) {
	rendezvous := startServer(t)
	if err := unix.Sendmsg(rendezvous, []byte{0}, nil, nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendmsg(rendezvous, []byte(strings.Repeat("x", 100)), unix.UnixRights(0, 1), nil, 0); err != nil {
		t.Fatal(err)
	}
	conn := connection(t, rendezvous)
	out := ask(t, conn, Request{Args: []string{"true"}, Env: []string{"PATH=/bin:/usr/bin"}, Cwd: "/"})
	if reply, fds := answer(t, conn); reply.Kind != ReplyStarted {
		t.Errorf("%+v", reply)
	} else {
		closeAll(fds)
	}
	_ = out.Close()
}
