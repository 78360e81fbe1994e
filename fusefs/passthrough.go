package fusefs

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/fusefs/layer"
)

// In a mount with the profile ProfileIO the kernel tells of each open and
// close, and from then on reads and writes the backing file itself: at its full
// speed, and with the pages that every other mount which shows the file uses.
//
// The kernel lets an inode have one backing file as long as any descriptor uses
// it. Where another one is needed meanwhile (the file was copied up, or its layer
// frozen) the inode gets a second number in the kernel, which later opens use;
// who has the old one open goes on reading the old file, as on overlayfs.
//
// Nor do writes come by the server. So a file is dirty as long as it may be
// written to, and nothing can be frozen that long. A mapping outlives its
// descriptor, and nobody tells of its end: the file system below is asked.

// The device's requests of <linux/fuse.h>.
const (
	iocBackingOpen  = 0x4010e501
	iocBackingClose = 0x4004e502
)

// opens are the open files of a mount with ProfileIO.
type opens struct {
	mu     sync.Mutex
	inodes map[uint64]*openInode // guarded by mu
	files  map[uint64]openFile   // guarded by mu, by handle
	mapped map[uint64]uint64     // guarded by mu: closed, and perhaps mapped for writing; the handle closed last
	last   uint64                // guarded by mu: the newest handle
	failed bool                  // guarded by mu: told that the kernel refuses
	asks   bool                  // the file system below can tell who writes
}

// openInode is an inode that is open, by its number in the kernel. Descriptors
// with direct input and output use none of this and are not counted.
type openInode struct {
	backing int32 // its number in the kernel; 0 for none
	layer   int16 // where the backing file is
	through int   // descriptors that use it
	writers int   // those of them that write
	cached  int   // descriptors whose pages the kernel keeps for us
}

type openMode uint8

const (
	openDirect openMode = iota
	openCached
	openThrough
)

type openFile struct {
	ino    uint64
	mode   openMode
	writes bool
}

func newOpens() *opens {
	return &opens{inodes: map[uint64]*openInode{}, files: map[uint64]openFile{}, mapped: map[uint64]uint64{}}
}

// io reports whether the mount has ProfileIO.
func (w *workspace) io() bool { return w.spec.Profile == ProfileIO }

// Open keeps no state without ProfileIO: the answer ENOSYS makes the kernel
// stop asking, and cache.
func (w *workspace) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if !w.io() {
		return fuse.ENOSYS
	}
	if in.NodeId == dotGitIno {
		out.OpenFlags = fuse.FOPEN_KEEP_CACHE
		return fuse.OK
	}
	if in.Flags&syscall.O_ACCMODE == syscall.O_RDONLY && in.Flags&syscall.O_TRUNC == 0 {
		return w.openToRead(in.NodeId, out)
	}
	keep := int64(-1)
	if in.Flags&syscall.O_TRUNC != 0 {
		keep = 0
	}
	var again fuse.Status
	st := w.modify(in.NodeId, keep, keep == 0 && in.Mode&fuse.OPEN_KILL_SUIDGID != 0, func(f *fdRef) error {
		if keep == 0 {
			if err := f.truncate(0); err != nil {
				return err
			}
		}
		again = w.opened(in.NodeId, f, true, out)
		return nil
	})
	if !st.Ok() {
		return st
	}
	return again
}

func (w *workspace) openToRead(nodeid uint64, out *fuse.OpenOut) fuse.Status {
	ino := w.inoOf(nodeid)
	sh := w.shard(ino)
	sh.RLock()
	defer sh.RUnlock()
	r, st := w.backing(ino)
	if !st.Ok() {
		return st
	}
	if r != nil {
		defer w.fds.release(r)
	}
	return w.opened(nodeid, r, false, out)
}

// opened decides how a descriptor of the inode that the kernel calls nodeid
// reads and writes, and counts it. f is the backing file; nil when the file is
// empty and has none yet. The answer ESTALE makes the kernel look the name up
// and come again. The shard of the inode is held.
func (w *workspace) opened(nodeid uint64, f *fdRef, writes bool, out *fuse.OpenOut) fuse.Status {
	plain := w.passable(nodeid, f, writes)
	if w.opens.count(w, nodeid, f, writes, plain, out) {
		return fuse.OK
	}
	w.renumber(nodeid)
	return fuse.Status(syscall.ESTALE)
}

