package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime/debug"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// nic is the stack's only interface.
const nic = 1

// Times of the stack. Both its ends are on this machine: nothing is under way
// for long.
const (
	timeWait   = 500 * time.Millisecond
	lingerTime = 10 * time.Second
	minRTO     = 50 * time.Millisecond
	synRetries = 3
)

// connect makes the way out of a namespace.
func (n *Network) connect() (*uplink, error) {
	var tun *os.File
	err := inNamespace(n.ns, func() (err error) {
		tun, err = openTUN()
		return err
	})
	if err != nil {
		return nil, err
	}
	u := &uplink{net: n}
	u.ctx, u.cancel = context.WithCancel(context.Background())
	u.link, err = newLink(tun, newFilter().judge, func(err error) { n.opts.Warn("%v", err) })
	if err == nil {
		err = u.build()
	}
	if err == nil {
		err = u.serveDNS()
	}
	if err != nil {
		_ = tun.Close()
		if u.stack != nil {
			u.stack.Destroy()
		}
		return nil, fmt.Errorf("make the network stack: %w", err)
	}
	return u, nil
}

// build makes the stack.
func (u *uplink) build() error {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})
	u.stack = s
	if err := u.tune(); err != nil {
		return err
	}
	tcpForwarder := tcp.NewForwarder(s, u.net.opts.Limits.Buffer, u.net.opts.Limits.Opening, u.acceptTCP)
	s.SetTransportProtocolHandler(tcp.ProtocolNumber, tcpForwarder.HandlePacket)
	s.SetTransportProtocolHandler(udp.ProtocolNumber, u.acceptUDP)
	if err := s.CreateNIC(nic, u.link); err != nil {
		return errors.New(err.String())
	}
	// Every address is taken for the stack's own, and answered from.
	if err := errors.Join(stackError(s.SetPromiscuousMode(nic, true)), stackError(s.SetSpoofing(nic, true))); err != nil {
		return err
	}
	p := u.net.plan
	for _, a := range []netip.Prefix{netip.PrefixFrom(p.gateway4, bits4), netip.PrefixFrom(p.gateway6, bits6)} {
		proto := ipv4.ProtocolNumber
		if a.Addr().Is6() {
			proto = ipv6.ProtocolNumber
		}
		err := s.AddProtocolAddress(nic, tcpip.ProtocolAddress{Protocol: proto, AddressWithPrefix: tcpip.AddressWithPrefix{
			Address: addressFrom(a.Addr().AsSlice()), PrefixLen: a.Bits()}}, stack.AddressProperties{})
		if err != nil {
			return errors.New(err.String())
		}
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}, {Destination: header.IPv6EmptySubnet, NIC: nic}})
	return nil
}

// tune sets the stack up for a way that is short, fast and loses nothing.
func (u *uplink) tune() error {
	size := u.net.opts.Limits.Buffer
	options := []tcpip.SettableTransportProtocolOption{
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: size, Max: size},
		&tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: size, Max: size},
	}
	timeWait, linger, rto, retries := tcpip.TCPTimeWaitTimeoutOption(timeWait), tcpip.TCPLingerTimeoutOption(lingerTime),
		tcpip.TCPMinRTOOption(minRTO), tcpip.TCPSynRetriesOption(synRetries)
	options = append(options, &timeWait, &linger, &rto, &retries)
	for _, o := range options {
		if err := u.stack.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return errors.New(err.String())
		}
	}
	return nil
}

func stackError(err tcpip.Error) error {
	if err == nil {
		return nil
	}
	return errors.New(err.String())
}

// close ends all flows and gives up the device. It returns when nothing of the
// uplink runs any more.
func (u *uplink) close() {
	u.mu.Lock()
	u.closing = true
	u.mu.Unlock()
	u.cancel()
	for _, end := range u.onClose {
		end()
	}
	u.stack.Close() // tells the container that its connections are broken
	u.flows.Wait()
	u.link.Close()
	u.link.Wait()
	u.stack.Wait()
}

// begin counts a goroutine in; false when the uplink is being closed.
func (u *uplink) begin() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.closing {
		u.flows.Add(1)
	}
	return !u.closing
}

// guarded runs a flow that was begun: what goes wrong in it is its own end, not the daemon's.
func (u *uplink) guarded(what string, flow func()) {
	defer u.flows.Done()
	defer func() {
		if p := recover(); p != nil {
			u.net.opts.Warn("%s made the network panic: %v\n%s", what, p, debug.Stack())
		}
	}()
	flow()
}
