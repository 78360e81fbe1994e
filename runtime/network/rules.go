package network

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Rules say what a container may reach. The zero value is Full with nothing of
// the host.
type Rules struct {
	Mode Mode `json:"mode"`
	// Allow lists what Mode Allow reaches: `host[:port]`, `*.example.com[:port]`,
	// `address[:port]`, `prefix/bits[:port]`, IPv6 in brackets when a port follows.
	Allow []string `json:"allow,omitempty"`
	// HostPorts are the ports of the host's loopback that are reached at the
	// host's address (see the package comment); AllHostPorts among them means all.
	HostPorts []int `json:"host_ports,omitempty"`
}

// AllHostPorts stands for every port in Rules.HostPorts.
const AllHostPorts = -1

// Entry is one line of an allow list: names or addresses, and a port.
type Entry struct {
	// Name is a lower-case host name; with Wild, what such names end in.
	Name   string
	Wild   bool
	Prefix netip.Prefix // of an entry without a name
	Port   uint16       // 0 for any
}

// ParseEntry reads one line of an allow list.
func ParseEntry(s string) (Entry, error) {
	bad := func(why string) (Entry, error) {
		return Entry{}, fmt.Errorf("%q %s; it reads host[:port], *.example.com[:port], address[:port] or prefix/bits[:port]", s, why)
	}
	host, port, err := splitPort(strings.TrimSpace(s))
	if err != nil {
		return bad(err.Error())
	}
	if p, err := netip.ParsePrefix(host); err == nil {
		if p.Masked() != p {
			return bad("has bits set beyond its prefix")
		}
		return Entry{Prefix: p, Port: port}, nil
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if a.Zone() != "" {
			return bad("has a zone")
		}
		a = a.Unmap()
		return Entry{Prefix: netip.PrefixFrom(a, a.BitLen()), Port: port}, nil
	}
	name, wild := strings.CutPrefix(host, "*.")
	name = canonicalName(name)
	if !validName(name) {
		return bad("is neither a host name nor an address")
	}
	return Entry{Name: name, Wild: wild, Port: port}, nil
}

// splitPort takes a port off the end; an address of IPv6 has brackets then.
func splitPort(s string) (host string, port uint16, err error) {
	host, digits := s, ""
	if rest, ok := strings.CutPrefix(s, "["); ok {
		inside, after, ok := strings.Cut(rest, "]")
		if !ok {
			return "", 0, errors.New("has a bracket without its other half")
		}
		host = inside
		if after != "" {
			if digits, ok = strings.CutPrefix(after, ":"); !ok || digits == "" {
				return "", 0, errors.New("has something after the bracket that is not a port")
			}
		}
	} else if strings.Count(s, ":") == 1 {
		host, digits, _ = strings.Cut(s, ":")
		if digits == "" {
			return "", 0, errors.New("has no port after the colon")
		}
	}
	if digits != "" {
		n, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || n == 0 {
			return "", 0, fmt.Errorf("has a port %q that is none", digits)
		}
		port = uint16(n)
	}
	return host, port, nil
}

// canonicalName is how names are compared.
func canonicalName(s string) string {
	return strings.ToLower(strings.TrimSuffix(s, "."))
}

// validName says whether s, canonical, can be a host's name. One that looks like
// a number is an address somebody mistyped.
func validName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	labels := strings.Split(s, ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 || strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" ||
			strings.HasPrefix(l, "-") || strings.HasSuffix(l, "-") {
			return false
		}
	}
	return strings.Trim(labels[len(labels)-1], "0123456789") != ""
}

// covers says whether a canonical name is one that the entry means.
func (e Entry) covers(name string) bool {
	if e.Name == "" {
		return false
	}
	if e.Wild {
		return strings.HasSuffix(name, "."+e.Name)
	}
	return name == e.Name
}

func (e Entry) coversPort(port uint16) bool { return e.Port == 0 || e.Port == port }

// parsed is Rules in the form in which they are asked.
type parsed struct {
	mode    Mode
	entries []Entry
	ports   map[int]bool
}

// Check says what is wrong with the rules, if anything.
func (r Rules) Check() error {
	_, err := r.parse()
	return err
}

func (r Rules) parse() (*parsed, error) {
	mode, err := ParseMode(string(r.Mode))
	if err != nil {
		return nil, err
	}
	p := &parsed{mode: mode, ports: map[int]bool{}}
	for _, line := range r.Allow {
		e, err := ParseEntry(line)
		if err != nil {
			return nil, err
		}
		p.entries = append(p.entries, e)
	}
	for _, port := range r.HostPorts {
		if port != AllHostPorts && (port < 1 || port > 65535) {
			return nil, fmt.Errorf("%d is not a port", port)
		}
		p.ports[port] = true
	}
	return p, nil
}

// hostPort says whether a port of the host's loopback is open to the container.
func (p *parsed) hostPort(port uint16) bool {
	return p.ports[AllHostPorts] || p.ports[int(port)]
}

// allowsName says whether a canonical name may be asked for.
func (p *parsed) allowsName(name string) bool {
	if p.mode != Allow {
		return p.mode == Full
	}
	for _, e := range p.entries {
		if e.covers(name) {
			return true
		}
	}
	return false
}

// allows says whether an address may be connected to; names are those that it
// was given out for. It knows nothing of what is out of reach for everybody.
func (p *parsed) allows(addr netip.AddrPort, names []string) bool {
	if p.mode != Allow {
		return p.mode == Full
	}
	for _, e := range p.entries {
		if !e.coversPort(addr.Port()) {
			continue
		}
		if e.Name == "" {
			if e.Prefix.Contains(addr.Addr()) {
				return true
			}
			continue
		}
		for _, name := range names {
			// Whoever runs the names below a domain is not to decide what of the
			// private network is reached.
			if e.covers(name) && (!e.Wild || !isPrivate(addr.Addr())) {
				return true
			}
		}
	}
	return false
}
