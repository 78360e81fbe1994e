package objects

import (
	"container/list"
	"sync"
)

// maxCachedEntries bounds the trees kept, by the number of their entries; an
// entry takes about 120 bytes.
const maxCachedEntries = 200_000

// treeCache keeps the trees used last. It is safe for concurrent use.
type treeCache struct {
	max int

	mu    sync.Mutex // guards the fields below
	byID  map[string]*list.Element
	order *list.List // the last used first
	count int
}

type cachedTree struct {
	id      string
	entries []TreeEntry
}

func newTreeCache(max int) *treeCache {
	return &treeCache{max: max, byID: map[string]*list.Element{}, order: list.New()}
}

func (c *treeCache) get(id string) ([]TreeEntry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byID[id]
	if !ok {
		return nil, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*cachedTree).entries, true
}

func (c *treeCache) has(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byID[id] != nil
}

func (c *treeCache) put(id string, entries []TreeEntry) {
	cost := len(entries) + 1
	if cost > c.max/4 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byID[id] != nil {
		return
	}
	c.byID[id] = c.order.PushFront(&cachedTree{id, entries})
	c.count += cost
	for c.count > c.max {
		last := c.order.Back()
		t := c.order.Remove(last).(*cachedTree)
		delete(c.byID, t.id)
		c.count -= len(t.entries) + 1
	}
}
