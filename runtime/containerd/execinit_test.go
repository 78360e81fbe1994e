package containerd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/runtime"
	"github.com/git-env/git-env/runtime/initproc"
)

// reachInit runs inside a container, as its root, and tries every way to the first
// process; it prints the ones that are open.
func reachInit() int {
	open := 0
	try := func(what string, err error) {
		if err == nil {
			fmt.Println("open:", what)
			open++
		}
	}
	fd, err := unix.PidfdOpen(1, 0)
	if err != nil {
		fmt.Println("no pidfd:", err)
		return 1
	}
	_, err = unix.PidfdGetfd(fd, initproc.RendezvousFd, 0)
	try("pidfd_getfd", err)
	_, err = os.OpenFile(fmt.Sprintf("/proc/1/fd/%d", initproc.RendezvousFd), os.O_RDWR, 0)
	try("a descriptor in /proc", err)
	for _, name := range []string{"mem", "environ", "maps", "auxv"} {
		f, err := os.Open("/proc/1/" + name)
		if err == nil {
			_, err = f.ReadAt(make([]byte, 1), 0)
		}
		try(name, err)
	}
	try("writing to its memory", func() error {
		_, err := os.OpenFile("/proc/1/mem", os.O_RDWR, 0)
		return err
	}())
	_, err = os.Readlink("/proc/1/exe")
	try("exe", err)
	try("ptrace", unix.PtraceSeize(1))
	local := []unix.Iovec{{Base: new(byte), Len: 1}}
	_, err = unix.ProcessVMReadv(1, local, []unix.RemoteIovec{{Base: 0x400000, Len: 1}}, 0)
	try("process_vm_readv", err)
	// What it handed down: the standard streams, and nothing else of its own. The
	// directory is open while it is read; the pidfd and Go's own are anonymous.
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		target, _ := os.Readlink("/proc/self/fd/" + e.Name())
		if strings.HasPrefix(target, "socket:") || e.Name() > "2" && strings.HasPrefix(target, "pipe:") {
			try("descriptor "+e.Name()+" "+target, nil)
		}
	}
	return open
}

// TestInitOutOfReach: root inside gets nowhere near the process that runs its
// commands.
func TestInitOutOfReach(t *testing.T) {
	b := newPlace(t).open(t)
	c := hostContainer(t, b, "reach")
	if r := try(t, c, runtime.ExecSpec{Args: []string{initPath, "reach"}}); r.err != nil || r.exit.Code != 0 || r.stdout != "" {
		t.Errorf("%v %+v", r.err, r)
	}
	// What a command is given by the first process is what the runtime gives it.
	const state = `umask; ulimit -a; id; cat /proc/self/cgroup
		grep -E '^(NoNewPrivs|Seccomp|Cap|Sig(Blk|Ign)|Umask|Groups)' /proc/self/status`
	if ours, theirs := sh(t, c, state), throughContainerd(t, b, c, state); ours != theirs {
		t.Errorf("a command has\n%s\nand by containerd\n%s", ours, theirs)
	}
}

// throughContainerd runs a line in the same container without the first process.
func throughContainerd(t *testing.T, b *Backend, c runtime.Container, line string) string {
	t.Helper()
	return strings.TrimSpace(run(t, containerdBinary(t, "ctr"), "-n", namespace, "-a", b.socket,
		"task", "exec", "--exec-id", nextExec(), c.ID(), "sh", "-c", line))
}

// TestInitAgain: who takes charge of a running container gets at its first process
// too, and one that cannot is said to.
func TestInitAgain(t *testing.T) {
	p := newPlace(t)
	first := p.open(t)
	hostContainer(t, first, "again")
	second := p.open(t)
	c, err := second.Get(testContext(t), "again")
	if err != nil {
		t.Fatal(err)
	}
	if text := sh(t, c, "echo $PPID"); text != "1" {
		t.Errorf("the parent of a command is %s", text)
	}
}

// TestLyingInit: what a first process says that was taken over is not believed,
// and it holds up nobody.
func TestLyingInit(t *testing.T) {
	b := newPlace(t).open(t)
	c := hostContainer(t, b, "lying").(*container)
	for name, test := range map[string]struct {
		answer func(conn int)
		want   string
	}{
		"a process of somebody else": {func(conn int) {
			own, _ := unix.PidfdOpen(os.Getpid(), 0)
			defer unix.Close(own)
			_ = unix.Sendmsg(conn, initproc.Reply{Kind: initproc.ReplyStarted}.Encode(), unix.UnixRights(own), nil, 0)
		}, "another container"},
		"no process": {func(conn int) {
			_ = unix.Sendmsg(conn, initproc.Reply{Kind: initproc.ReplyStarted}.Encode(), unix.UnixRights(conn), nil, 0)
		}, "nonsense"},
		"none at all": {func(conn int) {
			_ = unix.Sendmsg(conn, initproc.Reply{Kind: initproc.ReplyStarted}.Encode(), nil, nil, 0)
		}, "nonsense"},
		"an end first": {func(conn int) {
			_ = unix.Sendmsg(conn, initproc.Reply{Kind: initproc.ReplyEnded}.Encode(), nil, nil, 0)
		}, "nonsense"},
		"garbage": {func(conn int) { _ = unix.Sendmsg(conn, []byte("garbage, and much of it"), nil, nil, 0) }, "malformed"},
		"nothing": {func(int) {}, "the container's first process"},
		"silence": {nil, "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(pair[1])
			mine := os.NewFile(uintptr(pair[0]), "rendezvous")
			defer mine.Close()
			if test.answer != nil {
				go func() {
					oob := make([]byte, 64)
					_, n, _, _, _ := unix.Recvmsg(pair[1], make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
					messages, _ := unix.ParseSocketControlMessage(oob[:n])
					fds, _ := unix.ParseUnixRights(&messages[0])
					// The whole request: what is left unread would break the connection.
					head := make([]byte, 4)
					readFull(fds[0], head)
					readFull(fds[0], make([]byte, binary.BigEndian.Uint32(head)))
					test.answer(fds[0])
					_ = unix.Close(fds[0])
				}()
			}
			p := &process{c: c, id: nextExec(), command: "true"}
			x := &initExec{p: p, rendezvous: mine}
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			defer cancel()
			config, err := c.execConfig(&runtime.ExecSpec{ID: p.id, Args: []string{"true"}})
			if err != nil {
				t.Fatal(err)
			}
			err = x.start(ctx, config, runtime.IO{})
			if err == nil || errors.Is(err, errNoInit) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

func readFull(fd int, data []byte) {
	for len(data) > 0 {
		n, err := unix.Read(fd, data)
		if errors.Is(err, unix.EAGAIN) {
			time.Sleep(time.Millisecond)
			continue
		}
		if n <= 0 {
			return
		}
		data = data[n:]
	}
}
