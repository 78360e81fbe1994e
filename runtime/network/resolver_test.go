package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// zone answers for the names that it has; one name has more addresses than fit
// into an answer over UDP, and one is another name for the first.
func zone(asked []byte, stream bool) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(asked)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	reply := dnsmessage.Message{Header: dnsmessage.Header{ID: h.ID, Response: true, RecursionAvailable: true}, Questions: []dnsmessage.Question{q}}
	add := func(name, addr string) {
		head := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name), Class: dnsmessage.ClassINET, TTL: 60}
		a := netip.MustParseAddr(addr)
		switch {
		case a.Is4() && q.Type == dnsmessage.TypeA:
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: a.As4()}})
		case a.Is6() && q.Type == dnsmessage.TypeAAAA:
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	switch name := strings.ToLower(q.Name.String()); name {
	case "web.example.com.", "other.example.net.":
		add(name, theirAddr4)
		add(name, theirAddr6)
	case "alias.example.com.":
		reply.Answers = append(reply.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 60},
			Body:   &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName("web.example.com.")}})
		add("web.example.com.", theirAddr4)
	case "rebound.example.com.":
		add(name, "127.0.0.1")
		add(name, ourAddr4)
		add(name, "169.254.169.254")
	case "inner.example.com.":
		add(name, theirPrivate)
	case "many.example.com.":
		for i := range 100 {
			add(name, fmt.Sprintf("203.0.113.%d", i+100))
		}
	default:
		reply.RCode = dnsmessage.RCodeNameError
	}
	b, err := reply.Pack()
	if err != nil {
		return nil
	}
	if len(b) > 512 && !stream {
		reply.Answers, reply.Truncated = nil, true
		b, _ = reply.Pack()
	}
	return b
}

// nameServer answers from zone on the host's loopback.
func nameServer(t testing.TB) netip.AddrPort {
	t.Helper()
	ip(t, "link set lo up")
	pc := listenPacket(t, nil, "udp", "127.0.0.1:0")
	ln := listen(t, nil, "tcp", pc.LocalAddr().String())
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			if reply := zone(buf[:n], false); reply != nil {
				_, _ = pc.WriteTo(reply, from)
			}
		}
	}()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if asked, err := readFramed(c); err == nil {
				_ = writeFramed(c, zone(asked, true))
			}
			_ = c.Close()
		}
	}()
	return netip.MustParseAddrPort(pc.LocalAddr().String())
}

// resolve asks the container's resolver, as a program inside would.
func resolve(t testing.TB, ns *os.File, network, server, name string, kind dnsmessage.Type) (dnsmessage.Message, error) {
	t.Helper()
	asked, err := (&dnsmessage.Message{Header: dnsmessage.Header{ID: 77, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}}}).Pack()
	if err != nil {
		t.Fatal(err)
	}
	c := mustDial(t, ns, network, net.JoinHostPort(server, "53"))
	defer c.Close()
	got := make([]byte, 1<<16)
	if network == "tcp" {
		if err = writeFramed(c, asked); err == nil {
			got, err = readFramed(c)
		}
	} else {
		var n int
		n, err = ask(c, asked, got)
		got = got[:n]
	}
	var m dnsmessage.Message
	return m, errors.Join(err, m.Unpack(got))
}

func addresses(m dnsmessage.Message) (out []string) {
	for _, a := range m.Answers {
		switch b := a.Body.(type) {
		case *dnsmessage.AResource:
			out = append(out, netip.AddrFrom4(b.A).String())
		case *dnsmessage.AAAAResource:
			out = append(out, netip.AddrFrom16(b.AAAA).String())
		}
	}
	return out
}

