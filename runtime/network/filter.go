package network

import (
	"encoding/binary"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// filter looks at packets from the container before the stack does. It is used
// by one goroutine.
type filter struct {
	plan plan
	news bucket // packets that open flows or are answered by themselves
}

// Packets a second that make the stack do more than pass bytes on.
const (
	newsRate  = 20_000
	newsBurst = 20_000
)

func newFilter() *filter {
	return &filter{plan: thePlan(), news: bucket{rate: newsRate, burst: newsBurst, tokens: newsBurst}}
}

// judge decides what becomes of a packet. The stack takes any address for its
// own; what is not for it, or not from the container, must not get there.
func (f *filter) judge(p []byte) verdict {
	var src, dst netip.Addr
	var proto, after = 0, 0
	switch {
	case len(p) >= header.IPv4MinimumSize && p[0]>>4 == 4:
		src, dst = netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
		proto, after = int(p[9]), int(p[0]&15)*4
		if binary.BigEndian.Uint16(p[6:])&0x1fff != 0 {
			proto = -proto // a later fragment
		}
	case len(p) >= header.IPv6MinimumSize && p[0]>>4 == 6:
		src, dst = netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
		proto, after = int(p[6]), header.IPv6MinimumSize
	default:
		return drop
	}
	if !f.plan.isContainer(src) || f.plan.isContainer(dst) || dst.IsMulticast() || dst.IsUnspecified() {
		return drop
	}
	switch proto {
	case int(header.TCPProtocolNumber):
		const syn, ack = 2, 16
		if len(p) > after+13 && p[after+13]&(syn|ack) == syn && !f.news.take() {
			return drop
		}
		return deliver
	case -int(header.TCPProtocolNumber), int(header.UDPProtocolNumber), -int(header.UDPProtocolNumber):
		return deliver
	case int(header.IPv6FragmentHeader):
		return deliver // the stack drops what it is a fragment of, if that is nothing for it
	case int(header.ICMPv4ProtocolNumber), int(header.ICMPv6ProtocolNumber):
		return f.judgePing(p, proto, after, dst)
	}
	return drop
}

// judgePing passes echo requests to the gateway, and errors, which the stack
// needs to know of; other echo requests are refused.
func (f *filter) judgePing(p []byte, proto, after int, dst netip.Addr) verdict {
	if len(p) < after+8 || !f.news.take() {
		return drop
	}
	is6 := proto == int(header.ICMPv6ProtocolNumber)
	if is6 != dst.Is6() {
		return drop
	}
	switch kind := p[after]; {
	case !is6 && kind == uint8(header.ICMPv4Echo), is6 && kind == uint8(header.ICMPv6EchoRequest):
		if f.plan.isGateway(dst) {
			return deliver
		}
		return prohibit
	case !is6 && kind == uint8(header.ICMPv4DstUnreachable), is6 && kind == uint8(header.ICMPv6DstUnreachable):
		return deliver
	}
	return drop
}

// bucket is a token bucket.
type bucket struct {
	rate, burst, tokens float64
	last                time.Time
}

func (b *bucket) take() bool {
	if b.tokens < 1 {
		now := time.Now()
		if !b.last.IsZero() {
			b.tokens = min(b.burst, b.tokens+now.Sub(b.last).Seconds()*b.rate)
		}
		b.last = now
		if b.tokens < 1 {
			return false
		}
	}
	b.tokens--
	return true
}

// prohibited is the answer to a packet that may not go where it wants to:
// "administratively prohibited", with the packet's beginning.
func prohibited(p []byte) []byte {
	if p[0]>>4 == 4 {
		quote := p[:min(len(p), int(p[0]&15)*4+8)]
		const size = header.IPv4MinimumSize + header.ICMPv4MinimumSize
		b := make([]byte, size, size+len(quote))
		b = append(b, quote...)
		ip := header.IPv4(b)
		ip.Encode(&header.IPv4Fields{TotalLength: uint16(len(b)), TTL: 64, Protocol: uint8(header.ICMPv4ProtocolNumber),
			SrcAddr: addressFrom(p[16:20]), DstAddr: addressFrom(p[12:16])})
		ip.SetChecksum(^ip.CalculateChecksum())
		icmp := header.ICMPv4(b[header.IPv4MinimumSize:])
		icmp.SetType(header.ICMPv4DstUnreachable)
		icmp.SetCode(header.ICMPv4AdminProhibited)
		icmp.SetChecksum(^checksum.Checksum(icmp, 0))
		return b
	}
	quote := p[:min(len(p), header.IPv6MinimumMTU-header.IPv6MinimumSize-header.ICMPv6MinimumSize)]
	const size = header.IPv6MinimumSize + header.ICMPv6DstUnreachableMinimumSize
	b := make([]byte, size, size+len(quote))
	b = append(b, quote...)
	header.IPv6(b).Encode(&header.IPv6Fields{PayloadLength: uint16(len(b) - header.IPv6MinimumSize), TransportProtocol: header.ICMPv6ProtocolNumber,
		HopLimit: 64, SrcAddr: addressFrom(p[24:40]), DstAddr: addressFrom(p[8:24])})
	icmp := header.ICMPv6(b[header.IPv6MinimumSize:])
	icmp.SetType(header.ICMPv6DstUnreachable)
	icmp.SetCode(header.ICMPv6Prohibited)
	icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp, Src: addressFrom(p[24:40]), Dst: addressFrom(p[8:24])}))
	return b
}
