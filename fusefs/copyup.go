package fusefs

import (
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/fusefs/layer"
)

// modify runs fn on the data file of ino in the top layer, after copying the
// bytes up when they are somewhere else. keep is how many bytes of the old
// content matter, -1 for all. With kill the bits that lend privilege go.
//
// The log says that the content changes before it does. Dirty and Freeze wait
// for fn, but not for a copy.
func (w *workspace) modify(ino uint64, keep int64, kill bool, fn func(*fdRef) error) fuse.Status {
	return w.modifyWith(ino, keep, kill, piece{}, fn)
}

// modifyWith is modify for what writes p. When the bytes are copied up from
// memory p goes with them, and fn is not run.
func (w *workspace) modifyWith(ino uint64, keep int64, kill bool, p piece, fn func(*fdRef) error) fuse.Status {
	if w.spec.ReadOnly {
		return fuse.EROFS
	}
	if keep < 0 {
		keep = math.MaxInt64
	}
	ino = w.inoOf(ino)
	for {
		done, st := w.tryModify(ino, kill, fn)
		if done || !st.Ok() {
			return st
		}
		if written, st := w.prepare(ino, keep, kill, p); written || !st.Ok() {
			return st
		}
	}
}

// tryModify runs fn if everything is prepared for it.
func (w *workspace) tryModify(ino uint64, kill bool, fn func(*fdRef) error) (bool, fuse.Status) {
	w.gate.RLock()
	defer w.gate.RUnlock()
	sh := w.shard(ino)
	sh.RLock()
	defer sh.RUnlock()
	w.mu.RLock()
	n := w.t.nodes[ino]
	if n == nil || n.kind() != syscall.S_IFREG {
		w.mu.RUnlock()
		return false, fuse.EBADF
	}
	ready := w.hasData(n) && w.said(n) && !w.lends(n, kill)
	w.mu.RUnlock()
	if !ready {
		return false, fuse.OK
	}
	r, st := w.writable(ino)
	if !st.Ok() {
		return false, st
	}
	defer w.fds.release(r)
	return true, status(fn(r))
}

// hasData reports whether n has a data file in the top layer. mu is held.
func (w *workspace) hasData(n *node) bool { return n.data == w.t.layer && n.flags&unwritten == 0 }

// said reports whether the log says that the bytes of n change, and so does
// its time. mu is held.
func (w *workspace) said(n *node) bool {
	return (n.nlink == 0 || n.dirtySeq > w.barrier) && n.flags&mtimeSet == 0
}

// lends reports whether n has bits of privilege that a change must clear.
func (w *workspace) lends(n *node, kill bool) bool {
	return n.flags&hasCap != 0 || kill && killed(n) != n.mode
}

// prepare makes tryModify succeed next time, if nothing comes in between, and
// reports whether it has written p already.
func (w *workspace) prepare(ino uint64, keep int64, kill bool, p piece) (written bool, st fuse.Status) {
	sh := w.shard(ino)
	sh.Lock()
	defer sh.Unlock()
	w.mu.RLock()
	n := w.t.nodes[ino]
	if n == nil {
		w.mu.RUnlock()
		return false, fuse.EBADF
	}
	up := w.hasData(n)
	if w.lends(n, kill) {
		p = piece{} // what lends goes first
	}
	w.mu.RUnlock()
	if !up {
		if written, st = w.copyUp(n, keep, p); !st.Ok() {
			return false, st
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var recs []layer.Record
	if w.hasData(n) && !w.said(n) {
		recs = append(recs, layer.Record{Kind: layer.KindDirty, Time: now(), Ino: ino})
	}
	if n.flags&hasCap != 0 {
		recs = append(recs, layer.Record{Kind: layer.KindRemoveXattr, Time: now(), Ino: ino, Name: capXattr})
	}
	if kill && killed(n) != n.mode {
		recs = append(recs, layer.Record{
			Kind: layer.KindSetattr, Time: now(), Ino: ino, Mask: layer.SetMode, Mode: killed(n) & 0o7777,
		})
	}
	if len(recs) == 0 {
		return written, fuse.OK
	}
	w.wrote(ino)
	return written, w.change(n, recs...)
}

// copyUp gives n a data file in the top layer with the first keep bytes of
// its content and, if it can be done at once, p, which written tells. The shard
// of n is held for writing.
func (w *workspace) copyUp(n *node, keep int64, p piece) (written bool, st fuse.Status) {
	var c upContent
	w.mu.RLock()
	fresh, flags := n.flags&unwritten != 0, unix.O_TRUNC
	w.mu.RUnlock()
	if keep > 0 && !fresh {
		if c, st = w.upContent(n.ino); !st.Ok() {
			return false, st
		}
	}
	defer c.release(w)
	w.mu.RLock()
	index, path := w.t.layer, w.top().DataPath(n.ino)
	if fresh && n.flags&spare != 0 {
		flags = 0 // it is empty, and ext4 takes that for a file being replaced
	}
	var attr fuse.Attr
	st = w.attr(n, &attr)
	w.mu.RUnlock()
	if !st.Ok() {
		return false, st
	}
	size := min(keep, int64(attr.Size))
	held, st := w.holdCopy(n, size)
	if !st.Ok() {
		return false, st
	}
	if w.quota == nil && !fresh {
		written = c.add(size, p)
	}
	f, err := createData(path, flags)
	if err != nil {
		w.quota.unhold(held)
		return false, status(err)
	}
	// A new file gets its time from what is about to be written. It is not cut
	// to its size either: ext4 takes that for a file being replaced, and writes
	// it to the disk as soon as it is closed.
	if !fresh {
		// What is cut off already has the time of that, should nothing come after it.
		if err = c.fill(f, size); err == nil && !written && size == int64(attr.Size) {
			err = f.setMtime(int64(attr.Mtime)*1e9 + int64(attr.Mtimensec))
		}
	}
	st = status(err)
	if st.Ok() {
		st = w.cameUp(n, index)
	}
	if !st.Ok() || !w.isUp(n, index) {
		f.close()
		os.Remove(path)
		w.quota.unhold(held)
		return false, st
	}
	if w.quota != nil {
		w.quota.settle(held, n.ino, f.fd)
	}
	w.fds.release(w.fds.put(fdKey{w, n.ino, index}, f))
	return written, fuse.OK
}

func (w *workspace) isUp(n *node, index int16) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return n.data == index && n.flags&unwritten == 0
}

// createData opens a data file for reading and writing, made when it is not
// there.
func createData(path string, flags int) (backingFile, error) {
	flags |= unix.O_RDWR | unix.O_CREAT
	f, err := openBacking(path, flags, 0o600)
	if errors.Is(err, unix.ENOENT) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return f, err
		}
		f, err = openBacking(path, flags, 0o600)
	}
	return f, err
}

