// Package network gives a container a network of its own: a network namespace
// whose only way out is a user-mode stack in this process.
//
// # How it works
//
// Attach makes a TUN device in the container's network namespace, and reads and
// writes the packets of that device. They go to a TCP/IP stack of gVisor, which
// takes every address for its own: a connection that the container makes is
// made a second time by this process, with the host's own sockets, and the two
// are joined. So the host needs no interface, no address, no route and no packet
// filter for it, and what the container may reach is decided here, by Rules,
// before anything leaves.
//
// The container sees:
//
//	address   198.19.255.2/29, fd67:6974:656e:7600::2/64
//	gateway   198.19.255.1,    fd67:6974:656e:7600::1   answers ping; the resolver
//	host      198.19.255.3,    fd67:6974:656e:7600::3   the host's loopback, for
//	                                                    the ports of Rules.HostPorts
//
// These are the same in every namespace, as nothing routes between them.
//
// # What is out of reach
//
// Whatever the rules say, no connection is made to an address of the host itself
// (loopback, and everything that its routing table calls local: a service that
// listens on all interfaces would be reached there), to link-local addresses and
// the metadata services of clouds, or to what is no host at all. Addresses that
// have an IPv4 address in them (mapped, 6to4, NAT64) count as that address too.
// Names are no way around: what counts is the address that is connected to.
//
// # What passes
//
// TCP and UDP. Everything else is dropped, but ping, which is answered for the
// gateway and refused for all others. A packet whose source is not the
// container's address goes nowhere.
//
// # Limits
//
// A container's flows, the flows being set up, and the buffers of each are
// bounded (Limits), so that a flood costs the container its network and nobody
// else anything but a share of the processor.
//
// # Ports
//
// A published port is a listener on the host's loopback; each connection is made
// again to the loopback of the container's namespace. That does not go through
// the stack, and works where the container may reach nothing.
package network
