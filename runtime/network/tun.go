package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// device is what the interface is called in the container.
	device = "eth0"
	// mtu is as large as packets get: one trip for as many bytes as possible.
	mtu = 65520

	tunPath = "/dev/net/tun"

	busyTries = 200
	busyPause = 5 * time.Millisecond
)

// ErrNoTUN says that the host has no TUN devices.
var ErrNoTUN = errors.New("no TUN devices")

// ErrTaken says that another process that lives serves the network.
var ErrTaken = errors.New("the container's network belongs to another process")

// openTUN makes the device of a namespace, or takes over the one that an earlier
// process made, and sets it up with its addresses and routes. The calling thread
// is in the namespace.
func openTUN() (*os.File, error) {
	fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNoTUN, tunPath, err)
	}
	if err := setUp(fd); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	// Only now: a descriptor without a device cannot be waited for. It does not
	// block, so that reads wait in the runtime's poller and end with Close.
	return os.NewFile(uintptr(fd), tunPath), nil
}

func setUp(fd int) error {
	req, err := unix.NewIfreq(device)
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	// A process that had it and was killed may be on its way out still.
	for try := 0; ; try++ {
		err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
		if err == nil {
			break
		}
		if errors.Is(err, unix.EBUSY) && try == busyTries {
			return ErrTaken
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("make the network device: %w", err)
		}
		time.Sleep(busyPause)
	}
	// It outlives this process, with the container's addresses, so that another
	// one can take it over.
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("keep the network device: %w", err)
	}
	nl, err := openNetlink()
	if err != nil {
		return err
	}
	defer nl.close()
	return configure(nl)
}

// configure sets up what the namespace's interfaces are to be.
func configure(nl *rtnetlink) error {
	index, err := interfaceIndex(device)
	if err != nil {
		return err
	}
	_ = nl.noLinkLocal(index) // a kernel without IPv6
	if err := nl.up(index, mtu); err != nil {
		return fmt.Errorf("set the network device up: %w", err)
	}
	p := thePlan()
	if err := nl.address(index, netip.PrefixFrom(p.container4, bits4)); err != nil {
		return fmt.Errorf("set the address: %w", err)
	}
	if err := nl.defaultRoute(index, p.gateway4); err != nil {
		return fmt.Errorf("set the route: %w", err)
	}
	if err := nl.address(index, netip.PrefixFrom(p.container6, bits6)); err != nil {
		return nil // a kernel without IPv6, or a container that wants none
	}
	if err := nl.defaultRoute(index, p.gateway6); err != nil {
		return fmt.Errorf("set the route of IPv6: %w", err)
	}
	return nil
}

// loopbackUp sets up the loopback interface of the thread's namespace.
func loopbackUp() error {
	nl, err := openNetlink()
	if err != nil {
		return err
	}
	defer nl.close()
	if err := nl.up(1, 0); err != nil { // the first interface of any namespace
		return fmt.Errorf("set the loopback interface up: %w", err)
	}
	return nil
}

// interfaceIndex looks in the namespace of the calling thread.
func interfaceIndex(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, req); err != nil {
		return 0, &net.OpError{Op: "find", Net: name, Err: err}
	}
	return int(req.Uint32()), nil
}

// removeDevice takes away the device of a namespace, so that nothing is left but
// the loopback interface; the calling thread is in it. None is no error.
func removeDevice() error {
	index, err := interfaceIndex(device)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return err
	}
	nl, err := openNetlink()
	if err != nil {
		return err
	}
	defer nl.close()
	m := unix.IfInfomsg{Index: int32(index)}
	return nl.do(unix.RTM_DELLINK, 0, message(&m))
}
