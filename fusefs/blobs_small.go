package fusefs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// A small blob is answered from memory: the kernel keeps what it read, and most
// are not asked for again, so that a file would cost more than it brings. It has
// one when it was hydrated, or when something needs a descriptor.

// small tells the blobs that are kept in memory.
func small(size int64) bool { return size > 0 && size <= memoryBlob }

// scratchRoom has room for a small blob and for as much again.
type scratchRoom [2 * memoryBlob]byte

// rooms are scratchRooms to use for a moment.
type rooms struct{ pool sync.Pool }

func (r *rooms) get() *scratchRoom {
	if room, ok := r.pool.Get().(*scratchRoom); ok {
		return room
	}
	return new(scratchRoom)
}

func (r *rooms) put(room *scratchRoom) { r.pool.Put(room) }

// errHasFile means that a blob is, or may be, in the cache as a file.
var errHasFile = errors.New("has a file")

// readSmall copies what the small blob id has from off on to buf. fetched tells
// that it came from git. The error is errHasFile when it is to be had by open.
func (b *blobStore) readSmall(ctx context.Context, id string, size int64, off uint64, buf []byte) (n int, fetched bool, err error) {
	key := keyOf(id)
	const tries = 8 // against what displaces it before we look, and fetches that others gave up
	for range tries {
		if n, ok := b.memory.read(key, off, buf); ok {
			return n, false, nil
		}
		if b.isGood(id) || exists(b.path(id)) {
			return 0, false, errHasFile
		}
		f, mine := b.claim(id)
		if !mine {
			if <-f.done; f.err != nil && !errors.Is(f.err, errGivenUp) {
				return 0, false, f.err
			}
			continue
		}
		n, err := b.bringSmall(ctx, id, size, off, buf)
		b.arrived(id, f, err)
		return n, true, err
	}
	return 0, false, errHasFile
}

// bringSmall is readSmall for a blob that git has to be asked for.
func (b *blobStore) bringSmall(ctx context.Context, id string, size int64, off uint64, buf []byte) (n int, err error) {
	// A fetch is used by everybody who waits for it: it does not end with the
	// request that happened to start it.
	err = b.objs.Blobs(context.WithoutCancel(ctx), []string{id}, func(_ int, got int64, content io.Reader, err error) error {
		if err == nil && got != size {
			err = errBlobSize(id, got, size)
		}
		if err != nil {
			return err
		}
		return b.take(id, size, content, func(data []byte) { n = copy(buf, data[min(off, uint64(len(data))):]) })
	})
	return n, err
}

// take puts a small blob into memory; look, if given, sees its content.
func (b *blobStore) take(id string, size int64, content io.Reader, look func(data []byte)) error {
	room := b.rooms.get()
	defer b.rooms.put(room)
	data := room[:size]
	if _, err := io.ReadFull(content, data); err != nil {
		return err
	}
	if got := hashBlob(id, data); got != id {
		return badObject(id, got)
	}
	b.memory.put(keyOf(id), data)
	if look != nil {
		look(data)
	}
	return nil
}

func errBlobSize(id string, got, want int64) error {
	return fmt.Errorf("blob %s has %d bytes instead of %d", id, got, want)
}

// arrived ends a fetch into memory.
func (b *blobStore) arrived(id string, f *fetch, err error) {
	b.mu.Lock()
	delete(b.fetches, id)
	b.mu.Unlock()
	f.err = err
	close(f.done)
}

// fileFromMemory makes the file of a blob that is in memory.
func (b *blobStore) fileFromMemory(id string, size int64) bool {
	if !small(size) {
		return false
	}
	room := b.rooms.get()
	defer b.rooms.put(room)
	n, ok := b.memory.read(keyOf(id), 0, room[:])
	if !ok || int64(n) != size {
		return false
	}
	f, volatile, err := b.put(id, size, bytes.NewReader(room[:n]))
	if err != nil {
		return false
	}
	f.Close()
	return !volatile
}

// isHere reports whether a blob needs no fetch and no look at the disk.
func (b *blobStore) isHere(id string) bool { return b.isGood(id) || b.memory.has(keyOf(id)) }

// smallNode returns the blob of n when it is read from memory. mu is held.
func (w *workspace) smallNode(n *node) (key blobKey, ok bool) {
	if !n.plainLower() || !small(n.size) {
		return key, false
	}
	return blobKey(n.oid[:len(key)]), true
}

// readLower answers a read of ino when it is a file of the tree that is to be
// answered from memory. The shard of ino is held.
func (w *workspace) readLower(ino, off uint64, buf []byte) (n int, st fuse.Status, done bool) {
	w.mu.RLock()
	node := w.t.nodes[ino]
	if node == nil {
		w.mu.RUnlock()
		return 0, fuse.OK, false
	}
	key, ok := w.smallNode(node)
	if !ok || w.fds.has(fdKey{w, ino, noData}) {
		w.mu.RUnlock()
		return 0, fuse.OK, false
	}
	if n, ok := w.blobs.memory.read(key, off, buf); ok {
		p := node.parent
		unasked := p != nil && p.isDir() && p.dir.ahead
		w.mu.RUnlock()
		if unasked {
			w.asked(p)
		}
		return n, fuse.OK, true
	}
	id, size := w.t.oidString(&node.oid), node.size
	w.mu.RUnlock()
	n, fetched, err := w.blobs.readSmall(context.Background(), id, size, off, buf)
	switch {
	case errors.Is(err, errHasFile):
		return 0, fuse.OK, false
	case err != nil:
		w.log.Printf("%s: inode %x: %v", w.spec.ID, ino, err)
		return 0, status(err), true
	case fetched:
		w.readAhead(ino)
	}
	return n, fuse.OK, true
}