func TestResolver(t *testing.T) {
	server := nameServer(t)
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1 me\n203.0.113.7 printer printer.lan # comment\n2001:db8:77::7 Printer\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, ns := container(t, Rules{HostPorts: []int{80}}, Options{Resolvers: []netip.AddrPort{server}, Hosts: hosts})
	for _, c := range []struct {
		network, server, name string
		kind                  dnsmessage.Type
		code                  dnsmessage.RCode
		want                  string
	}{
		{"udp", "198.19.255.1", "web.example.com.", dnsmessage.TypeA, 0, theirAddr4},
		{"udp", "198.19.255.1", "WEB.example.com.", dnsmessage.TypeAAAA, 0, theirAddr6},
		{"udp", "fd67:6974:656e:7600::1", "alias.example.com.", dnsmessage.TypeA, 0, theirAddr4},
		{"tcp", "198.19.255.1", "web.example.com.", dnsmessage.TypeA, 0, theirAddr4},
		{"tcp", "fd67:6974:656e:7600::1", "web.example.com.", dnsmessage.TypeA, 0, theirAddr4},
		{"udp", "198.19.255.1", "printer.lan.", dnsmessage.TypeA, 0, "203.0.113.7"},
		{"udp", "198.19.255.1", "printer.", dnsmessage.TypeAAAA, 0, "2001:db8:77::7"},
		{"udp", "198.19.255.1", "me.", dnsmessage.TypeA, dnsmessage.RCodeNameError, ""},
		{"udp", "198.19.255.1", "nobody.example.com.", dnsmessage.TypeA, dnsmessage.RCodeNameError, ""},
		{"udp", "198.19.255.1", HostName + ".", dnsmessage.TypeA, 0, "198.19.255.3"},
		{"udp", "198.19.255.1", HostName + ".", dnsmessage.TypeAAAA, 0, "fd67:6974:656e:7600::3"},
	} {
		m, err := resolve(t, ns, c.network, c.server, c.name, c.kind)
		if got := strings.Join(addresses(m), " "); err != nil || got != c.want || m.RCode != c.code || m.ID != 77 || !m.Response {
			t.Errorf("%s %v over %s of %s: %q, %v (%v), want %q", c.name, c.kind, c.network, c.server, got, m.RCode, err, c.want)
		}
	}
	if m, err := resolve(t, ns, "tcp", "198.19.255.1", "many.example.com.", dnsmessage.TypeA); err != nil || len(m.Answers) != 100 {
		t.Errorf("a long answer over TCP has %d of 100 addresses: %v", len(m.Answers), err)
	}
	if m, err := resolve(t, ns, "udp", "198.19.255.1", "many.example.com.", dnsmessage.TypeA); err != nil || !m.Truncated {
		t.Errorf("a long answer over UDP does not say that it is cut: %v", err)
	}
}

func TestResolverSurvivesNonsense(t *testing.T) {
	n := &Network{opts: Options{}.withDefaults(), plan: thePlan(), barrier: newBarrier()}
	n.resolver = newResolver(n)
	n.opts.Resolvers = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}
	p, err := Rules{Mode: Allow}.parse()
	if err != nil {
		t.Fatal(err)
	}
	n.rules.Store(p)
	whole, _ := (&dnsmessage.Message{Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName("x.example.com."), Type: 1, Class: 1}}}).Pack()
	for i := range len(whole) {
		for _, b := range []byte{0, 1, 0x3f, 0x80, 0xc0, 0xff} {
			msg := slices.Clone(whole)
			msg[i] = b
			reply := n.resolver.answer(t.Context(), msg)
			if reply != nil && (len(reply) < 12 || binary.BigEndian.Uint16(reply) != binary.BigEndian.Uint16(msg)) {
				t.Errorf("byte %d as %#x is answered with %x", i, b, reply)
			}
			n.resolver.answer(t.Context(), msg[:i])
		}
	}
}

