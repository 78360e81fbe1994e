package network

import "net/netip"

// reserved are prefixes that no container reaches, with what is there.
func reserved() []struct{ prefix, what string } {
	return []struct{ prefix, what string }{
		{"0.0.0.0/8", "the host itself"},
		{"127.0.0.0/8", "the host's loopback"},
		{"169.254.0.0/16", "link-local and metadata addresses"},
		{"192.0.0.0/24", "protocol and metadata addresses"}, // Oracle's: 192.0.0.192
		{"224.0.0.0/4", "multicast"},
		{"240.0.0.0/4", "reserved and broadcast addresses"},
		{"100.100.100.200/32", "a metadata service"}, // Alibaba
		{"168.63.129.16/32", "a metadata service"},   // Azure
		{"198.19.255.0/29", "the environment's own network"},
		{"::/96", "the host's loopback and IPv4-compatible addresses"},
		{"fe80::/10", "link-local addresses"},
		{"fec0::/10", "site-local addresses"},
		{"ff00::/8", "multicast"},
		{"fd00:ec2::/32", "a metadata service"}, // Amazon
		{"fd20:ce::/32", "a metadata service"},  // Google
		{"fd67:6974:656e:7600::/64", "the environment's own network"},
	}
}

// barrier tells which addresses are out of reach for everybody.
type barrier struct {
	prefixes []netip.Prefix
	whats    []string
	// local says whether the host's routing table takes an address for one of the
	// host, or cannot tell.
	local func(netip.Addr) bool
}

func newBarrier() *barrier {
	b := &barrier{local: isLocal}
	for _, r := range reserved() {
		b.prefixes = append(b.prefixes, netip.MustParsePrefix(r.prefix))
		b.whats = append(b.whats, r.what)
	}
	return b
}

// stops says why an address is out of reach; "" means that it is not.
func (b *barrier) stops(addr netip.Addr) string {
	for _, a := range withEmbedded(addr) {
		for i, p := range b.prefixes {
			if p.Contains(a) {
				return b.whats[i]
			}
		}
		if b.local(a) {
			return "an address of the host"
		}
	}
	return ""
}

// withEmbedded returns an address and the IPv4 address that translators would
// make of it, if any.
func withEmbedded(addr netip.Addr) []netip.Addr {
	addr = addr.Unmap().WithZone("")
	if addr.Is4() {
		return []netip.Addr{addr}
	}
	b := addr.As16()
	v4 := func(at int) []netip.Addr {
		return []netip.Addr{addr, netip.AddrFrom4([4]byte(b[at : at+4]))}
	}
	switch {
	case netip.MustParsePrefix("64:ff9b::/96").Contains(addr): // NAT64
		return v4(12)
	case netip.MustParsePrefix("64:ff9b:1::/48").Contains(addr): // NAT64 of a site, of /96 or /48 below it
		return append(v4(12), netip.AddrFrom4([4]byte{b[6], b[7], b[9], b[10]}))
	case netip.MustParsePrefix("2002::/16").Contains(addr): // 6to4
		return v4(2)
	case netip.MustParsePrefix("::ffff:0:0:0/96").Contains(addr): // SIIT
		return v4(12)
	}
	return []netip.Addr{addr}
}

// isPrivate says whether an address is one of a private network.
func isPrivate(addr netip.Addr) bool {
	for _, a := range withEmbedded(addr) {
		if a.IsPrivate() || netip.MustParsePrefix("100.64.0.0/10").Contains(a) {
			return true
		}
	}
	return false
}
