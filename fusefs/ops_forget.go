package fusefs

import (
	"slices"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// forgotten says how many lookups of a node the kernel gives back. It is an
// entry of FUSE_BATCH_FORGET.
type forgotten struct{ ino, lookups uint64 }

// forgetBatch is how many are taken with the lock held.
const forgetBatch = 64

// Forget implements fuse.RawFileSystem.
func (w *workspace) Forget(ino, count uint64) { w.forgetAll([]forgotten{{ino, count}}) }

// forgetAll takes lookups back and removes what has no name and is not in use
// any more.
func (w *workspace) forgetAll(all []forgotten) {
	var gone [forgetBatch]leftover
	for part := range slices.Chunk(all, forgetBatch) {
		n := 0
		w.mu.Lock()
		for _, f := range part {
			if node := w.t.nodes[f.ino]; node != nil && node.lookups.Add(-int64(f.lookups)) <= 0 && node.nlink == 0 {
				gone[n] = w.release(node)
				n++
			}
		}
		w.mu.Unlock()
		for _, l := range gone[:n] {
			w.discard(l)
		}
	}
}

const opcodeBatchForget = 42

// batchForget carries out a message if it is a FUSE_BATCH_FORGET.
func (w *workspace) batchForget(msg []byte) bool {
	type batch struct {
		fuse.InHeader
		count, _ uint32
	}
	const size = int(unsafe.Sizeof(batch{}))
	if len(msg) < size || header(msg).Opcode != opcodeBatchForget {
		return false
	}
	count := int((*batch)(unsafe.Pointer(&msg[0])).count)
	entries := msg[size:]
	count = min(count, len(entries)/int(unsafe.Sizeof(forgotten{})))
	if count > 0 {
		w.forgetAll(unsafe.Slice((*forgotten)(unsafe.Pointer(&entries[0])), count))
	}
	return true
}