// TestAllow is what a container with an allow list reaches, and what is noted.
func TestAllow(t *testing.T) {
	far := world(t)
	server := nameServer(t)
	ln := listen(t, far, "tcp", ":0")
	go echo(ln)
	port := fmt.Sprint(portOf(t, ln.Addr()))
	mine := listen(t, nil, "tcp", ":0")
	go echo(mine)
	minePort := fmt.Sprint(portOf(t, mine.Addr()))
	n, ns := container(t, Rules{Mode: Allow, Allow: []string{"*.example.com", "[2001:db8:77::/64]:" + port}}, Options{Resolvers: []netip.AddrPort{server}})
	watch := n.Watch()

	refusedAt(t, ns, theirAddr4+":"+port) // by address: no name was asked for
	if m, err := resolve(t, ns, "udp", "198.19.255.1", "other.example.net.", dnsmessage.TypeA); err != nil || m.RCode != dnsmessage.RCodeRefused || len(m.Answers) > 0 {
		t.Errorf("a name that is not allowed is answered %v %v (%v)", m.RCode, addresses(m), err)
	}
	refusedAt(t, ns, theirAddr4+":"+port)
	if m, err := resolve(t, ns, "udp", "198.19.255.1", "alias.example.com.", dnsmessage.TypeA); err != nil || len(addresses(m)) != 1 {
		t.Fatalf("an allowed name is answered %v (%v)", addresses(m), err)
	}
	c := mustDial(t, ns, "tcp", theirAddr4+":"+port) // now it has a name
	_, _ = c.Write([]byte("x"))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	mustDial(t, ns, "tcp", net.JoinHostPort(theirAddr6, port)) // by its block of addresses
	refusedAt(t, ns, net.JoinHostPort(theirAddr6, "1"))

	// Names that lead to the host, or into the private network.
	for _, name := range []string{"rebound.example.com.", "inner.example.com."} {
		if _, err := resolve(t, ns, "udp", "198.19.255.1", name, dnsmessage.TypeA); err != nil {
			t.Fatal(err)
		}
	}
	refusedAt(t, ns, ourAddr4+":"+minePort)
	refusedAt(t, ns, theirPrivate+":"+port)
	refusedAt(t, ns, "169.254.169.254:80")

	u := mustDial(t, ns, "udp", "203.0.113.77:9")
	_ = u.SetReadDeadline(time.Now().Add(patience))
	_, _ = u.Write([]byte("x"))
	if _, err := u.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a datagram that is refused gets %v", err)
	}

	list, _ := watch.Stop()
	var got []string
	for _, c := range list {
		got = append(got, c.String())
	}
	for _, want := range []string{
		"refused " + theirAddr4 + ":" + port + ": not in env.allow", "refused other.example.net: not in env.allow",
		"contacted alias.example.com:" + port, "contacted " + net.JoinHostPort(theirAddr6, port),
		"refused inner.example.com:" + port + ": not in env.allow", "refused " + ourAddr4 + ":" + minePort + ": an address of the host cannot be reached",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("not noted: %s\n%s", want, strings.Join(got, "\n"))
		}
	}
}

func TestPublish(t *testing.T) {
	ip(t, "link set lo up")
	for _, inner := range []string{"127.0.0.1:3000", "[::1]:3000", ":3000"} {
		t.Run(inner, func(t *testing.T) {
			n, ns := container(t, Rules{Mode: None}, Options{})
			go echo(listen(t, ns, "tcp", inner))
			p, err := Publish(23456, 3000, n.Dial)
			if err != nil {
				t.Fatal(err)
			}
			for _, addr := range []string{"127.0.0.1:23456", "[::1]:23456"} {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = c.Write([]byte("hello"))
				_ = c.(*net.TCPConn).CloseWrite()
				if got, err := io.ReadAll(c); err != nil || string(got) != "hello" {
					t.Errorf("%s answers %q: %v", addr, got, err)
				}
				_ = c.Close()
			}
			if _, err := Publish(23456, 3000, n.Dial); !errors.Is(err, ErrPortTaken) {
				t.Errorf("a port is published twice: %v", err)
			}
			p.Close()
			if c, err := net.Dial("tcp", "127.0.0.1:23456"); err == nil {
				_ = c.Close()
				t.Error("a port that is not published any more answers")
			}
			if _, err := n.Dial(context.Background(), 3001); err == nil {
				t.Error("a port that nobody listens on answers")
			}
		})
	}
}
