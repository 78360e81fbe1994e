package network

import (
	"fmt"
	"sync"
)

// Contact is something that the container tried to reach.
type Contact struct {
	// Target is a host and port, "example.com:443", or a name that was asked for.
	Target string
	// Refused says why it was refused; "" means that it was not.
	Refused string
}

func (c Contact) String() string {
	if c.Refused == "" {
		return "contacted " + c.Target
	}
	return fmt.Sprintf("refused %s: %s", c.Target, c.Refused)
}

// maxContacts bounds what one Watch remembers.
const maxContacts = 64

// contacts tells whoever watches what the container tries to reach.
type contacts struct {
	mu      sync.Mutex
	watches map[*Watch]bool // guarded by mu
}

// Watch notes contacts from its start to its end, each once, in order.
type Watch struct {
	of   *contacts
	seen map[Contact]bool // guarded by of.mu, as are the others
	list []Contact
	more int
}

func (c *contacts) watch() *Watch {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &Watch{of: c, seen: map[Contact]bool{}}
	if c.watches == nil {
		c.watches = map[*Watch]bool{}
	}
	c.watches[w] = true
	return w
}

// Stop ends the watch. It returns what was noted, and how many attempts beyond
// that were not.
func (w *Watch) Stop() (list []Contact, more int) {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	delete(w.of.watches, w)
	return w.list, w.more
}

func (c *contacts) note(contact Contact) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.watches {
		switch {
		case w.seen[contact]:
		case len(w.list) == maxContacts:
			w.more++
		default:
			w.seen[contact] = true
			w.list = append(w.list, contact)
		}
	}
}
