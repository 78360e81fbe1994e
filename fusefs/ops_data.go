package fusefs

import (
	"context"
	"errors"
	"io"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// backing returns the open file with the bytes of inode ino, or nil when it
// has none and so is empty. The shard of ino is held.
func (w *workspace) backing(ino uint64) (*fdRef, fuse.Status) {
	w.mu.RLock()
	n := w.t.nodes[ino]
	if n == nil || n.kind() != syscall.S_IFREG {
		w.mu.RUnlock()
		return nil, fuse.EBADF
	}
	key := fdKey{w, ino, n.data}
	size, isLower, converts := n.size, n.flags&lower != 0, n.converts()
	flags := unix.O_RDONLY
	if n.data == w.t.layer && !w.spec.ReadOnly {
		flags = unix.O_RDWR
	}
	if n.flags&unwritten != 0 || n.data == noData && !converts && (!isLower || size == 0) {
		w.mu.RUnlock()
		return nil, fuse.OK
	}
	if r := w.fds.get(key); r != nil {
		w.mu.RUnlock()
		return r, fuse.OK
	}
	var path, id string
	if n.data == noData {
		id = w.t.oidString(&n.oid)
	} else {
		path = w.data(n)
	}
	w.mu.RUnlock()

	var f backingFile
	var err error
	switch {
	case converts:
		f, err = w.openLower(context.Background(), ino)
	case path == "":
		f, err = w.openBlob(ino, id, size)
	default:
		f, err = openBacking(path, flags, 0)
	}
	if errors.Is(err, unix.ENOENT) && path != "" {
		return nil, fuse.OK // never written, or lost with the power before it was synced
	}
	if err != nil {
		w.log.Printf("%s: inode %x: %v", w.spec.ID, ino, err)
		return nil, status(err)
	}
	return w.fds.put(key, f), fuse.OK
}

// writable returns the data file of inode ino in the top layer, which is made
// when it is not there. The shard of ino and gate are held.
func (w *workspace) writable(ino uint64) (*fdRef, fuse.Status) {
	w.mu.RLock()
	key := fdKey{w, ino, w.t.layer}
	path := ""
	r := w.fds.get(key)
	if r == nil {
		path = w.top().DataPath(ino)
	}
	w.mu.RUnlock()
	if r != nil {
		return r, fuse.OK
	}
	f, err := createData(path, 0)
	if err != nil {
		return nil, status(err)
	}
	return w.fds.put(key, f), fuse.OK
}

func (w *workspace) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	n, st := w.read(in.NodeId, in.Offset, buf)
	if !st.Ok() {
		return nil, st
	}
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

func (w *workspace) read(ino, off uint64, buf []byte) (int, fuse.Status) {
	if ino == dotGitIno {
		off = min(off, uint64(len(w.spec.DotGit)))
		return copy(buf, w.spec.DotGit[off:]), fuse.OK
	}
	ino = w.inoOf(ino)
	sh := w.shard(ino)
	sh.RLock()
	defer sh.RUnlock()
	if n, st, done := w.readLower(ino, off, buf); done {
		return n, st
	}
	r, st := w.backing(ino)
	if !st.Ok() || r == nil {
		return 0, st
	}
	defer w.fds.release(r)
	n, err := r.ReadAt(buf, int64(off))
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, status(err)
	}
	return n, fuse.OK
}

func (w *workspace) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if in.NodeId == dotGitIno {
		return 0, fuse.EPERM
	}
	kill := in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0
	whole := in.WriteFlags&fuse.WRITE_CACHE != 0 // of a page: nobody looks at how much
	n := len(data)
	p := piece{int64(in.Offset), data}
	st := w.modifyWith(in.NodeId, -1, kill, p, func(f *fdRef) error {
		return w.quota.grow(in.NodeId, f, int64(in.Offset), int64(len(data)), whole, func(fits int64) error {
			var err error
			n, err = f.WriteAt(data[:fits], int64(in.Offset))
			if n > 0 {
				err = nil // a short write is not an error
			}
			return err
		})
	})
	return uint32(n), st
}

// truncate sets the size of a file.
func (w *workspace) truncate(ino uint64, size int64, kill bool) fuse.Status {
	return w.modify(ino, size, kill, func(f *fdRef) error {
		return w.quota.grow(ino, f, size, 0, true, func(int64) error { return f.truncate(size) })
	})
}

