package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// insideVariable marks the process that runs the tests, in a network namespace
// of its own: what they set up is seen by nobody, and nothing can get out.
const insideVariable = "GITENV_NETWORK_TEST_INSIDE"

// TestMain runs the tests in a network namespace that nothing leads out of.
func TestMain(m *testing.M) {
	if os.Getenv(insideVariable) != "" {
		os.Exit(m.Run())
	}
	if why := lacking(); why != "" {
		if os.Getenv("GITENV_TEST_REQUIRE") != "" {
			fmt.Fprintln(os.Stderr, "the tests of networks need "+why)
			os.Exit(1)
		}
		fmt.Fprintln(os.Stderr, "skipped: the tests of networks need "+why)
		os.Exit(0)
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(cmd.ProcessState.ExitCode())
}

func lacking() string {
	if os.Geteuid() != 0 {
		return "root"
	}
	if f, err := os.OpenFile(tunPath, os.O_RDWR, 0); err != nil {
		return tunPath
	} else {
		_ = f.Close()
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return "ip (package iproute2)"
	}
	return ""
}

// Addresses of the host that the test makes and of another machine beside it.
const (
	ourAddr4, theirAddr4 = "203.0.113.1", "203.0.113.2"
	ourAddr6, theirAddr6 = "2001:db8:77::1", "2001:db8:77::2"
	theirPrivate         = "10.77.0.2"
)

// newNamespace makes a network namespace that ends with the test.
func newNamespace(t testing.TB) *os.File {
	t.Helper()
	type made struct {
		ns  *os.File
		err error
	}
	done := make(chan made)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends
		err := unix.Unshare(unix.CLONE_NEWNET)
		var ns *os.File
		if err == nil {
			ns, err = os.Open("/proc/thread-self/ns/net")
		}
		done <- made{ns, err}
	}()
	m := <-done
	if m.err != nil {
		t.Fatal(m.err)
	}
	t.Cleanup(func() { _ = m.ns.Close() })
	return m.ns
}

// world is another machine, a cable away from the host.
func world(t testing.TB) *os.File {
	t.Helper()
	ns := newNamespace(t)
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd())
	ip(t, "link set lo up")
	ip(t, "link add ours type veth peer name theirs netns "+path)
	t.Cleanup(func() { ip(t, "link delete ours") })
	ip(t, "addr add "+ourAddr4+"/24 dev ours")
	ip(t, "addr add 10.77.0.1/24 dev ours")
	ip(t, "-6 addr add "+ourAddr6+"/64 dev ours nodad")
	ip(t, "link set ours up")
	in := "nsenter --net=" + path + " ip "
	for _, line := range []string{"link set lo up", "addr add " + theirAddr4 + "/24 dev theirs", "addr add " + theirPrivate + "/24 dev theirs",
		"-6 addr add " + theirAddr6 + "/64 dev theirs nodad", "link set theirs up"} {
		command(t, in+line)
	}
	return ns
}

func ip(t testing.TB, args string) {
	t.Helper()
	command(t, "ip "+args)
}

func command(t testing.TB, line string) {
	t.Helper()
	words := strings.Fields(line)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// container gives a namespace of its own a network.
func container(t testing.TB, rules Rules, opts Options) (*Network, *os.File) {
	t.Helper()
	ns := newNamespace(t)
	return joinNetwork(t, ns, rules, opts), ns
}

func joinNetwork(t testing.TB, ns *os.File, rules Rules, opts Options) *Network {
	t.Helper()
	if opts.Warn == nil {
		opts.Warn = func(format string, args ...any) { t.Errorf(format, args...) }
	}
	fd, err := unix.FcntlInt(ns.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	n, err := attach(os.NewFile(uintptr(fd), "netns"), rules, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// listen listens in a namespace; nil is that of the test itself.
func listen(t testing.TB, ns *os.File, network, addr string) net.Listener {
	t.Helper()
	var ln net.Listener
	within(t, ns, func() (err error) {
		ln, err = net.Listen(network, addr)
		return err
	})
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

func listenPacket(t testing.TB, ns *os.File, network, addr string) net.PacketConn {
	t.Helper()
	var pc net.PacketConn
	within(t, ns, func() (err error) {
		pc, err = net.ListenPacket(network, addr)
		return err
	})
	t.Cleanup(func() { _ = pc.Close() })
	return pc
}

func within(t testing.TB, ns *os.File, do func() error) {
	t.Helper()
	err := error(nil)
	if ns == nil {
		err = do()
	} else {
		err = inNamespace(ns, do)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// patience is far more than anything here takes.
const patience = 20 * time.Second

// dial connects from a namespace.
func dial(ns *os.File, network, addr string) (net.Conn, error) {
	var c net.Conn
	err := inNamespace(ns, func() (err error) {
		c, err = net.DialTimeout(network, addr, patience)
		return err
	})
	if err == nil {
		_ = c.SetDeadline(time.Now().Add(patience))
	}
	return c, err
}

func mustDial(t testing.TB, ns *os.File, network, addr string) net.Conn {
	t.Helper()
	c, err := dial(ns, network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// refusedAt checks that a connection is refused, at once and not by silence.
func refusedAt(t testing.TB, ns *os.File, addr string) {
	t.Helper()
	c, err := dial(ns, "tcp", addr)
	if err == nil {
		_ = c.Close()
		t.Errorf("%s could be reached", addr)
	} else if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%s: %v, want a refusal", addr, err)
	}
}

func portOf(t testing.TB, a net.Addr) uint16 {
	t.Helper()
	p, err := netip.ParseAddrPort(a.String())
	if err != nil {
		t.Fatal(err)
	}
	return p.Port()
}
