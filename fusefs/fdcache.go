package fusefs

import (
	"container/list"
	"os"
	"sync"
)

// fdCache keeps backing files open, since the kernel never tells us about
// open and close. It holds at most max files that nobody is using.
type fdCache struct {
	max int

	mu   sync.Mutex
	refs map[fdKey]*fdRef // guarded by mu, as is everything in them
	lru  *list.List       // of *fdRef without users, oldest first
}

// fdKey names a backing file: of an inode, in a layer or (noData) its blob.
type fdKey struct {
	w     *workspace
	ino   uint64
	layer int16
}

// fdRef is an open backing file that stays open until released.
type fdRef struct {
	*os.File
	key   fdKey
	users int
	gone  bool // dropped while in use
	elem  *list.Element
}

func newFdCache(max int) *fdCache {
	return &fdCache{max: max, refs: map[fdKey]*fdRef{}, lru: list.New()}
}

// get returns the open file for key, opening it when it is not there.
func (c *fdCache) get(key fdKey, open func() (*os.File, error)) (*fdRef, error) {
	if r := c.lookup(key); r != nil {
		return r, nil
	}
	f, err := open()
	if err != nil {
		return nil, err
	}
	return c.put(key, f), nil
}

func (c *fdCache) lookup(key fdKey) *fdRef {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.refs[key]
	if r != nil {
		c.use(r)
	}
	return r
}

func (c *fdCache) use(r *fdRef) {
	r.users++
	if r.elem != nil {
		c.lru.Remove(r.elem)
		r.elem = nil
	}
}

// put adds an open file, unless another one was faster, and returns the one
// to use.
func (c *fdCache) put(key fdKey, f *os.File) *fdRef {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.refs[key]; r != nil {
		f.Close()
		c.use(r)
		return r
	}
	r := &fdRef{File: f, key: key, users: 1}
	c.refs[key] = r
	return r
}

// release ends the use of a file that get or put returned.
func (c *fdCache) release(r *fdRef) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.users--
	if r.users > 0 {
		return
	}
	if r.gone {
		r.File.Close()
		return
	}
	r.elem = c.lru.PushBack(r)
	if c.lru.Len() > c.max {
		c.evict(c.lru.Front().Value.(*fdRef))
	}
}

// evict takes r out of the cache and closes it as soon as it has no user.
func (c *fdCache) evict(r *fdRef) {
	delete(c.refs, r.key)
	if r.elem != nil {
		c.lru.Remove(r.elem)
		r.elem = nil
		r.File.Close()
		return
	}
	r.gone = true
}

// drop closes the file for key.
func (c *fdCache) drop(key fdKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.refs[key]; r != nil {
		c.evict(r)
	}
}

// dropAll closes the files of a workspace.
func (c *fdCache) dropAll(w *workspace) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, r := range c.refs {
		if key.w == w {
			c.evict(r)
		}
	}
}
