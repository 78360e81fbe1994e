package network

import (
	"net"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
)

const (
	dnsPort = 53
	// dnsIdle is how long a connection to the resolver may be silent.
	dnsIdle = 30 * time.Second
	// maxDNSConns bounds them.
	maxDNSConns = 64
)

// serveDNS answers at the gateway's addresses, over UDP and TCP.
func (u *uplink) serveDNS() error {
	for _, gateway := range []netip.Addr{u.net.plan.gateway4, u.net.plan.gateway6} {
		proto := ipv4.ProtocolNumber
		if gateway.Is6() {
			proto = ipv6.ProtocolNumber
		}
		at := tcpip.FullAddress{NIC: nic, Addr: addressFrom(gateway.AsSlice()), Port: dnsPort}
		pc, err := gonet.DialUDP(u.stack, &at, nil, proto)
		if err != nil {
			return err
		}
		ln, err := gonet.ListenTCP(u.stack, at, proto)
		if err != nil {
			return err
		}
		u.flows.Add(2)
		go u.guarded("the resolver", func() { u.serveDatagrams(pc) })
		go u.guarded("the resolver", func() { u.serveStreams(ln) })
		u.onClose = append(u.onClose, func() {
			_ = pc.SetDeadline(time.Unix(1, 0))
			ln.Shutdown()
			_ = ln.Close()
		})
	}
	return nil
}

func (u *uplink) serveDatagrams(pc net.PacketConn) {
	defer pc.Close()
	r := u.net.resolver
	buf := make([]byte, 4096)
	for {
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			return
		}
		select {
		case r.busy <- struct{}{}:
		default:
			continue // it asks again
		}
		asked := append([]byte(nil), buf[:n]...)
		if !u.begin() {
			return
		}
		go u.guarded("a question", func() {
			defer func() { <-r.busy }()
			reply := r.answer(u.ctx, asked)
			if reply == nil {
				return
			}
			if q, err := parseQuestion(asked); err == nil && len(reply) > q.size {
				reply = q.truncated()
			}
			_, _ = pc.WriteTo(reply, from)
		})
	}
}

func (u *uplink) serveStreams(ln net.Listener) {
	open := make(chan struct{}, maxDNSConns)
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		select {
		case open <- struct{}{}:
		default:
			_ = c.Close()
			continue
		}
		if !u.begin() {
			_ = c.Close()
			return
		}
		go u.guarded("a connection to the resolver", func() {
			defer func() { <-open }()
			u.serveStream(c)
		})
	}
}

// serveStream answers one question after the other.
func (u *uplink) serveStream(c net.Conn) {
	defer c.Close()
	r := u.net.resolver
	for {
		_ = c.SetDeadline(time.Now().Add(dnsIdle))
		asked, err := readFramed(c)
		if err != nil {
			return
		}
		select {
		case r.busy <- struct{}{}:
		case <-u.ctx.Done():
			return
		}
		reply := r.answer(u.ctx, asked)
		<-r.busy
		if reply == nil || writeFramed(c, reply) != nil {
			return
		}
	}
}
