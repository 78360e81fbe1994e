package network

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Ports that are chosen are below those that the kernel gives out by itself.
const (
	firstPort = 20_000
	portCount = 10_000
)

// Dial connects to a port of the container's loopback, of IPv4 or else IPv6.
func (n *Network) Dial(ctx context.Context, port int) (net.Conn, error) {
	n.mu.Lock()
	closed := n.closed
	n.mu.Unlock()
	if closed {
		return nil, net.ErrClosed
	}
	var errs []error
	for _, host := range [...]string{"127.0.0.1", "::1"} {
		c, err := n.dialInside(ctx, net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// dialInside makes a socket in the namespace; what it is connected to is there,
// wherever it is used.
func (n *Network) dialInside(ctx context.Context, addr string) (c net.Conn, err error) {
	err = inNamespace(n.ns, func() (err error) {
		var d net.Dialer
		c, err = d.DialContext(ctx, "tcp", addr)
		return err
	})
	return c, err
}

// maxPublished bounds the connections of one published port.
const maxPublished = 512

// Published is a port of the container on the host's loopback.
type Published struct {
	// HostPort is where on the host, Port where in the container.
	HostPort, Port int

	listeners []net.Listener
	ctx       context.Context
	cancel    context.CancelFunc
	flows     sync.WaitGroup
}

// Close ends the listeners and what is connected.
func (p *Published) Close() {
	p.cancel()
	for _, ln := range p.listeners {
		_ = ln.Close()
	}
	p.flows.Wait()
}

// ErrPortTaken says that somebody else has a port of the host.
var ErrPortTaken = errors.New("port is in use on this host")

// Publish listens on a port of the host's loopback, of IPv4 and where there is
// any of IPv6, and connects what comes to a port of the container. dial makes
// those connections; see Network.Dial. Fails with ErrPortTaken.
func Publish(hostPort, port int, dial func(ctx context.Context, port int) (net.Conn, error)) (*Published, error) {
	p := &Published{HostPort: hostPort, Port: port}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	for _, host := range [...]string{"127.0.0.1", "::1"} {
		ln, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(hostPort)))
		if err != nil && host == "::1" && (errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT)) {
			continue // a host without IPv6
		}
		if err != nil {
			p.Close()
			if errors.Is(err, unix.EADDRINUSE) {
				return nil, fmt.Errorf("%w: %d", ErrPortTaken, hostPort)
			}
			return nil, err
		}
		p.listeners = append(p.listeners, ln)
	}
	open := make(chan struct{}, maxPublished)
	for _, ln := range p.listeners {
		p.flows.Add(1)
		go func() {
			defer p.flows.Done()
			p.serve(ln, open, dial)
		}()
	}
	return p, nil
}

func (p *Published) serve(ln net.Listener, open chan struct{}, dial func(context.Context, int) (net.Conn, error)) {
	for {
		c, err := ln.Accept()
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ECONNABORTED) {
			continue
		}
		if err != nil {
			return
		}
		select {
		case open <- struct{}{}:
		case <-p.ctx.Done():
			_ = c.Close()
			return
		}
		p.flows.Add(1)
		go func() {
			defer p.flows.Done()
			defer func() { <-open }()
			p.forward(c.(*net.TCPConn), dial)
		}()
	}
}

// forward joins a connection with one to the container; where nobody listens it
// breaks, as it would if it were refused.
func (p *Published) forward(c *net.TCPConn, dial func(context.Context, int) (net.Conn, error)) {
	in, err := dial(p.ctx, p.Port)
	if err != nil {
		outside{c}.reset()
		return
	}
	splice(p.ctx, outside{c}, outside{in.(*net.TCPConn)})
}

// ChoosePort finds a port of the host's loopback for a port of an environment:
// always the same one, unless somebody else has it; taken says which are meant
// for others, whether they listen or not.
func ChoosePort(environment string, port int, taken func(int) bool) (int, error) {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s:%d", environment, port)
	start := int(h.Sum32() % portCount)
	for i := range portCount {
		candidate := firstPort + (start+i)%portCount
		if taken(candidate) || !CanListen(candidate) {
			continue
		}
		return candidate, nil
	}
	return 0, fmt.Errorf("every port from %d to %d is in use", firstPort, firstPort+portCount-1)
}

// CanListen says whether nobody has a port of the host's loopback.
func CanListen(port int) bool {
	for _, host := range [...]string{"127.0.0.1", "::1"} {
		ln, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			_ = ln.Close()
		} else if host == "127.0.0.1" || errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EADDRINUSE) {
			return false
		}
	}
	return true
}