// cameUp records that the bytes of n are in layer index, unless that is not
// the top any more.
func (w *workspace) cameUp(n *node, index int16) fuse.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t.layer != index {
		return fuse.OK // frozen meanwhile: the caller tries again
	}
	if n.data == index { // it was unwritten, and the log knows the file already
		n.flags &^= unwritten | spare
		w.wrote(n.ino)
		return fuse.OK
	}
	old := n.data
	st := w.change(n, layer.Record{Kind: layer.KindDataUp, Time: now(), Ino: n.ino})
	if st.Ok() {
		n.flags &^= unwritten | spare
		w.fds.drop(fdKey{w, n.ino, old})
		w.wrote(n.ino)
	}
	return st
}

func (w *workspace) wrote(ino uint64) {
	w.syncMu.Lock()
	w.unsynced[ino] = struct{}{}
	w.syncMu.Unlock()
}

// fill makes dst a copy of the first size bytes of src: by sharing blocks
// where the file system can, else extent by extent, so that holes stay holes.
func fill(dst backingFile, src *fdRef, size int64) error {
	if size == 0 {
		return nil
	}
	if src == nil {
		return dst.truncate(size)
	}
	if err := unix.IoctlFileClone(dst.fd, src.fd); err == nil {
		return dst.truncate(size)
	}
	if err := dst.truncate(size); err != nil {
		return err
	}
	for off := int64(0); off < size; {
		start, end, err := extent(src, off, size)
		if err != nil {
			return err
		}
		if err := copyRange(dst, src, start, end); err != nil {
			return err
		}
		off = end
	}
	return nil
}

// extent returns the next range of data at or after off, within size.
func extent(f *fdRef, off, size int64) (start, end int64, err error) {
	start, err = unix.Seek(f.fd, off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return size, size, nil
	}
	if err != nil {
		return off, size, nil // not a file system that knows holes
	}
	end, err = unix.Seek(f.fd, start, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, err
	}
	return min(start, size), min(end, size), nil
}

func copyRange(dst backingFile, src *fdRef, off, end int64) error {
	for off < end {
		from, to := off, off
		n, err := unix.CopyFileRange(src.fd, &from, dst.fd, &to, int(end-off), 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
			_, err := io.Copy(io.NewOffsetWriter(dst, off), io.NewSectionReader(src, off, end-off))
			return err
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		off += int64(max(n, 0))
	}
	return nil
}

// holdCopy promises room for a copy of the first size bytes of n, less what
// counts for n already and does so no more once it is copied up.
func (w *workspace) holdCopy(n *node, size int64) (held int64, st fuse.Status) {
	q := w.quota
	if q == nil || size == 0 {
		return 0, fuse.OK
	}
	held = q.blocks(0, size)
	q.mu.Lock()
	counted := q.files[n.ino]
	q.mu.Unlock()
	if counted > 0 {
		// A data file, which may have holes: they stay holes.
		held = max(min(held, counted)-counted, 0)
	}
	for !q.hold(held) {
		if !q.await() {
			return 0, status(q.deny())
		}
	}
	return held, fuse.OK
}
