package network

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

// echo answers each connection with what it says, to its end.
func echo(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}

func echoPackets(pc net.PacketConn) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = pc.WriteTo(buf[:n], from)
	}
}

func TestConnections(t *testing.T) {
	far := world(t)
	_, ns := container(t, Rules{}, Options{})
	for _, host := range []string{theirAddr4, theirAddr6, theirPrivate} {
		t.Run(host, func(t *testing.T) {
			ln := listen(t, far, "tcp", net.JoinHostPort(host, "0"))
			go echo(ln)
			c := mustDial(t, ns, "tcp", ln.Addr().String())
			// More than fits any buffer, both ways, with an end that is passed on.
			data := make([]byte, 8<<20)
			rng := rand.NewChaCha8([32]byte{1})
			_, _ = rng.Read(data)
			go func() {
				_, _ = c.Write(data)
				_ = c.(*net.TCPConn).CloseWrite()
			}()
			got, err := io.ReadAll(c)
			if err != nil || sha256.Sum256(got) != sha256.Sum256(data) {
				t.Errorf("%d bytes came back (%v), want the %d that were sent", len(got), err, len(data))
			}
		})
	}
}

func TestConnectionFailures(t *testing.T) {
	far := world(t)
	_, ns := container(t, Rules{}, Options{})
	ln := listen(t, far, "tcp", theirAddr4+":0")
	addr := ln.Addr().String()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := ln.Accept()
		if err == nil {
			accepted <- c
		}
	}()
	c := mustDial(t, ns, "tcp", addr)
	their := (<-accepted).(*net.TCPConn)
	_ = their.SetLinger(0) // closing breaks the connection
	_ = their.Close()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a broken connection reads %v, want a reset", err)
	}
	_ = ln.Close()
	refusedAt(t, ns, addr)
}

func TestDatagrams(t *testing.T) {
	far := world(t)
	_, ns := container(t, Rules{}, Options{})
	for _, host := range []string{theirAddr4, theirAddr6} {
		t.Run(host, func(t *testing.T) {
			pc := listenPacket(t, far, "udp", net.JoinHostPort(host, "0"))
			go echoPackets(pc)
			c := mustDial(t, ns, "udp", pc.LocalAddr().String())
			for _, size := range []int{1, 1400, 9000, 60000} {
				sent := bytes.Repeat([]byte{byte(size)}, size)
				got := make([]byte, 1<<16)
				n, err := ask(c, sent, got)
				for err == nil && n < size { // answered once more than heard
					n, err = c.Read(got)
				}
				if err != nil || !bytes.Equal(got[:n], sent) {
					t.Errorf("of %d bytes %d came back: %v", size, n, err)
				}
			}
		})
	}
}

// ask sends a datagram and waits for the answer, again when one is lost.
func ask(c net.Conn, sent, got []byte) (n int, err error) {
	for range 20 {
		if _, err = c.Write(sent); err != nil {
			continue
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		if n, err = c.Read(got); err == nil {
			return n, nil
		}
	}
	return n, err
}

func TestFlowsAreForgotten(t *testing.T) {
	far := world(t)
	limits := DefaultLimits()
	limits.UDP, limits.TCP, limits.IdleUDP = 2, 2, 50*time.Millisecond
	n, ns := container(t, Rules{}, Options{Limits: limits})
	pc := listenPacket(t, far, "udp", theirAddr4+":0")
	go echoPackets(pc)
	ln := listen(t, far, "tcp", theirAddr4+":0")
	go echo(ln)
	for i := range 5 { // more than there may be at a time
		c := mustDial(t, ns, "udp", pc.LocalAddr().String())
		if _, err := ask(c, []byte("x"), make([]byte, 8)); err != nil {
			t.Errorf("flow %d: %v", i, err)
		}
	}
	a, b := mustDial(t, ns, "tcp", ln.Addr().String()), mustDial(t, ns, "tcp", ln.Addr().String())
	refusedAt(t, ns, ln.Addr().String())
	_, _ = a.Close(), b.Close()
	waitFor(t, func() bool { return n.uplink.tcp.Load() == 0 && n.uplink.udp.Load() == 0 })
	mustDial(t, ns, "tcp", ln.Addr().String())
}

// waitFor waits for something that happens soon, without saying when.
func waitFor(t testing.TB, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not happen")
		}
	}
}

// TestHostIsOutOfReach tries every way to the host itself that there is.
func TestHostIsOutOfReach(t *testing.T) {
	world(t)
	open := listen(t, nil, "tcp", ":0") // on all interfaces, both families
	go echo(open)
	port := fmt.Sprint(portOf(t, open.Addr()))
	n, ns := container(t, Rules{}, Options{})
	watch := n.Watch()
	for _, host := range []string{
		ourAddr4, ourAddr6, "10.77.0.1", // its own addresses
		"198.19.255.3", "fd67:6974:656e:7600::3", // what stands for its loopback
		"198.19.255.1", "fd67:6974:656e:7600::1", "198.19.255.4", // the gateway
		"169.254.169.254", "fd00:ec2::254", "168.63.129.16", "100.100.100.200",
		"64:ff9b::7f00:1", "64:ff9b::203.0.113.1", "2002:7f00:1::1", "2002:cb00:7101::1", "::7f00:1",
	} {
		refusedAt(t, ns, net.JoinHostPort(host, port))
	}
	list, _ := watch.Stop()
	if len(list) < 16 {
		t.Errorf("only %d attempts were noted: %v", len(list), list)
	}
	if got, want := list[0].String(), "refused "+ourAddr4+":"+port+": an address of the host cannot be reached"; got != want {
		t.Errorf("noted %q, want %q", got, want)
	}
	// Opened, its loopback is reached.
	if err := n.SetRules(Rules{HostPorts: []int{int(portOf(t, open.Addr()))}}); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"198.19.255.3", "fd67:6974:656e:7600::3"} {
		c := mustDial(t, ns, "tcp", net.JoinHostPort(host, port))
		got := make([]byte, 2)
		if _, err := c.Write([]byte("hi")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, got); err != nil || string(got) != "hi" {
			t.Errorf("%s answers %q: %v", host, got, err)
		}
	}
	refusedAt(t, ns, "198.19.255.3:1")
	refusedAt(t, ns, ourAddr4+":"+port)
}

func TestNone(t *testing.T) {
	far := world(t)
	ln := listen(t, far, "tcp", theirAddr4+":0")
	go echo(ln)
	n, ns := container(t, Rules{Mode: None}, Options{})
	if c, err := dial(ns, "tcp", ln.Addr().String()); !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("connected to the world: %v %v", c, err)
	}
	own := listen(t, ns, "tcp", "127.0.0.1:0")
	go echo(own)
	mustDial(t, ns, "tcp", own.Addr().String())
	// Given a network, and deprived of it again.
	if err := n.SetRules(Rules{Mode: Full}); err != nil {
		t.Fatal(err)
	}
	c := mustDial(t, ns, "tcp", ln.Addr().String())
	if err := n.SetRules(Rules{Mode: None}); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection of a network that is gone reads %q, %v", got, err)
	}
	if c, err := dial(ns, "tcp", ln.Addr().String()); !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("connected to the world: %v %v", c, err)
	}
	if out := inNet(t, ns, "ip -o link"); strings.Count(out, "\n") != 1 {
		t.Errorf("more than loopback is left: %s", out)
	}
}