// count does what opened says, or reports that the inode needs another number.
func (o *opens) count(w *workspace, nodeid uint64, f *fdRef, writes, plain bool, out *fuse.OpenOut) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.inodes[nodeid]
	if n == nil {
		n = &openInode{}
	}
	mode := openCached
	switch {
	case n.through > 0 && f != nil && (n.layer != f.key.layer || !plain):
		return false
	case n.cached > 0:
	case f == nil:
		mode = openDirect
	case plain && (n.through > 0 || w.register(n, f)):
		mode = openThrough
	}
	switch mode {
	case openDirect:
		out.OpenFlags = fuse.FOPEN_DIRECT_IO
	case openCached:
		n.cached++
	case openThrough:
		n.through++
		if writes {
			n.writers++
		}
		out.OpenFlags, out.BackingID = fuse.FOPEN_PASSTHROUGH, n.backing
	}
	if mode != openDirect {
		o.inodes[nodeid] = n
	}
	o.last++
	o.files[o.last] = openFile{nodeid, mode, writes}
	out.Fh = o.last
	return true
}

// passable reports whether f may be left to the kernel: whoever writes to a
// file with bits of privilege has to lose them.
func (w *workspace) passable(nodeid uint64, f *fdRef, writes bool) bool {
	if f == nil || !writes {
		return f != nil
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	n := w.t.nodes[nodeid]
	return n != nil && killed(n) == n.mode && n.flags&hasCap == 0 && w.opens.asks && w.spec.Quota == 0
}

// renumber gives an inode another number in the kernel, unless nodeid is not
// the last one it got. Nobody but the kernel uses it, and no log.
func (w *workspace) renumber(nodeid uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.t.nodes[nodeid]
	if n == nil || n.kernelID() != nodeid {
		return
	}
	n.more().nodeid = w.t.nextIno
	w.t.nodes[w.t.nextIno] = n
	w.t.nextIno++
}

// kernelID is what the kernel calls n when it looks it up now.
func (n *node) kernelID() uint64 {
	if n.ext != nil && n.ext.nodeid != 0 {
		return n.ext.nodeid
	}
	return n.ino
}

// inoOf is the inode number of what the kernel calls nodeid.
func (w *workspace) inoOf(nodeid uint64) uint64 {
	if w.opens == nil {
		return nodeid
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	if n := w.t.nodes[nodeid]; n != nil {
		return n.ino
	}
	return nodeid
}

// register makes the kernel know f as the backing file of n. It gets a
// descriptor that cannot write, lest that one count as a writer. opens.mu is
// held.
func (w *workspace) register(n *openInode, f *fdRef) bool {
	ro, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		w.log.Printf("%s: a descriptor to read with: %v", w.spec.ID, err)
		return false
	}
	defer unix.Close(ro)
	m := fuse.BackingMap{Fd: int32(ro)}
	id, err := w.dev.ioctl(iocBackingOpen, unsafe.Pointer(&m))
	if err != nil {
		if !w.opens.failed {
			w.opens.failed = true
			w.log.Printf("%s: no passthrough: %v", w.spec.ID, err)
		}
		return false
	}
	n.backing, n.layer = id, f.key.layer
	return true
}

// Release forgets a descriptor.
func (w *workspace) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	o := w.opens
	if o == nil {
		return
	}
	if id, last := o.release(w, in.Fh); last {
		w.forgetUnmapped(id)
	}
}

// release forgets a handle. last tells that it was the last one that writes to
// the inode id.
func (o *opens) release(w *workspace, fh uint64) (id uint64, last bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f, ok := o.files[fh]
	if !ok {
		return 0, false
	}
	delete(o.files, fh)
	n := o.inodes[f.ino]
	switch f.mode {
	case openDirect:
		return 0, false
	case openCached:
		n.cached--
	case openThrough:
		n.through--
		if f.writes {
			n.writers--
		}
		if n.through == 0 {
			id := n.backing
			if _, err := w.dev.ioctl(iocBackingClose, unsafe.Pointer(&id)); err != nil && !errors.Is(err, unix.EBADF) {
				w.log.Printf("%s: backing file %d: %v", w.spec.ID, id, err)
			}
			n.backing = 0
		}
	}
	if n.through == 0 && n.cached == 0 {
		delete(o.inodes, f.ino)
	}
	if f.mode != openThrough || !f.writes || n.writers > 0 {
		return 0, false
	}
	o.mapped[f.ino] = fh
	return f.ino, true
}

