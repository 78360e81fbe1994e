package network

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestEntries(t *testing.T) {
	good := map[string]string{
		"example.com": "example.com/false//0", "Example.COM.:443": "example.com/false//443", "*.example.com": "example.com/true//0",
		"*.example.com:80": "example.com/true//80", "192.0.2.1": "/false/192.0.2.1/32/0", "192.0.2.0/24:5432": "/false/192.0.2.0/24/5432",
		"2001:db8::1": "/false/2001:db8::1/128/0", "[2001:db8::1]:443": "/false/2001:db8::1/128/443", "[2001:db8::]": "/false/2001:db8::/128/0",
		"[2001:db8::/32]:22": "/false/2001:db8::/32/22", "::ffff:192.0.2.1": "/false/192.0.2.1/32/0", "localhost": "localhost/false//0",
	}
	for in, want := range good {
		e, err := ParseEntry(in)
		prefix := ""
		if e.Prefix.IsValid() {
			prefix = e.Prefix.String()
		}
		if got := fmt.Sprintf("%s/%v/%s/%d", e.Name, e.Wild, prefix, e.Port); err != nil || got != want {
			t.Errorf("%q is %s (%v), want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"", "*", "*.", "*.*.com", "a..b", "example.com:", "example.com:0", "example.com:65536", "example.com:https",
		"http://example.com", "192.0.2.1/24", "300.1.1.1", "1.2.3", "[::1", "[::1]x", "fe80::1%eth0", "exa mple", "-a.com", strings.Repeat("a", 64) + ".com"} {
		if e, err := ParseEntry(in); err == nil {
			t.Errorf("%q is taken for %+v", in, e)
		}
	}
}

func TestAllows(t *testing.T) {
	p, err := Rules{Mode: Allow, Allow: []string{"a.example.com:443", "*.b.example.com", "192.0.2.0/24:80", "2001:db8::/32"}}.parse()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"a.example.com": true, "x.b.example.com": true, "y.x.b.example.com": true,
		"b.example.com": false, "xb.example.com": false, "example.com": false, "a.example.com.evil.com": false, "": false} {
		if p.allowsName(name) != want {
			t.Errorf("the name %q is allowed: %v", name, !want)
		}
	}
	for _, c := range []struct {
		addr, name string
		want       bool
	}{
		{"203.0.113.5:443", "a.example.com", true}, {"203.0.113.5:80", "a.example.com", false}, {"203.0.113.5:443", "", false},
		{"203.0.113.5:22", "x.b.example.com", true}, {"10.0.0.1:22", "x.b.example.com", false}, {"[fd00::1]:22", "x.b.example.com", false},
		{"10.0.0.1:443", "a.example.com", true}, {"192.0.2.9:80", "", true}, {"192.0.2.9:81", "", false}, {"[2001:db8::9]:1", "", true},
	} {
		var names []string
		if c.name != "" {
			names = []string{c.name}
		}
		if got := p.allows(netip.MustParseAddrPort(c.addr), names); got != c.want {
			t.Errorf("%s called %q is allowed: %v", c.addr, c.name, got)
		}
	}
	if err := (Rules{Mode: "some"}).Check(); err == nil {
		t.Error("a mode that is none is taken")
	}
	if err := (Rules{HostPorts: []int{70000}}).Check(); err == nil {
		t.Error("a port that is none is taken")
	}
}

func TestBarrier(t *testing.T) {
	b := newBarrier()
	b.local = func(a netip.Addr) bool { return a == netip.MustParseAddr("203.0.113.1") }
	for _, a := range []string{"127.0.0.1", "127.255.255.254", "0.0.0.0", "::", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "169.254.169.254",
		"fe80::1", "fec0::1", "224.0.0.1", "255.255.255.255", "ff02::1", "fd00:ec2::254", "192.0.0.192", "198.19.255.4", "203.0.113.1",
		"::ffff:203.0.113.1", "64:ff9b::127.0.0.1", "64:ff9b::203.0.113.1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "::ffff:0:127.0.0.1",
		"64:ff9b:1::127.0.0.1", "64:ff9b:1:7f00:0:100::"} {
		if b.stops(netip.MustParseAddr(a)) == "" {
			t.Errorf("%s can be reached", a)
		}
	}
	for _, a := range []string{"203.0.113.2", "10.0.0.1", "192.168.1.1", "100.64.0.1", "2001:db8::1", "fd12::1", "64:ff9b::203.0.113.2", "2002:cb00:7102::1"} {
		if why := b.stops(netip.MustParseAddr(a)); why != "" {
			t.Errorf("%s cannot be reached: %s", a, why)
		}
	}
}

func TestNamesAreBounded(t *testing.T) {
	var n names
	for i := range maxRemembered + 10 {
		n.remember("x.example.com", netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	if len(n.of) != maxRemembered || len(n.order) != maxRemembered {
		t.Errorf("%d addresses are remembered, and %d in order", len(n.of), len(n.order))
	}
	last := netip.MustParseAddr("12.0.0.1")
	for i := range 100 {
		n.remember(fmt.Sprintf("n%d.example.com", i%40), last)
	}
	if got := n.lookup(last); len(got) != maxNamesOfOne || got[len(got)-1] != "n19.example.com" {
		t.Errorf("its names are %v", got)
	}
}

func TestChoosePort(t *testing.T) {
	none := func(int) bool { return false }
	a, err := ChoosePort("one", 3000, none)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := ChoosePort("one", 3000, none); again != a {
		t.Errorf("port %d, and then %d", a, again)
	}
	if other, _ := ChoosePort("two", 3000, none); other == a {
		t.Errorf("two environments are given port %d", a)
	}
	next, err := ChoosePort("one", 3000, func(p int) bool { return p == a })
	if err != nil || next == a {
		t.Errorf("a port that is meant for another is given: %v", err)
	}
	ln := listen(t, nil, "tcp", fmt.Sprintf("127.0.0.1:%d", a))
	if got, _ := ChoosePort("one", 3000, none); got == a {
		t.Error("a port that somebody listens on is given")
	}
	_ = ln.Close()
}
