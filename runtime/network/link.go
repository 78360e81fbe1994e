package network

import (
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// link is the stack's end of the container's device: a link layer that carries
// packets without a frame around them.
type link struct {
	tun  *os.File
	raw  rawFD
	pass func(packet []byte) verdict
	// crashed is told of a packet that the stack could not digest.
	crashed func(err error)

	dispatcher atomic.Pointer[stack.NetworkDispatcher]
	reading    sync.WaitGroup
	dropped    atomic.Int64
}

// rawFD is what os.File.SyscallConn gives.
type rawFD interface {
	Write(f func(fd uintptr) bool) error
}

// verdict is what becomes of a packet from the container.
type verdict int

const (
	drop verdict = iota
	deliver
	prohibit // answered with an ICMP error
)

// smallPacket is up to where a packet is copied instead of being handed over in
// the buffer that it was read into, which is as large as packets get.
const smallPacket = 4096

func newLink(tun *os.File, pass func([]byte) verdict, crashed func(error)) (*link, error) {
	raw, err := tun.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &link{tun: tun, raw: raw, pass: pass, crashed: crashed}, nil
}

var _ stack.LinkEndpoint = (*link)(nil)

// read passes packets to the stack until the device is closed.
func (l *link) read() {
	defer l.reading.Done()
	for l.readSome() {
	}
}

// readSome reads until the device is closed or the stack panics over a packet,
// which costs that packet.
func (l *link) readSome() (more bool) {
	defer func() {
		if p := recover(); p != nil {
			l.crashed(fmt.Errorf("a packet made the network stack panic: %v\n%s", p, debug.Stack()))
			more = true
		}
	}()
	view := buffer.NewViewSize(mtu)
	for {
		n, err := l.tun.Read(view.AsSlice())
		if err != nil {
			view.Release()
			return false
		}
		packet := view.AsSlice()[:n]
		switch l.pass(packet) {
		case drop:
			l.dropped.Add(1)
			continue
		case prohibit:
			if reply := prohibited(packet); reply != nil {
				l.write([][]byte{reply})
			}
			continue
		case deliver:
		}
		if n <= smallPacket {
			l.inject(buffer.NewViewWithData(packet))
			continue
		}
		view.CapLength(n)
		full := view
		view = buffer.NewViewSize(mtu)
		l.inject(full)
	}
}

func (l *link) inject(view *buffer.View) {
	d := l.dispatcher.Load()
	if d == nil {
		view.Release()
		return
	}
	proto := header.IPv4ProtocolNumber
	if view.AsSlice()[0]>>4 == 6 {
		proto = header.IPv6ProtocolNumber
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithView(view)})
	defer pkt.DecRef()
	(*d).DeliverNetworkPacket(proto, pkt)
}

// WritePackets implements stack.LinkWriter. The kernel takes a packet or loses
// it; TCP sends a lost one again.
func (l *link) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	n := 0
	for _, pkt := range pkts.AsSlice() {
		l.write(pkt.AsSlices())
		n++
	}
	return n, nil
}

func (l *link) write(parts [][]byte) {
	_ = l.raw.Write(func(fd uintptr) bool {
		for {
			_, err := unix.Writev(int(fd), parts)
			if err != unix.EINTR {
				return true
			}
		}
	})
}

// MTU implements stack.LinkEndpoint.
func (*link) MTU() uint32 { return mtu }

// SetMTU implements stack.LinkEndpoint.
func (*link) SetMTU(uint32) {}

// MaxHeaderLength implements stack.LinkEndpoint.
func (*link) MaxHeaderLength() uint16 { return 0 }

// LinkAddress implements stack.LinkEndpoint.
func (*link) LinkAddress() tcpip.LinkAddress { return "" }

// SetLinkAddress implements stack.LinkEndpoint.
func (*link) SetLinkAddress(tcpip.LinkAddress) {}

// Capabilities implements stack.LinkEndpoint: what comes from the kernel of this
// machine was not damaged on the way, but may have been made by hand.
func (*link) Capabilities() stack.LinkEndpointCapabilities { return 0 }

// Attach implements stack.LinkEndpoint; it starts reading.
func (l *link) Attach(d stack.NetworkDispatcher) {
	if d == nil {
		l.dispatcher.Store(nil)
		return
	}
	if l.dispatcher.Swap(&d) == nil {
		l.reading.Add(1)
		go l.read()
	}
}

// IsAttached implements stack.LinkEndpoint.
func (l *link) IsAttached() bool { return l.dispatcher.Load() != nil }

// Wait implements stack.LinkEndpoint.
func (l *link) Wait() { l.reading.Wait() }

// ARPHardwareType implements stack.LinkEndpoint.
func (*link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }

// AddHeader implements stack.LinkEndpoint.
func (*link) AddHeader(*stack.PacketBuffer) {}

// ParseHeader implements stack.LinkEndpoint.
func (*link) ParseHeader(*stack.PacketBuffer) bool { return true }

// Close implements stack.LinkEndpoint; reading ends.
func (l *link) Close() { _ = l.tun.Close() }

// SetOnCloseAction implements stack.LinkEndpoint.
func (*link) SetOnCloseAction(func()) {}
