package fusefs

import (
	"context"
	"sync"
	"syscall"
)

// The link count of a directory is 2 and one for each directory in it, as
// programs that walk trees expect. For a directory whose tree was not read it
// would be a guess. So the attributes of such a directory that come along with
// a lookup or a listing are not to be kept by the kernel; when somebody asks,
// it asks again, and then the tree is read, but not the sizes of what is in it.
// That keeps no lock of the kernel's, as a lookup would.

// unknown is dir.unread before the tree was looked at.
const unknown = -1

// links is the link count that is shown. mu is held.
func (n *node) links() uint32 {
	switch {
	case n.dir == nil || n.nlink == 0:
		return n.nlink
	case n.dir.unread == unknown:
		return 1 // unknown, as many file systems say always
	}
	return 2 + uint32(n.dir.subdirs+n.dir.unread)
}

// counted reports whether the link count of n is known. mu is held.
func (n *node) counted() bool { return n.dir == nil || n.dir.unread != unknown }

// count finds out the link count of directory n. When the tree is not to be
// had the count stays unknown: whoever looks into the directory gets the error.
func (w *workspace) count(ctx context.Context, n *node) {
	id := w.t.oidString(&n.oid)
	all, err := w.objs.Tree(ctx, id)
	if err != nil {
		w.log.Printf("%s: tree %s: %v", w.spec.ID, id, err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.counted() {
		return
	}
	n.dir.unread = 0
	for _, e := range all {
		if isTree(e) && n.dir.wants(e.Name) {
			n.dir.unread++
		}
	}
}

// isTree reports whether e is going to be a directory.
func isTree(e TreeEntry) bool {
	kind := e.Mode & syscall.S_IFMT
	return usableName(e.Name) && (kind == syscall.S_IFDIR || kind == gitlinkMode)
}

// wants reports whether an entry of the tree, when it is read, gets into d.
func (d *dir) wants(name string) bool {
	_, gone := d.hidden[name]
	return !gone && d.get(name) == nil
}

// uncounted reports whether the link count of ino is not known yet.
func (w *workspace) uncounted(ino uint64) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	n := w.t.nodes[ino]
	return n != nil && !n.counted()
}

// recentTrees keeps the trees that were read last: what is counted when it is
// looked up is mostly listed next.
type recentTrees struct {
	Objects

	mu   sync.Mutex
	ids  [16]string // guarded by mu; a ring
	at   int        // guarded by mu
	data map[string][]TreeEntry
}

// maxRecent is the longest tree that is kept.
const maxRecent = 1000

func keepRecent(objs Objects) *recentTrees {
	return &recentTrees{Objects: objs, data: map[string][]TreeEntry{}}
}

// Tree reads a tree, or remembers it. The entries are shared: do not change
// them.
func (r *recentTrees) Tree(ctx context.Context, id string) ([]TreeEntry, error) {
	r.mu.Lock()
	entries, ok := r.data[id]
	r.mu.Unlock()
	if ok {
		return entries, nil
	}
	entries, err := r.Objects.Tree(ctx, id)
	if err != nil || len(entries) > maxRecent {
		return entries, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.data[id]; !ok {
		delete(r.data, r.ids[r.at])
		r.ids[r.at], r.data[id] = id, entries
		r.at = (r.at + 1) % len(r.ids)
	}
	return entries, nil
}
