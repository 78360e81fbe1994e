package network

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// datagrams is how many bytes of datagrams wait to be passed on, per flow.
const datagrams = 256 << 10

// acceptUDP makes a flow of the first datagram between two ports; those that
// follow do not come here. A false answers that nobody is there.
func (u *uplink) acceptUDP(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	if u.udp.Load() >= int64(u.net.opts.Limits.UDP) {
		return true // dropped
	}
	dst := addrPort(id.LocalAddress, id.LocalPort)
	targets, why := u.net.admit(dst)
	if why != "" {
		u.net.refused(dst, why)
		return false
	}
	out, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(targets[0]))
	if err != nil {
		return false
	}
	in, err := u.datagramEndpoint(id, pkt)
	if err != nil || !u.begin() {
		_ = out.Close()
		return true // another datagram was quicker, or this is the end
	}
	u.net.contacted(dst)
	u.udp.Add(1)
	go u.guarded("a flow of datagrams", func() {
		defer u.udp.Add(-1)
		u.exchange(in, out)
	})
	return true
}

// datagramEndpoint is the container's end of a flow, with its first datagram.
func (u *uplink) datagramEndpoint(id stack.TransportEndpointID, pkt *stack.PacketBuffer) (*gonet.UDPConn, error) {
	var wq waiter.Queue
	var ep tcpip.Endpoint
	var terr tcpip.Error
	udp.NewForwarder(u.stack, func(r *udp.ForwarderRequest) {
		ep, terr = r.CreateEndpoint(&wq)
	}).HandlePacket(id, pkt)
	if terr != nil {
		return nil, errors.New(terr.String())
	}
	ep.SocketOptions().SetReceiveBufferSize(datagrams, true)
	return gonet.NewUDPConn(&wq, ep), nil
}

// exchange passes datagrams on until nothing has come for a while.
func (u *uplink) exchange(in *gonet.UDPConn, out *net.UDPConn) {
	idle := u.net.opts.Limits.IdleUDP
	var last atomic.Int64
	last.Store(time.Now().UnixNano())
	expired := func() bool { return time.Since(time.Unix(0, last.Load())) >= idle }
	end := sync.OnceFunc(func() {
		_ = in.Close()
		_ = in.SetDeadline(time.Unix(1, 0)) // who waits in it does not notice the close
		_ = out.Close()
	})
	defer context.AfterFunc(u.ctx, end)()
	var other sync.WaitGroup
	other.Add(1)
	go func() {
		defer other.Done()
		defer end()
		relay(out, in, idle, &last, expired)
	}()
	relay(in, out, idle, &last, expired)
	end()
	other.Wait()
}

// relay passes datagrams on in one direction.
func relay(from, to net.Conn, idle time.Duration, last *atomic.Int64, expired func() bool) {
	buf := make([]byte, 1<<16)
	for {
		_ = from.SetReadDeadline(time.Now().Add(idle))
		n, err := from.Read(buf)
		switch {
		case err == nil:
			last.Store(time.Now().UnixNano())
			if _, err := to.Write(buf[:n]); err != nil && errors.Is(err, net.ErrClosed) {
				return
			}
		case errors.Is(err, syscall.ECONNREFUSED): // nobody listens there yet
		case isTimeout(err):
			if expired() {
				return
			}
		default:
			return
		}
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &ne) && ne.Timeout()
}
