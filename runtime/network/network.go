package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Options say how the networks of one process work. The zero value is what is
// meant for use.
type Options struct {
	Limits Limits // zero: DefaultLimits
	// Resolvers are asked instead of those of ResolvConf: addresses with a port.
	Resolvers []netip.AddrPort
	// ResolvConf and Hosts are files; "" are those of the host in /etc.
	ResolvConf, Hosts string
	// Warn is told what went wrong where nobody waits for it; nil discards it.
	Warn func(format string, args ...any)
}

func (o Options) withDefaults() Options {
	if o.Limits == (Limits{}) {
		o.Limits = DefaultLimits()
	}
	if o.ResolvConf == "" {
		o.ResolvConf = "/etc/resolv.conf"
	}
	if o.Hosts == "" {
		o.Hosts = "/etc/hosts"
	}
	if o.Warn == nil {
		o.Warn = func(string, ...any) {}
	}
	return o
}

// Network is the network of one running container. Its methods are safe for
// concurrent use.
type Network struct {
	opts     Options
	ns       *os.File
	plan     plan
	barrier  *barrier
	resolver *resolver
	names    names
	contacts contacts
	rules    atomic.Pointer[parsed]

	mu     sync.Mutex
	uplink *uplink // nil where there is none; guarded by mu
	closed bool    // guarded by mu
}

// uplink is the way out: the device, the stack and all its flows.
type uplink struct {
	net    *Network
	stack  *stack.Stack
	link   *link
	ctx    context.Context // ends with the uplink
	cancel context.CancelFunc
	// onClose ends what waits for the container in ways that closing the stack
	// does not end.
	onClose []func()
	mu      sync.Mutex
	closing bool           // guarded by mu
	flows   sync.WaitGroup // goroutines of flows and of the resolver; added to under mu

	tcp atomic.Int64 // flows
	udp atomic.Int64
}

// Attach gives the network namespace of a process its network, or takes over
// from an earlier process that did. It fails with ErrNoTUN and ErrTaken.
func Attach(pid int, rules Rules, opts Options) (*Network, error) {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return nil, fmt.Errorf("find the network namespace: %w", err)
	}
	n, err := attach(ns, rules, opts)
	if err != nil {
		_ = ns.Close()
	}
	return n, err
}

// attach is Attach with a namespace; it belongs to the Network when it succeeds.
func attach(ns *os.File, rules Rules, opts Options) (*Network, error) {
	opts = opts.withDefaults()
	own, err := isOwn(ns)
	if err != nil {
		return nil, err
	}
	if own {
		return nil, errors.New("the container has no network namespace of its own")
	}
	n := &Network{opts: opts, ns: ns, plan: thePlan(), barrier: newBarrier()}
	n.resolver = newResolver(n)
	if err := inNamespace(ns, loopbackUp); err != nil {
		return nil, err
	}
	return n, n.SetRules(rules)
}

// isOwn says whether a namespace is the one that this process is in.
func isOwn(ns *os.File) (bool, error) {
	theirs, err := ns.Stat()
	if err != nil {
		return false, err
	}
	ours, err := os.Stat("/proc/self/ns/net")
	return err == nil && os.SameFile(theirs, ours), err
}

// SetRules changes what the container may reach from now on. Connections that
// are there stay, unless there is no network any more.
func (n *Network) SetRules(rules Rules) error {
	p, err := rules.parse()
	if err != nil {
		return err
	}
	if p.mode == Host {
		return errors.New("a container with a network of its own cannot be given the host's")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return net.ErrClosed
	}
	n.rules.Store(p)
	switch {
	case p.mode == None:
		if n.uplink != nil {
			n.uplink.close()
			n.uplink = nil
		}
		return inNamespace(n.ns, removeDevice)
	case n.uplink == nil:
		n.uplink, err = n.connect()
	}
	return err
}

// Mode returns the mode that is in force.
func (n *Network) Mode() Mode { return n.rules.Load().mode }

// Watch notes from now on what the container tries to reach: what was refused,
// and, in Mode Allow, what was not.
func (n *Network) Watch() *Watch { return n.contacts.watch() }

// Close ends every connection. The container keeps its device, for another
// process to take over.
func (n *Network) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	n.closed = true
	if n.uplink != nil {
		n.uplink.close()
		n.uplink = nil
	}
	return n.ns.Close()
}

// admit decides about a connection of the container. It returns where to connect
// to, in this order, or why not.
func (n *Network) admit(dst netip.AddrPort) (targets []netip.AddrPort, refusal string) {
	addr := dst.Addr().Unmap()
	rules := n.rules.Load()
	switch {
	case n.plan.isHost(addr):
		if !rules.hostPort(dst.Port()) {
			return nil, "the host's ports are out of reach, but those in env.hostPort"
		}
		return []netip.AddrPort{
			netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), dst.Port()),
			netip.AddrPortFrom(netip.IPv6Loopback(), dst.Port()),
		}, ""
	case n.plan.isGateway(addr):
		return nil, "the gateway answers DNS and ping"
	}
	if why := n.barrier.stops(addr); why != "" {
		return nil, why + " cannot be reached"
	}
	if !rules.allows(netip.AddrPortFrom(addr, dst.Port()), n.names.lookup(addr)) {
		return nil, "not in env.allow"
	}
	return []netip.AddrPort{netip.AddrPortFrom(addr, dst.Port())}, ""
}

// called is how a contact is called: by the name that the container asked for.
func (n *Network) called(dst netip.AddrPort) string {
	port := fmt.Sprint(dst.Port())
	if n.plan.isHost(dst.Addr()) {
		return net.JoinHostPort(HostName, port)
	}
	if names := n.names.lookup(dst.Addr()); len(names) > 0 {
		return net.JoinHostPort(names[len(names)-1], port)
	}
	return net.JoinHostPort(dst.Addr().Unmap().String(), port)
}

func (n *Network) refused(dst netip.AddrPort, why string) {
	n.contacts.note(Contact{Target: n.called(dst), Refused: why})
}

func (n *Network) contacted(dst netip.AddrPort) {
	if n.Mode() == Allow {
		n.contacts.note(Contact{Target: n.called(dst)})
	}
}

// addressFrom and addrPort translate between the stack's addresses and Go's.
func addressFrom(b []byte) tcpip.Address { return tcpip.AddrFromSlice(b) }

func addrPort(a tcpip.Address, port uint16) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(a.AsSlice())
	return netip.AddrPortFrom(addr, port)
}
