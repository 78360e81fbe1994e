package fusefs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/fusefs/layer"
)

// The quota of a workspace (MountSpec.Quota) bounds what it keeps on the disk:
// the blocks of its data files, in whichever layer of the stack they are, and
// the log of the top layer. A request is promised its worst case before it runs
// and counted as what became of it afterwards, so that requests that run side by
// side never use more than there is. When the worst case does not fit, the
// blocks are looked at that are there already.
//
// What the file system below allocates for itself later on, such as blocks that
// say where others are, counts when the file is looked at next.
//
// Bytes that were frozen count as long as the workspace has the file: a fork
// neither frees nor costs anything, to either side.

// quota is the account of a workspace. A nil one bounds nothing. It is safe for
// concurrent use; mu is taken last of all locks.
type quota struct {
	limit int64
	block int64 // what the file system allocates at once

	mu     sync.Mutex
	files  map[uint64]int64 // guarded by mu: bytes allocated for the data of each inode
	used   int64            // guarded by mu: their sum, and the log
	log    int64            // guarded by mu
	held   int64            // guarded by mu: promised to requests under way
	denied int64            // guarded by mu: requests that found no room, until it is told
	until  time.Time        // guarded by mu: up to when a file that lost its last name may be on its way
	freed  chan struct{}    // has something when bytes were freed
}

// Usage is what a workspace keeps on the disk, in bytes.
type Usage struct {
	// Used is what counts, Limit what may be used; 0 for no limit.
	Used, Limit int64
}

// errFull is what a request gets that finds no room.
const errFull = unix.ENOSPC

// countUse begins an account: it looks at every data file once.
func (w *workspace) countUse(limit int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(w.layerDir, &fs); err != nil {
		return &os.PathError{Op: "statfs", Path: w.layerDir, Err: err}
	}
	q := &quota{limit: limit, block: max(fs.Bsize, 512), files: map[uint64]int64{}, freed: make(chan struct{}, 1)}
	err := w.t.eachData(w.layers, func(n *node, bytes int64) { q.set(n.ino, bytes) })
	if err != nil {
		return err
	}
	q.setLog(w.top().Size())
	w.quota = q
	return nil
}

// eachData calls fn for every node with a data file and the bytes that are
// allocated for it.
func (t *tree) eachData(layers []*layer.Layer, fn func(n *node, bytes int64)) error {
	for _, n := range t.nodes {
		if n.data == noData {
			continue
		}
		path := layers[n.data].DataPath(n.ino)
		var st unix.Stat_t
		switch err := unix.Stat(path, &st); {
		case errors.Is(err, unix.ENOENT): // lost with the power before it was synced
		case err != nil:
			return &os.PathError{Op: "stat", Path: path, Err: err}
		default:
			fn(n, st.Blocks*512)
		}
	}
	return nil
}

// set says how much is allocated for ino. mu is held, or nobody else knows q yet.
func (q *quota) set(ino uint64, bytes int64) {
	q.used += bytes - q.files[ino]
	q.files[ino] = bytes
}

func (q *quota) setLog(size int64) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.used += size - q.log
	q.log = size
}

// drop says that the workspace has the bytes of ino no more.
func (q *quota) drop(ino uint64) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.used -= q.files[ino]
	delete(q.files, ino)
	q.wake()
}

// wake tells who waits for room to look again. mu is held.
func (q *quota) wake() {
	select {
	case q.freed <- struct{}{}:
	default:
	}
}

// patience is how long a request waits for the bytes of files that were removed
// just before.
const patience = time.Second

// leaving says that the kernel is about to forget a file without a name, which
// it tells a moment after the request that took the name is answered.
func (q *quota) leaving() {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.until = time.Now().Add(patience)
}

// await waits for room while a file is about to go, and reports whether it is
// worth looking again.
func (q *quota) await() bool {
	q.mu.Lock()
	left := time.Until(q.until)
	q.mu.Unlock()
	if left <= 0 {
		return false
	}
	select {
	case <-q.freed:
	case <-time.After(left):
	}
	return true
}

// tight reports whether a write may have to wait.
func (q *quota) tight() bool {
	if q == nil {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.room() < 2*maxIO && time.Now().Before(q.until)
}

// hold promises n bytes if there is room for them.
func (q *quota) hold(n int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n > q.room() {
		return false
	}
	q.held += n
	return true
}

// room is what is neither used nor promised. mu is held.
func (q *quota) room() int64 { return max(q.limit-q.used-q.held, 0) }

// settle ends a promise: what fd, the data file of ino, has allocated now counts.
func (q *quota) settle(n int64, ino uint64, fd int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.held -= n
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err == nil { // of an open file: it always works
		q.set(ino, st.Blocks*512)
	}
	if q.room() > 0 {
		q.wake()
	}
}

// unhold ends a promise that nothing came of.
func (q *quota) unhold(n int64) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.held -= n
	q.wake()
}

