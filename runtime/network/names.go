package network

import (
	"net/netip"
	"slices"
	"sync"
)

// Bounds of what is remembered of answers.
const (
	maxRemembered   = 8192
	maxNamesOfOne   = 32
	maxNameRemember = 253
)

// names remembers which addresses the resolver gave out for which names, the
// latest ones.
type names struct {
	mu    sync.Mutex
	of    map[netip.Addr][]string // guarded by mu
	order []netip.Addr            // as they came, guarded by mu
}

func (n *names) remember(name string, addr netip.Addr) {
	addr = addr.Unmap()
	if len(name) > maxNameRemember {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of == nil {
		n.of = map[netip.Addr][]string{}
	}
	had, known := n.of[addr]
	if i := slices.Index(had, name); i >= 0 {
		// The latest name is the last: it is how a contact is called.
		had = append(slices.Delete(slices.Clone(had), i, i+1), name)
		n.of[addr] = had
		return
	}
	if !known {
		if len(n.order) == maxRemembered {
			delete(n.of, n.order[0])
			n.order = n.order[1:]
		}
		n.order = append(n.order, addr)
	}
	if len(had) == maxNamesOfOne {
		had = had[1:]
	}
	n.of[addr] = append(slices.Clone(had), name)
}

// lookup returns the names of an address; the slice is never changed.
func (n *names) lookup(addr netip.Addr) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.of[addr.Unmap()]
}
