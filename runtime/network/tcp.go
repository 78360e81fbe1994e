package network

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// copyBuffer is what is moved at a time.
const copyBuffer = 64 << 10

// acceptTCP makes a connection of the container a second time from the host, and
// only then accepts it, so that the container sees what became of it.
func (u *uplink) acceptTCP(r *tcp.ForwarderRequest) {
	if !u.begin() {
		r.Complete(false)
		return
	}
	u.guarded("a connection", func() {
		completed := false
		complete := func(reset bool) {
			if !completed {
				completed = true
				r.Complete(reset)
			}
		}
		defer complete(true)
		if u.tcp.Add(1) > int64(u.net.opts.Limits.TCP) {
			u.tcp.Add(-1)
			return
		}
		defer u.tcp.Add(-1)
		dst := addrPort(r.ID().LocalAddress, r.ID().LocalPort)
		targets, why := u.net.admit(dst)
		if why != "" {
			u.net.refused(dst, why)
			return
		}
		u.net.contacted(dst)
		out, err := u.dial(targets)
		if err != nil {
			// Silence is passed on as silence.
			complete(!isTimeout(err))
			return
		}
		defer out.Close()
		var wq waiter.Queue
		ep, terr := r.CreateEndpoint(&wq)
		if terr != nil {
			_ = out.SetLinger(0)
			return
		}
		complete(false)
		u.join(&inside{TCPConn: gonet.NewTCPConn(&wq, ep), ep: ep}, out)
	})
}

// dial connects to the first target that accepts.
func (u *uplink) dial(targets []netip.AddrPort) (*net.TCPConn, error) {
	dialer := net.Dialer{Timeout: u.net.opts.Limits.ConnectTime}
	var errs []error
	for _, t := range targets {
		c, err := dialer.DialContext(u.ctx, "tcp", t.String())
		if err == nil {
			return c.(*net.TCPConn), nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// inside is the container's end of a connection.
type inside struct {
	*gonet.TCPConn
	ep tcpip.Endpoint
}

// reset ends the connection as a broken one.
func (c *inside) reset() { c.ep.Abort() }

// halves is one end of a connection, each direction of which can end by itself.
type halves interface {
	net.Conn
	CloseWrite() error
	reset()
}

// outside is the host's end of a connection.
type outside struct{ *net.TCPConn }

func (c outside) reset() {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// join passes on bytes, ends and breaks between two ends until both directions
// have ended. Both are closed then.
func (u *uplink) join(in halves, out *net.TCPConn) {
	splice(u.ctx, in, outside{out})
}

func splice(ctx context.Context, a, b halves) {
	cut := func() {
		a.reset()
		b.reset()
	}
	stop := context.AfterFunc(ctx, cut)
	defer stop()
	var other sync.WaitGroup
	other.Add(1)
	go func() {
		defer other.Done()
		if pass(b, a) != nil {
			cut()
		}
	}()
	if pass(a, b) != nil {
		cut()
	}
	other.Wait()
	_ = a.Close()
	_ = b.Close()
}

// pass copies one direction and passes its end on.
func pass(from, to halves) error {
	buf := make([]byte, copyBuffer)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			return to.CloseWrite()
		}
		if err != nil {
			return err
		}
	}
}
