package network

import "time"

// Limits bound what one container may have of the host. A flow costs a socket of
// the host and at most two TCP buffers in each direction.
type Limits struct {
	// TCP and UDP are how many flows there may be at a time; a connection beyond
	// is refused, a datagram beyond dropped.
	TCP, UDP int
	// Opening is how many TCP connections may be in the making at a time.
	Opening int
	// Queries is how many questions to the resolver may be open at a time.
	Queries int
	// Buffer is the most bytes a TCP connection buffers in one direction.
	Buffer int
	// ConnectTime is what the making of a connection may take.
	ConnectTime time.Duration
	// IdleUDP is after what silence a flow of datagrams is forgotten.
	IdleUDP time.Duration
}

// DefaultLimits are those of an ordinary container: at most 640 MB when each of
// its connections is stuck with full buffers.
func DefaultLimits() Limits {
	return Limits{TCP: 1024, UDP: 512, Opening: 256, Queries: 64, Buffer: 256 << 10,
		ConnectTime: 30 * time.Second, IdleUDP: 90 * time.Second}
}
