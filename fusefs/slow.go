package fusefs

import (
	"encoding/binary"
	"os"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Operations of <linux/fuse.h> that may be slow.
const (
	opcodeLookup        = 1
	opcodeGetattr       = 3
	opcodeSetattr       = 4
	opcodeReadlink      = 5
	opcodeSymlink       = 6
	opcodeMknod         = 8
	opcodeMkdir         = 9
	opcodeUnlink        = 10
	opcodeRmdir         = 11
	opcodeRename        = 12
	opcodeLink          = 13
	opcodeOpen          = 14
	opcodeRead          = 15
	opcodeWrite         = 16
	opcodeFsync         = 20
	opcodeReaddir       = 28
	opcodeFsyncdir      = 30
	opcodeFallocate     = 43
	opcodeReaddirplus   = 44
	opcodeRename2       = 45
	opcodeCopyFileRange = 47
	opcodeSyncfs        = 50
	opcodeTmpfile       = 51
)

// quickCopy is how many bytes are copied between two files while others wait.
const quickCopy = 128 << 10

// slow reports whether a request has to wait for git or the disk, or copies a
// file, so that it must not keep others waiting that come from the same
// processor. It may be wrong: that costs time only. arg is what belongs to the
// operation.
func (w *workspace) slow(h *fuse.InHeader, arg []byte) bool {
	switch h.Opcode {
	case opcodeFsync, opcodeFsyncdir, opcodeSyncfs, opcodeFallocate:
		return true
	case opcodeCopyFileRange:
		to, length := binary.NativeEndian.Uint64(arg[16:]), binary.NativeEndian.Uint64(arg[40:])
		return length > quickCopy || w.remote(h.NodeId) || w.elsewhere(to)
	case opcodeLookup:
		return w.slowLookup(h.NodeId, arg) || h.NodeId == rootIno && w.held()
	case opcodeGetattr:
		return w.uncounted(h.NodeId) || w.isUnsettled(h.NodeId)
	case opcodeLink:
		return w.unread(h.NodeId) || w.isUnsettled(binary.NativeEndian.Uint64(arg))
	case opcodeSymlink, opcodeMknod, opcodeMkdir, opcodeUnlink, opcodeRmdir, opcodeReaddir, opcodeReaddirplus, opcodeTmpfile:
		return w.unread(h.NodeId)
	case opcodeRename, opcodeRename2:
		return w.unread(h.NodeId) || w.unread(binary.NativeEndian.Uint64(arg))
	case opcodeOpen:
		writes := binary.NativeEndian.Uint32(arg)&syscall.O_ACCMODE != syscall.O_RDONLY
		return w.io() && (w.remote(h.NodeId) || writes && w.elsewhere(h.NodeId))
	case opcodeReadlink, opcodeRead:
		return w.remote(h.NodeId)
	case opcodeWrite:
		return w.elsewhere(h.NodeId) || w.quota.tight()
	case opcodeSetattr:
		return binary.NativeEndian.Uint32(arg)&fuse.FATTR_SIZE != 0 && w.elsewhere(h.NodeId) || w.isUnsettled(h.NodeId)
	}
	return false
}

// unread reports whether ino is a directory whose tree was not read yet.
func (w *workspace) unread(ino uint64) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	n := w.t.nodes[ino]
	return n != nil && n.isDir() && !n.dir.loaded
}

// remote reports whether the content of ino has to come from git or be checked.
func (w *workspace) remote(ino uint64) bool {
	w.mu.RLock()
	n := w.t.nodes[ino]
	if n == nil || n.flags&lower == 0 || n.data != noData || n.size == 0 && !n.converts() ||
		w.fds.has(fdKey{w, ino, noData}) {
		w.mu.RUnlock()
		return false
	}
	if n.converts() {
		path := w.convertedFile(n)
		w.mu.RUnlock()
		_, err := os.Lstat(path)
		return err != nil
	}
	id, size := w.t.oidString(&n.oid), n.size
	w.mu.RUnlock()
	return !w.blobs.isNear(id, size)
}

// elsewhere reports whether ino has content that is not in the top layer and
// takes a while to be copied there, as it has to be before it changes.
func (w *workspace) elsewhere(ino uint64) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	n := w.t.nodes[ino]
	switch {
	case n == nil || n.data == w.t.layer || n.flags&unwritten != 0:
		return false
	case n.data != noData:
		var st unix.Stat_t
		return w.stat1(n, &st) != nil || st.Size > quickCopy
	case n.flags&lower == 0 || n.size == 0 && !n.converts():
		return false
	case n.converts() || n.size > quickCopy:
		return true
	}
	return !w.fds.has(fdKey{w, ino, noData}) && !w.blobs.isNear(w.t.oidString(&n.oid), n.size)
}
