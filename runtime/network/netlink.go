package network

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// rtnetlink is a connection to the kernel's routing tables, of the network
// namespace that the thread was in when it was opened. It is for one goroutine.
type rtnetlink struct {
	fd  int
	seq uint32
}

func openNetlink() (*rtnetlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	// The kernel answers before it returns; this is for a kernel that does not.
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
	return &rtnetlink{fd: fd}, nil
}

func (n *rtnetlink) close() { _ = unix.Close(n.fd) }

// ask sends one request and returns the payload of its answer, which is empty
// for one that is only acknowledged.
func (n *rtnetlink) ask(kind, flags uint16, body []byte) ([]byte, error) {
	n.seq++
	msg := make([]byte, unix.NLMSG_HDRLEN, unix.NLMSG_HDRLEN+len(body))
	binary.NativeEndian.PutUint32(msg, uint32(unix.NLMSG_HDRLEN+len(body)))
	binary.NativeEndian.PutUint16(msg[4:], kind)
	binary.NativeEndian.PutUint16(msg[6:], flags|unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(msg[8:], n.seq)
	if err := unix.Sendto(n.fd, append(msg, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	buf := make([]byte, 8192)
	for {
		got, _, err := unix.Recvfrom(n.fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		msgs, err := syscall.ParseNetlinkMessage(buf[:got])
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			if m.Header.Seq != n.seq {
				continue
			}
			if m.Header.Type != unix.NLMSG_ERROR {
				return m.Data, nil
			}
			if len(m.Data) < 4 {
				return nil, unix.EINVAL
			}
			if code := int32(binary.NativeEndian.Uint32(m.Data)); code != 0 {
				return nil, syscall.Errno(-code)
			}
			return nil, nil
		}
	}
}

// do makes a request that is only acknowledged.
func (n *rtnetlink) do(kind, flags uint16, body []byte) error {
	_, err := n.ask(kind, flags|unix.NLM_F_ACK, body)
	return err
}

// attribute appends one attribute, padded to four bytes.
func attribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// message is the fixed part of a request, as the kernel has it.
func message(v any) []byte {
	b, err := binary.Append(nil, binary.NativeEndian, v)
	if err != nil {
		panic(err) // a type without a size
	}
	return b
}

// up sets an interface up, with an MTU unless it is 0.
func (n *rtnetlink) up(index, mtu int) error {
	body := message(&unix.IfInfomsg{Index: int32(index), Flags: unix.IFF_UP, Change: unix.IFF_UP})
	if mtu > 0 {
		body = attribute(body, unix.IFLA_MTU, binary.NativeEndian.AppendUint32(nil, uint32(mtu)))
	}
	return n.do(unix.RTM_NEWLINK, 0, body)
}

// noLinkLocal keeps the kernel from making up IPv6 addresses of an interface.
func (n *rtnetlink) noLinkLocal(index int) error {
	const inet6AddrGenMode, none = 8, 1 // IFLA_INET6_ADDR_GEN_MODE, IN6_ADDR_GEN_MODE_NONE
	family := attribute(nil, unix.AF_INET6, attribute(nil, inet6AddrGenMode, []byte{none}))
	body := message(&unix.IfInfomsg{Index: int32(index)})
	return n.do(unix.RTM_NEWLINK, 0, attribute(body, unix.IFLA_AF_SPEC, family))
}

// address gives an interface an address; one that it has is no error.
func (n *rtnetlink) address(index int, addr netip.Prefix) error {
	m := unix.IfAddrmsg{Family: family(addr.Addr()), Prefixlen: uint8(addr.Bits()), Index: uint32(index)}
	if addr.Addr().Is6() {
		m.Flags = unix.IFA_F_NODAD // nobody else is there
	}
	body := message(&m)
	body = attribute(body, unix.IFA_LOCAL, addr.Addr().AsSlice())
	body = attribute(body, unix.IFA_ADDRESS, addr.Addr().AsSlice())
	err := n.do(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, body)
	if err == unix.EEXIST {
		return nil
	}
	return err
}

// defaultRoute sends everything of the gateway's family to the gateway.
func (n *rtnetlink) defaultRoute(index int, gateway netip.Addr) error {
	m := unix.RtMsg{Family: family(gateway), Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_STATIC,
		Scope: unix.RT_SCOPE_UNIVERSE, Type: unix.RTN_UNICAST}
	body := message(&m)
	body = attribute(body, unix.RTA_GATEWAY, gateway.AsSlice())
	body = attribute(body, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(index)))
	err := n.do(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, body)
	if err == unix.EEXIST {
		return nil
	}
	return err
}

// routeType is what the routing table makes of an address: unix.RTN_LOCAL for
// one of the host's own.
func (n *rtnetlink) routeType(addr netip.Addr) (uint8, error) {
	m := unix.RtMsg{Family: family(addr), Dst_len: uint8(addr.BitLen())}
	body := message(&m)
	body = attribute(body, unix.RTA_DST, addr.AsSlice())
	data, err := n.ask(unix.RTM_GETROUTE, 0, body)
	if err != nil {
		return 0, err
	}
	if len(data) < unix.SizeofRtMsg {
		return 0, os.ErrInvalid
	}
	return data[7], nil // rtm_type
}

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// isLocal says whether a connection to an address would be one to the host
// itself, or whether that cannot be told. What has no route at all is not: the
// connection fails, and the container is to see how.
func isLocal(addr netip.Addr) bool {
	n, err := openNetlink()
	if err != nil {
		return true
	}
	defer n.close()
	kind, err := n.routeType(addr)
	switch err {
	case nil:
		return kind != unix.RTN_UNICAST
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EAFNOSUPPORT:
		return false
	}
	return true
}
