package fusefs

import (
	"errors"
	"os"
	"slices"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Whoever looks through a tree of a million files makes the kernel, and us,
// remember a million nodes, and the kernel tells us to forget one only when it
// is short of memory. So when there are many, it is asked to drop those that
// nobody has open, and directories of the tree in which nothing was changed are
// forgotten. They are read again when somebody looks, and are then the same:
// inode numbers and the order of entries follow from the tree.

const (
	// nodeLimit is from how many nodes of a mount on directories are forgotten.
	nodeLimit = 400_000
	// pruneBatch is how many nodes the kernel is asked to drop at a time.
	pruneBatch = 4096
	// pruneDirs is how many directories are forgotten with the lock held.
	pruneDirs = 128
	// pruneWait is how long the kernel may take to drop nodes.
	pruneWait = 2 * time.Second
	// pruneRest is how long nothing is forgotten after that: what is in use all
	// the time would be read all the time.
	pruneRest = 10 * time.Second
)

// pruning is what the forgetting of directories needs to know.
type pruning struct {
	limit int // nodes; 0 for nodeLimit
	// All guarded by workspace.mu.
	dirs    []uint64 // of the tree, in the order in which they were read
	running bool
	refused bool // the kernel does not drop nodes when it is asked to
}

// readIn notes that directory n was read, and forgets others when there are too
// many nodes. mu is held for writing.
func (w *workspace) readIn(n *node) {
	p := &w.pruning
	p.dirs = append(p.dirs, n.ino)
	if len(w.t.nodes) <= w.nodeLimit() || p.running || p.refused {
		return
	}
	p.running = true
	go func() {
		for w.prune() {
			time.Sleep(w.pruneRest())
		}
	}()
}

func (w *workspace) nodeLimit() int {
	if w.pruning.limit > 0 {
		return w.pruning.limit
	}
	return nodeLimit
}

// pruneRest is shorter where few nodes make many.
func (w *workspace) pruneRest() time.Duration {
	return max(pruneRest*time.Duration(w.nodeLimit())/nodeLimit, pruneRest/100)
}

// prune forgets about half of what may be forgotten, what was read first before
// the rest, and reports whether there may be more to do after a while.
func (w *workspace) prune() bool {
	if w.few() {
		return false
	}
	chosen, ids := w.choose()
	count := len(chosen)
	err := w.dropNodes(ids)
	if err == nil {
		for deadline := time.Now().Add(pruneWait); len(chosen) > 0 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			chosen = w.unload(chosen)
		}
	} else if !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EBADF) { // the mount is gone
		w.log.Printf("%s: the kernel keeps its nodes: %v", w.spec.ID, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &w.pruning
	p.dirs = slices.DeleteFunc(p.dirs, func(ino uint64) bool {
		n := w.t.nodes[ino]
		return n == nil || !n.isDir() || !n.dir.loaded
	})
	p.refused = err != nil
	p.running = err == nil && len(chosen) < count
	return p.running
}

// few reports that there is no need to forget anything, and so ends the loop.
func (w *workspace) few() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.t.nodes) > w.nodeLimit() {
		return false
	}
	w.pruning.running = false
	return true
}

// choose returns directories that may be forgotten, those inside before those
// around them, and what the kernel has to drop for that.
func (w *workspace) choose() (chosen []*node, ids []uint64) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	goal := len(w.t.nodes) - w.nodeLimit()/2
	read := w.pruning.dirs
	// What is read later is never around what was read before.
	first, count := len(read), 0
	for i, ino := range read {
		if n := w.t.nodes[ino]; n != nil && n.isDir() {
			count += len(n.dir.ents)
		}
		if count >= goal {
			first = i + 1
			break
		}
	}
	gone := map[*node]bool{}
	for _, ino := range slices.Backward(read[:first]) {
		n := w.t.nodes[ino]
		if n == nil || !n.forgettable(func(c *node) bool { return gone[c] || !c.dir.loaded }) {
			continue
		}
		gone[n] = true
		chosen = append(chosen, n)
		for _, e := range n.dir.order {
			if e.n.lookups.Load() > 0 {
				ids = append(ids, e.n.ino)
			}
		}
	}
	return chosen, ids
}

// forgettable reports whether all that is known of the content of directory n
// is in the tree; empty says so of a directory in it. mu is held.
func (n *node) forgettable(empty func(*node) bool) bool {
	const plain = lower | gitlink | convert | sized
	if n.ino == rootIno || !n.isDir() || !n.dir.loaded || n.flags&lower == 0 || n.flags&(touched|gitlink) != 0 ||
		n.dir.dead > 0 || n.dir.below != 0 || len(n.dir.dirty) > 0 {
		return false
	}
	for _, e := range n.dir.order {
		c := e.n
		if c == nil || c.flags&^plain != 0 || c.ext != nil || c.nlink != 1 || c.data != noData {
			return false
		}
		if c.isDir() && c.flags&gitlink == 0 && !empty(c) {
			return false
		}
	}
	return true
}

// unload forgets those of the directories that nobody has anything of, and
// returns the others.
func (w *workspace) unload(chosen []*node) (left []*node) {
	for len(chosen) > 0 {
		part := chosen[:min(len(chosen), pruneDirs)]
		// Never waited for: who has it for reading may be waiting for git.
		if !w.using.TryLock() {
			return append(left, chosen...)
		}
		w.mu.Lock()
		for _, n := range part {
			if !w.forget(n) {
				left = append(left, n)
			}
		}
		w.mu.Unlock()
		w.using.Unlock()
		chosen = chosen[len(part):]
	}
	return left
}

// forget forgets the content of n if it can. mu is held for writing.
func (w *workspace) forget(n *node) bool {
	if w.t.nodes[n.ino] != n || n.isDir() && !n.dir.loaded {
		return true // done by somebody else
	}
	if !n.forgettable(func(c *node) bool { return !c.dir.loaded }) {
		return false
	}
	for _, e := range n.dir.order {
		if e.n.lookups.Load() > 0 {
			return false
		}
	}
	for _, e := range n.dir.order {
		w.fds.drop(fdKey{w, e.n.ino, noData})
		w.t.drop(e.n)
	}
	subdirs := n.dir.subdirs
	n.dir = newDir(false)
	n.dir.unread = subdirs
	return true
}

// pruneOut is the notification of <linux/fuse.h> that is followed by nodes.
type pruneOut struct {
	fuse.OutHeader
	count, _ uint32
	_        uint64
}

const notifyPrune = 9

// dropNodes asks the kernel to drop what nobody uses.
func (w *workspace) dropNodes(ids []uint64) error {
	for part := range slices.Chunk(ids, pruneBatch) {
		out := pruneOut{count: uint32(len(part))}
		size := int(unsafe.Sizeof(out))
		out.Length, out.Status = uint32(size+8*len(part)), notifyPrune
		msg := append(slices.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&out)), size)),
			unsafe.Slice((*byte)(unsafe.Pointer(&part[0])), 8*len(part))...)
		err := w.dev.use(func(fd int) error {
			_, err := unix.Write(fd, msg)
			return err
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return os.NewSyscallError("write", err)
		}
	}
	return nil
}