func (w *workspace) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	if in.NodeId == dotGitIno {
		return fuse.EPERM
	}
	allocates := int64(in.Length)
	if in.Mode&unix.FALLOC_FL_PUNCH_HOLE != 0 {
		allocates = 0
	}
	return w.modify(in.NodeId, -1, true, func(f *fdRef) error {
		return w.quota.grow(in.NodeId, f, int64(in.Offset), allocates, true, func(int64) error {
			return unix.Fallocate(f.fd, in.Mode, int64(in.Offset), int64(in.Length))
		})
	})
}

func (w *workspace) CopyFileRange(_ <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	if in.NodeIdOut == dotGitIno {
		return 0, fuse.EPERM
	}
	if in.NodeId == dotGitIno {
		return 0, fuse.Status(syscall.EXDEV) // read and write will do
	}
	if n, st, done := w.copySmall(in); done {
		return n, st
	}
	const most = 8 << 20 // a freeze waits for it
	var n int
	src, st := w.source(in.NodeId)
	if !st.Ok() || src == nil {
		return 0, st
	}
	defer w.fds.release(src)
	st = w.modify(in.NodeIdOut, -1, true, func(f *fdRef) error {
		from, to := int64(in.OffIn), int64(in.OffOut)
		length, err := left(src, from, int64(min(in.Len, most)))
		if err != nil {
			return err
		}
		return w.quota.grow(in.NodeIdOut, f, to, length, false, func(fits int64) error {
			n, err = unix.CopyFileRange(src.fd, &from, f.fd, &to, int(fits), 0)
			return err
		})
	})
	return uint32(n), st
}

// copySmall copies what is in memory, or comes there, without a file for it.
func (w *workspace) copySmall(in *fuse.CopyFileRangeIn) (copied uint32, st fuse.Status, done bool) {
	ino := w.inoOf(in.NodeId)
	w.mu.RLock()
	node := w.t.nodes[ino]
	isSmall := false
	if node != nil {
		_, isSmall = w.smallNode(node)
	}
	w.mu.RUnlock()
	if !isSmall {
		return 0, fuse.OK, false
	}
	room := w.blobs.rooms.get()
	defer w.blobs.rooms.put(room)
	data := room[:min(in.Len, memoryBlob)]
	sh := w.shard(ino)
	sh.RLock()
	n, st, done := w.readLower(ino, in.OffIn, data)
	sh.RUnlock()
	if !done || !st.Ok() || n == 0 {
		return 0, st, done
	}
	data = data[:n]
	p := piece{int64(in.OffOut), data}
	st = w.modifyWith(in.NodeIdOut, -1, true, p, func(f *fdRef) error {
		return w.quota.grow(in.NodeIdOut, f, p.off, int64(len(data)), false, func(fits int64) error {
			var err error
			if n, err = f.WriteAt(data[:fits], p.off); n > 0 {
				err = nil // the caller comes again
			}
			return err
		})
	})
	return uint32(n), st, true
}

// left is how many of length bytes at off a file has.
func left(f *fdRef, off, length int64) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return 0, err
	}
	return max(min(length, st.Size-off), 0), nil
}

// source returns the backing file of ino for reading.
func (w *workspace) source(ino uint64) (*fdRef, fuse.Status) {
	ino = w.inoOf(ino)
	sh := w.shard(ino)
	sh.RLock()
	defer sh.RUnlock()
	return w.backing(ino)
}

func (w *workspace) Lseek(_ <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	if in.NodeId == dotGitIno {
		return seekFlat(int64(len(w.spec.DotGit)), in, out)
	}
	r, st := w.source(in.NodeId)
	if !st.Ok() {
		return st
	}
	if r == nil {
		return seekFlat(0, in, out)
	}
	defer w.fds.release(r)
	off, err := unix.Seek(r.fd, int64(in.Offset), int(in.Whence))
	out.Offset = uint64(off)
	return status(err)
}

// seekFlat answers for a file of size bytes without holes.
func seekFlat(size int64, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	if int64(in.Offset) >= size {
		return fuse.Status(syscall.ENXIO)
	}
	out.Offset = in.Offset
	if in.Whence == unix.SEEK_HOLE {
		out.Offset = uint64(size)
	}
	return fuse.OK
}

func (w *workspace) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if in.NodeId == dotGitIno || w.spec.ReadOnly {
		return fuse.OK
	}
	w.mu.RLock()
	n := w.t.nodes[in.NodeId]
	up := n != nil && n.data == w.t.layer
	top := w.top()
	w.mu.RUnlock()
	if up {
		r, st := w.source(in.NodeId)
		if !st.Ok() {
			return st
		}
		if r != nil {
			defer w.fds.release(r)
			if err := r.sync(); err != nil {
				return status(err)
			}
		}
	}
	return status(top.Sync())
}