func (q *quota) deny() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.denied++
	return errFull
}

// grow runs fn on the data file f of ino, which may allocate blocks for length
// bytes at off. It is told for how many there is room; with whole it is all of
// them or an error.
func (q *quota) grow(ino uint64, f *fdRef, off, length int64, whole bool, fn func(length int64) error) error {
	if q == nil {
		return fn(length)
	}
	n, held, err := q.promise(f, off, length, whole)
	if err != nil {
		return err
	}
	defer q.settle(held, ino, f.fd)
	return fn(n)
}

// promise returns for how many bytes at off there is room, and what was promised
// for them.
func (q *quota) promise(f *fdRef, off, length int64, whole bool) (n, held int64, err error) {
	if length <= 0 {
		return length, 0, nil
	}
	worst := q.blocks(off, off+length)
	for {
		if q.hold(worst) {
			return length, worst, nil
		}
		holes, err := unallocated(f, off, off+length)
		if err != nil {
			return 0, 0, err
		}
		if n, held := q.fitting(holes, off, length); n == length || n > 0 && !whole {
			return n, held, nil
		} else {
			q.unhold(held)
		}
		if !q.await() {
			return 0, 0, q.deny()
		}
	}
}

// blocks is the size of the blocks that the range touches.
func (q *quota) blocks(start, end int64) int64 {
	return (end+q.block-1)/q.block*q.block - start/q.block*q.block
}

// fitting promises what the longest beginning of a range needs that there is room
// for, and returns the length of that.
func (q *quota) fitting(holes []span, off, length int64) (n, held int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	room := q.room()
	n = length
	for _, h := range holes {
		need := q.blocks(h.start, h.end)
		if held+need > room {
			blocks := (room - held) / q.block
			held += blocks * q.block
			n = max(h.start/q.block*q.block+blocks*q.block-off, 0)
			if blocks == 0 {
				n = max(h.start-off, 0)
			}
			break
		}
		held += need
	}
	q.held += held
	return n, held
}

// mayLog reports whether records may be added to the log. Those always may that
// free something, or tell of changes that were promised their room; what they
// take beyond the limit is little and bounded.
func (q *quota) mayLog(recs []layer.Record) bool {
	if q == nil {
		return true
	}
	const most = 100 // bytes of what has a fixed size
	var need, attrs int64
	for i := range recs {
		r := &recs[i]
		switch r.Kind {
		case layer.KindRemove, layer.KindMark:
			return true
		case layer.KindCreate, layer.KindLink, layer.KindRename, layer.KindSetXattr:
			need += int64(most + len(r.Name) + len(r.Name2) + len(r.Target) + len(r.Value))
		case layer.KindSetattr:
			attrs += most
		case layer.KindDirty, layer.KindDataUp, layer.KindRemoveXattr:
			attrs = math.MinInt64 / 2 // they belong to the change of content
		}
	}
	need += max(attrs, 0)
	q.mu.Lock()
	defer q.mu.Unlock()
	if need == 0 || need <= q.room() {
		return true
	}
	q.denied++
	return false
}

// setLimit changes the limit; what is used above it stays.
func (q *quota) setLimit(limit int64) error {
	if q == nil || limit <= 0 {
		return fmt.Errorf("limit %d: the workspace was mounted without one", limit)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.limit = limit
	q.wake()
	return nil
}

// usage returns the account.
func (q *quota) usage() Usage {
	if q == nil {
		return Usage{}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return Usage{Used: q.used, Limit: q.limit}
}

// take returns how many requests found no room since it was last asked.
func (q *quota) take() int64 {
	if q == nil {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.denied
	q.denied = 0
	return n
}

// OfflineUsage is what a workspace that is not mounted keeps on the disk, from its
// layers alone: what its quota would count.
func OfflineUsage(layerDir string, layers []string) (int64, error) {
	t, err := newTree("", 0, 0, 0)
	if err != nil {
		return 0, err
	}
	opened, err := openStack(layerDir, layers, t, false)
	if err != nil {
		return 0, err
	}
	defer func() {
		for _, l := range opened {
			l.Close()
		}
	}()
	var used int64
	if len(opened) == len(layers) && len(layers) > 0 {
		used = opened[len(opened)-1].Size()
	}
	err = t.eachData(opened, func(_ *node, bytes int64) { used += bytes })
	return used, err
}

// statfs makes what the file system below says true for the workspace: what is
// used is what counts, and no more is free than either of them gives.
func (q *quota) statfs(s *syscall.Statfs_t) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	size := uint64(max(s.Frsize, 1))
	room := uint64(q.room()) / size
	used := (uint64(max(q.used, 0)) + size - 1) / size
	s.Bfree, s.Bavail = min(s.Bfree, room), min(s.Bavail, room)
	s.Blocks = used + s.Bfree
}
