package fusefs

import (
	"errors"
	"io"
	"math"
	"os"
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
	if w.spec.ReadOnly {
		return fuse.EROFS
	}
	if keep < 0 {
		keep = math.MaxInt64
	}
	for {
		done, st := w.tryModify(ino, kill, fn)
		if done || !st.Ok() {
			return st
		}
		if st := w.prepare(ino, keep, kill); !st.Ok() {
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
	ready := n.data == w.t.layer && w.said(n) && !w.lends(n, kill)
	w.mu.RUnlock()
	if !ready {
		return false, fuse.OK
	}
	r, st := w.backing(ino)
	if !st.Ok() {
		return false, st
	}
	if r == nil {
		return false, fuse.EIO
	}
	defer w.fds.release(r)
	return true, status(fn(r))
}

// said reports whether the log says that the bytes of n change. mu is held.
func (w *workspace) said(n *node) bool { return n.nlink == 0 || n.dirtySeq > w.barrier }

// lends reports whether n has bits of privilege that a change must clear.
func (w *workspace) lends(n *node, kill bool) bool {
	return n.flags&hasCap != 0 || kill && killed(n) != n.mode
}

// prepare makes tryModify succeed next time, if nothing comes in between.
func (w *workspace) prepare(ino uint64, keep int64, kill bool) fuse.Status {
	sh := w.shard(ino)
	sh.Lock()
	defer sh.Unlock()
	w.mu.RLock()
	n, top := w.t.nodes[ino], w.t.layer
	if n == nil {
		w.mu.RUnlock()
		return fuse.EBADF
	}
	up := n.data == top
	w.mu.RUnlock()
	if !up {
		if st := w.copyUp(n, keep); !st.Ok() {
			return st
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var recs []layer.Record
	if n.data == w.t.layer && !w.said(n) {
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
		return fuse.OK
	}
	w.wrote(ino)
	return w.change(n, recs...)
}

// copyUp gives n a data file in the top layer with the first keep bytes of
// its content. The shard of n is held for writing.
func (w *workspace) copyUp(n *node, keep int64) fuse.Status {
	src, st := w.backing(n.ino)
	if !st.Ok() {
		return st
	}
	if src != nil {
		defer w.fds.release(src)
	}
	w.mu.RLock()
	top, index := w.top(), w.t.layer
	var attr fuse.Attr
	st = w.attr(n, &attr)
	w.mu.RUnlock()
	if !st.Ok() {
		return st
	}
	f, err := top.CreateData(n.ino)
	if err == nil {
		err = fill(f, src, min(keep, int64(attr.Size)))
	}
	if err == nil {
		ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: int64(attr.Mtime), Nsec: int64(attr.Mtimensec)}}
		err = unix.UtimesNanoAt(unix.AT_FDCWD, f.Name(), ts, 0)
	}
	st = status(err)
	if st.Ok() {
		st = w.cameUp(n, index)
	}
	if f == nil {
		return st
	}
	if !st.Ok() || !w.isUp(n, index) {
		f.Close()
		os.Remove(f.Name())
		return st
	}
	w.fds.release(w.fds.put(fdKey{w, n.ino, index}, f))
	return fuse.OK
}

func (w *workspace) isUp(n *node, index int16) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return n.data == index
}

// cameUp records that the bytes of n are in layer index, unless that is not
// the top any more.
func (w *workspace) cameUp(n *node, index int16) fuse.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t.layer != index {
		return fuse.OK // frozen meanwhile: the caller tries again
	}
	old := n.data
	st := w.change(n, layer.Record{Kind: layer.KindDataUp, Time: now(), Ino: n.ino})
	if st.Ok() {
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
func fill(dst *os.File, src *fdRef, size int64) error {
	if src == nil || size == 0 {
		return dst.Truncate(size)
	}
	if err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())); err == nil {
		return dst.Truncate(size)
	}
	if err := dst.Truncate(size); err != nil {
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
	start, err = unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return size, size, nil
	}
	if err != nil {
		return off, size, nil // not a file system that knows holes
	}
	end, err = unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, err
	}
	return min(start, size), min(end, size), nil
}

func copyRange(dst *os.File, src *fdRef, off, end int64) error {
	for off < end {
		from, to := off, off
		n, err := unix.CopyFileRange(int(src.Fd()), &from, int(dst.Fd()), &to, int(end-off), 0)
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
