package network

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inNet runs a command in a namespace and returns its output.
func inNet(t testing.TB, ns *os.File, line string) string {
	t.Helper()
	words := append([]string{"--net=" + fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd())}, strings.Fields(line)...)
	out, err := exec.Command("nsenter", words...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// TestHostilePackets sends what no kernel would, from inside.
func TestHostilePackets(t *testing.T) {
	far := world(t)
	ln := listen(t, far, "tcp", theirAddr4+":0")
	go echo(ln)
	n, ns := container(t, Rules{}, Options{})
	fd := packetSocket(t, ns)
	rng := rand.New(rand.NewPCG(1, 2))
	valid := packets(portOf(t, ln.Addr()))
	for range 30_000 {
		p := append([]byte(nil), valid[rng.IntN(len(valid))]...)
		for range rng.IntN(6) {
			p[rng.IntN(len(p))] = byte(rng.Uint32())
		}
		_, _ = unix.Write(fd, p[:1+rng.IntN(len(p))])
	}
	// A flood of beginnings, from ports that nobody has.
	for port := range 20_000 {
		p := append([]byte(nil), valid[0]...)
		p[20], p[21] = byte(port>>8), byte(port)
		_, _ = unix.Write(fd, checksummed(p))
	}
	c := mustDialAgain(t, ns, ln.Addr().String())
	if _, err := c.Write([]byte("alive")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	if open := n.uplink.tcp.Load(); open > int64(n.opts.Limits.TCP) {
		t.Errorf("%d connections, more than the limit", open)
	}
}

// mustDialAgain dials until the flood has passed.
func mustDialAgain(t testing.TB, ns *os.File, addr string) net.Conn {
	t.Helper()
	var c net.Conn
	waitFor(t, func() (ok bool) {
		var err error
		c, err = dial(ns, "tcp", addr)
		return err == nil
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// packetSocket sends whole packets on the container's device.
func packetSocket(t testing.TB, ns *os.File) int {
	t.Helper()
	var fd int
	within(t, ns, func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		index, err := interfaceIndex(device)
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0x0008, Ifindex: index}) // ETH_P_IP, big-endian
	})
	if err := unix.Connect(fd, &unix.SockaddrLinklayer{}); err != nil && err != unix.EOPNOTSUPP {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// packets are a SYN, a datagram, an echo request and the like, all well-formed.
func packets(port uint16) [][]byte {
	ip4 := func(proto byte, dst string, body ...byte) []byte {
		p := []byte{0x45, 0, 0, byte(20 + len(body)), 0, 1, 0, 0, 64, proto, 0, 0, 198, 19, 255, 2}
		p = append(p, net.ParseIP(dst).To4()...)
		return checksummed(append(p, body...))
	}
	ip6 := func(next byte, dst string, body ...byte) []byte {
		p := []byte{0x60, 0, 0, 0, 0, byte(len(body)), next, 64}
		p = append(p, net.ParseIP("fd67:6974:656e:7600::2")...)
		return append(append(p, net.ParseIP(dst)...), body...)
	}
	tcp := []byte{0x99, 1, byte(port >> 8), byte(port), 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0}
	udp := []byte{0x99, 2, 0, 53, 0, 20, 0, 0, 1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	ping := []byte{8, 0, 0, 0, 0, 1, 0, 1, 'p', 'i', 'n', 'g'}
	fragment := ip4(17, "198.19.255.1", udp...)
	fragment[6] = 0x20 // more of it follows
	options := append([]byte{0x4f, 0, 0, 80, 0, 1, 0, 0, 64, 6, 0, 0, 198, 19, 255, 2}, net.ParseIP(theirAddr4).To4()...)
	options = append(append(options, make([]byte, 40)...), tcp...)
	return [][]byte{
		ip4(6, theirAddr4, tcp...), ip4(17, "198.19.255.1", udp...), ip4(1, "198.19.255.1", ping...), ip4(1, theirAddr4, ping...),
		fragment, options, ip4(2, "224.0.0.22", ping...), ip4(17, "255.255.255.255", udp...), ip4(6, "198.19.255.2", tcp...),
		ip6(6, theirAddr6, tcp...), ip6(17, "fd67:6974:656e:7600::1", udp...), ip6(58, "fd67:6974:656e:7600::1", append([]byte{128}, ping[1:]...)...),
		ip6(0, theirAddr6, append([]byte{6, 0, 1, 4, 0, 0, 0, 0}, tcp...)...), ip6(44, theirAddr6, append([]byte{17, 0, 0, 1, 0, 0, 0, 1}, udp...)...),
		ip6(58, "ff02::1", ping...), {0x45}, {0x60, 0}, {0xff, 0xff},
	}
}

// checksummed sets the checksums of an IPv4 packet with TCP in it.
func checksummed(p []byte) []byte {
	sum := func(b []byte, start uint32) uint16 {
		for i := 0; i+1 < len(b); i += 2 {
			start += uint32(b[i])<<8 | uint32(b[i+1])
		}
		for start > 0xffff {
			start = start>>16 + start&0xffff
		}
		return ^uint16(start)
	}
	p[10], p[11] = 0, 0
	s := sum(p[:20], 0)
	p[10], p[11] = byte(s>>8), byte(s)
	if p[9] == 6 && len(p) >= 40 {
		p[36], p[37] = 0, 0
		pseudo := append(append([]byte(nil), p[12:20]...), 0, 6, 0, byte(len(p)-20))
		s = sum(append(pseudo, p[20:]...), 0)
		p[36], p[37] = byte(s>>8), byte(s)
	}
	return p
}

// TestTakenOver is the end of a daemon with another one after it: the device and
// its addresses stay, what was connected breaks, and new connections work.
func TestTakenOver(t *testing.T) {
	far := world(t)
	ln := listen(t, far, "tcp", theirAddr4+":0")
	go echo(ln)
	first, ns := container(t, Rules{}, Options{})
	old := mustDial(t, ns, "tcp", ln.Addr().String())
	before := inNet(t, ns, "ip -o addr show "+device)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	joinNetwork(t, ns, Rules{}, Options{})
	if after := inNet(t, ns, "ip -o addr show "+device); after != before {
		t.Errorf("the device was\n%sand is\n%s", before, after)
	}
	if got, err := io.ReadAll(old); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection of before reads %q, %v", got, err)
	}
	c := mustDial(t, ns, "tcp", ln.Addr().String())
	if _, err := c.Write([]byte("x")); err != nil {
		t.Error(err)
	}
}

// TestNothingIsLeft looks for goroutines and descriptors of networks that ended
// in the middle of everything.
func TestNothingIsLeft(t *testing.T) {
	far := world(t)
	ln := listen(t, far, "tcp", theirAddr4+":0")
	go echo(ln)
	pc := listenPacket(t, far, "udp", theirAddr4+":0")
	go echoPackets(pc)
	routines, fds := runtime.NumGoroutine(), descriptors(t)
	for range 5 {
		ns := newNamespace(t)
		n := joinNetwork(t, ns, Rules{}, Options{Resolvers: nil})
		var conns []net.Conn
		for range 10 {
			conns = append(conns, mustDial(t, ns, "tcp", ln.Addr().String()))
			u := mustDial(t, ns, "udp", pc.LocalAddr().String())
			if _, err := ask(u, []byte("x"), make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			conns = append(conns, u)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		for _, c := range conns {
			_ = c.Close()
		}
		_ = ns.Close()
	}
	waitFor(t, func() bool {
		if runtime.NumGoroutine() <= routines && descriptors(t) <= fds {
			return true
		}
		runtime.GC() // of pipes that io.Copy keeps
		time.Sleep(10 * time.Millisecond)
		return false
	})
}

func descriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