// forgetUnmapped drops an inode from those that may be mapped for writing when
// nobody has its data file open for writing.
func (w *workspace) forgetUnmapped(nodeid uint64) {
	o := w.opens
	o.mu.Lock()
	closed := o.mapped[nodeid]
	o.mu.Unlock()
	w.mu.RLock()
	n := w.t.nodes[nodeid]
	var key fdKey
	var path string
	if n != nil && n.data != noData {
		key, path = fdKey{w, n.ino, n.data}, w.data(n)
	}
	w.mu.RUnlock()
	if path != "" {
		w.fds.drop(key) // ours can write
		if open, err := openForWriting(path); open && err == nil {
			return
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mapped[nodeid] == closed {
		delete(o.mapped, nodeid)
	}
}

// openForWriting asks the file system whether anybody could change the file at
// path: to who only reads it grants a lease.
func openForWriting(path string) (bool, error) {
	f, err := openBacking(path, unix.O_RDONLY, 0)
	if err != nil {
		return false, err
	}
	defer f.close()
	_, err = unix.FcntlInt(uintptr(f.fd), unix.F_SETLEASE, unix.F_RDLCK)
	if errors.Is(err, unix.EAGAIN) {
		return true, nil
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(f.fd), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return false, err
}

// writers returns what the kernel calls the inodes that something may write to
// without the server. Neither opens.mu nor workspace.mu is held.
func (w *workspace) writers() []uint64 {
	o := w.opens
	if o == nil {
		return nil
	}
	ids, mapped := o.writing()
	for _, id := range mapped {
		w.forgetUnmapped(id)
	}
	return append(ids, mapped...) // what has ended since may have been a change
}

func (o *opens) writing() (open, mapped []uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, n := range o.inodes {
		if n.writers > 0 {
			open = append(open, id)
		}
	}
	for id := range o.mapped {
		mapped = append(mapped, id)
	}
	return open, mapped
}

// written reports whether something writes to an inode without the server.
func (o *opens) written(n *node) bool {
	if o == nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	_, mapped := o.mapped[n.kernelID()]
	in := o.inodes[n.kernelID()]
	return mapped || in != nil && in.writers > 0
}

// stillWritten makes files that are written without the server dirty after the
// barrier that was just set. ids are from writers, called before. mu is held
// for writing.
func (w *workspace) stillWritten(ids []uint64) error {
	for _, id := range ids {
		n := w.t.nodes[id]
		if n == nil || n.nlink == 0 || n.data != w.t.layer {
			continue
		}
		w.wrote(n.ino)
		if st := w.change(n, layer.Record{Kind: layer.KindDirty, Time: now(), Ino: n.ino}); !st.Ok() {
			return syscall.Errno(st)
		}
	}
	return nil
}

// freezable reports ErrOpenForWriting while something may write without the
// server. With gate held for writing it stays true that nothing can.
func (w *workspace) freezable() error {
	w.writers() // forgets what ended
	inos := w.writers()
	var named string
	w.mu.RLock()
	defer w.mu.RUnlock()
	for _, ino := range inos {
		if n := w.t.nodes[ino]; n != nil {
			named = w.pathOf(n)
			break
		}
	}
	switch {
	case len(inos) == 0:
		return nil
	case len(inos) == 1:
		return fmt.Errorf("%w: '%s'", ErrOpenForWriting, named)
	}
	return fmt.Errorf("%w: '%s' and %d more", ErrOpenForWriting, named, len(inos)-1)
}

// pathOf returns a path of n, for people.
func (w *workspace) pathOf(n *node) string {
	path := n.name
	for p := n.parent; p != nil && p.parent != nil; p = p.parent {
		path = p.name + "/" + path
	}
	return path
}
