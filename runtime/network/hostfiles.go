package network

import (
	"bytes"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// hostFiles are the host's hosts and resolv.conf, read again when they change.
type hostFiles struct {
	hosts, resolv cached
}

func newHostFiles(o Options) *hostFiles {
	return &hostFiles{hosts: cached{path: o.Hosts}, resolv: cached{path: o.ResolvConf}}
}

// cached is a file's content; one that cannot be read is empty.
type cached struct {
	path string

	mu   sync.Mutex
	mod  time.Time // guarded by mu, as the others
	size int64
	data []byte
}

func (c *cached) read() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	fi, err := os.Stat(c.path)
	if err != nil {
		return nil
	}
	if c.data == nil || fi.Size() != c.size || !fi.ModTime().Equal(c.mod) {
		if c.data, err = os.ReadFile(c.path); err != nil {
			return nil
		}
		c.mod, c.size = fi.ModTime(), fi.Size()
	}
	return c.data
}

// lookup returns the addresses of a canonical name in the hosts file. Those that
// mean the host itself would mean the container to who asks.
func (h *hostFiles) lookup(name string) []netip.Addr {
	var found []netip.Addr
	for fields := range words(h.hosts.read()) {
		addr, err := netip.ParseAddr(fields[0])
		if err != nil || addr.IsLoopback() || addr.IsUnspecified() || addr.Zone() != "" {
			continue
		}
		if slices.ContainsFunc(fields[1:], func(n string) bool { return canonicalName(n) == name }) {
			found = append(found, addr.Unmap())
		}
	}
	return found
}

// servers returns the resolvers of resolv.conf, at most three, as libc takes
// them; without any, the one on this machine.
func (h *hostFiles) servers() []netip.AddrPort {
	var found []netip.AddrPort
	for fields := range words(h.resolv.read()) {
		if fields[0] != "nameserver" || len(fields) < 2 || len(found) == 3 {
			continue
		}
		if addr, err := netip.ParseAddr(fields[1]); err == nil {
			found = append(found, netip.AddrPortFrom(addr, 53))
		}
	}
	if len(found) == 0 {
		found = append(found, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 53))
	}
	return found
}

// words yields the words of each line that has some, without comments.
func words(data []byte) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for line := range bytes.Lines(data) {
			text := string(line)
			if i := strings.IndexAny(text, "#;"); i >= 0 {
				text = text[:i]
			}
			if fields := strings.Fields(text); len(fields) > 0 && !yield(fields) {
				return
			}
		}
	}
}
