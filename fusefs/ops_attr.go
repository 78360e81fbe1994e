package fusefs

import (
	"context"
	"math"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/fusefs/layer"
)

// forever is how long the kernel may trust what it knows: every change comes
// through this mount.
const forever = 10000 * time.Hour

func (w *workspace) String() string { return "git-env" }

// attr fills in the attributes of n. mu is held.
func (w *workspace) attr(n *node, a *fuse.Attr) fuse.Status {
	size, mtime, ctime := n.size, n.mtime, n.ctime
	if n.unsettled() {
		size = max(size, 1) // so that somebody who reads it meets the failure
	}
	blocks := (size + 511) / 512
	if n.data != noData && n.flags&unwritten == 0 {
		var st unix.Stat_t
		err := w.stat1(n, &st)
		if err == nil && isSpare(&st) {
			err = unix.ENOENT
		}
		switch err {
		case nil:
			size, blocks = st.Size, st.Blocks
			if n.flags&mtimeSet == 0 {
				mtime = st.Mtim.Nano()
			}
			// A write sets both; linking the file into another layer, only one.
			ctime = max(ctime, min(st.Ctim.Nano(), st.Mtim.Nano()))
		case unix.ENOENT:
			// Never written, or lost with the power before it was synced.
			size, blocks = 0, 0
		default:
			return status(err)
		}
	}
	*a = fuse.Attr{
		Ino: n.ino, Size: uint64(size), Blocks: uint64(blocks), Mode: n.mode, Nlink: n.links(),
		Owner: fuse.Owner{Uid: n.uid, Gid: n.gid}, Blksize: 4096,
	}
	if n.isDir() {
		a.Size = 4096
	}
	if n.ext != nil {
		a.Rdev = n.ext.rdev
	}
	setTime(&a.Atime, &a.Atimensec, n.atime)
	setTime(&a.Mtime, &a.Mtimensec, mtime)
	setTime(&a.Ctime, &a.Ctimensec, ctime)
	return fuse.OK
}

// stat1 asks the file system about the data file of n. mu is held.
func (w *workspace) stat1(n *node, st *unix.Stat_t) error {
	r := w.fds.get(fdKey{w, n.ino, n.data})
	if r == nil {
		return unix.Stat(w.data(n), st)
	}
	defer w.fds.release(r)
	return unix.Fstat(r.fd, st)
}

func setTime(sec *uint64, nsec *uint32, t int64) {
	s, n := t/1e9, t%1e9
	if n < 0 {
		s, n = s-1, n+1e9
	}
	*sec, *nsec = uint64(s), uint32(n)
}

// entry fills in the answer for a node that was looked up, and counts it.
// mu is held.
func (w *workspace) entry(n *node, out *fuse.EntryOut) fuse.Status {
	if st := w.attr(n, &out.Attr); !st.Ok() {
		return st
	}
	out.NodeId, out.Generation = n.ino, 1
	out.SetEntryTimeout(forever)
	out.SetAttrTimeout(attrTime(n))
	if n.ext != nil && n.ext.nodeid != 0 { // the kernel has it twice
		out.NodeId = n.ext.nodeid
		out.SetAttrTimeout(0)
	}
	n.lookups.Add(1)
	return fuse.OK
}

// dotGitAttr describes the file .git that belongs to the mount.
func (w *workspace) dotGitAttr(a *fuse.Attr) {
	*a = fuse.Attr{
		Ino: dotGitIno, Size: uint64(len(w.spec.DotGit)), Blocks: 1, Mode: syscall.S_IFREG | 0o444, Nlink: 1,
		Owner: fuse.Owner{Uid: w.spec.UID, Gid: w.spec.GID}, Blksize: 4096,
	}
	t := w.spec.Time.UnixNano()
	setTime(&a.Atime, &a.Atimensec, t)
	setTime(&a.Mtime, &a.Mtimensec, t)
	setTime(&a.Ctime, &a.Ctimensec, t)
}

func (w *workspace) dotGitEntry(out *fuse.EntryOut) {
	w.dotGitAttr(&out.Attr)
	out.NodeId, out.Generation = dotGitIno, 1
	out.SetEntryTimeout(0) // asked for each time, see hold.go
	out.SetAttrTimeout(forever)
}

func (w *workspace) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if in.NodeId == dotGitIno {
		out.SetTimeout(forever)
		w.dotGitAttr(&out.Attr)
		return fuse.OK
	}
	w.mu.RLock()
	n := w.t.nodes[in.NodeId]
	if n != nil && !n.counted() {
		w.mu.RUnlock()
		w.count(context.Background(), n)
		w.mu.RLock()
	}
	if n != nil && n.unsettled() {
		w.mu.RUnlock()
		w.settle(in.NodeId)
		w.mu.RLock()
	}
	defer w.mu.RUnlock()
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	return w.attrOut(n, out)
}

func (w *workspace) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if in.NodeId == dotGitIno {
		return fuse.EPERM
	}
	if w.spec.ReadOnly {
		return fuse.EROFS
	}
	if size, ok := in.GetSize(); ok {
		if st := w.truncate(in.NodeId, int64(size), in.Valid&fuse.FATTR_KILL_SUIDGID != 0); !st.Ok() {
			return st
		}
	}
	w.settle(in.NodeId)
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.t.nodes[in.NodeId]
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	rec := attrRecord(n, in)
	if _, sized := in.GetSize(); !sized && rec.Mask == 0 {
		if st := sameOwner(n, &in.InHeader, &rec); !st.Ok() {
			return st
		}
	}
	if _, sized := in.GetSize(); !sized || rec.Mask != 0 {
		if st := w.setattr(n, rec); !st.Ok() {
			return st
		}
	}
	return w.attrOut(n, out)
}

// attrOut fills in an answer. mu is held.
func (w *workspace) attrOut(n *node, out *fuse.AttrOut) fuse.Status {
	out.SetTimeout(attrTime(n))
	return w.attr(n, &out.Attr)
}

// attrRecord is the record for what in changes but the size.
func attrRecord(n *node, in *fuse.SetAttrIn) layer.Record {
	rec := layer.Record{Kind: layer.KindSetattr, Time: now(), Ino: n.ino}
	if mode, ok := in.GetMode(); ok {
		rec.Mask |= layer.SetMode
		rec.Mode = mode
	}
	uid, setUID := in.GetUID()
	if setUID {
		rec.Mask |= layer.SetUID
		rec.UID = uid
	}
	gid, setGID := in.GetGID()
	if setGID {
		rec.Mask |= layer.SetGID
		rec.GID = gid
	}
	if (setUID || setGID) && rec.Mask&layer.SetMode == 0 && killed(n) != n.mode {
		rec.Mask |= layer.SetMode
		rec.Mode = killed(n) & 0o7777
	}
	if at, ok := in.GetATime(); ok {
		rec.Mask |= layer.SetAtime
		rec.Atime = clampTime(at)
	}
	if mt, ok := in.GetMTime(); ok {
		rec.Mask |= layer.SetMtime | layer.MtimeHeld
		rec.Mtime = clampTime(mt)
	}
	return rec
}

// sameOwner is about a chown to nobody else, which changes ctime and, unless
// that is not the caller's to do, takes the bits that lend privilege. The
// kernel has left that to us, and sends nothing that says so.
func sameOwner(n *node, h *fuse.InHeader, rec *layer.Record) fuse.Status {
	const unmapped = ^uint32(0) // through an ID-mapped mount
	switch {
	case killed(n) == n.mode || h.Uid == unmapped:
		return fuse.OK
	case h.Uid != 0 && h.Uid != n.uid:
		return fuse.EPERM
	}
	rec.Mask, rec.Mode = layer.SetMode, killed(n)&0o7777
	return fuse.OK
}

// clampTime returns t, or the nearest time that there is: times are kept in
// nanoseconds and reach from 1677 to 2262.
func clampTime(t time.Time) int64 {
	switch {
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	case t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	}
	return t.UnixNano()
}

// killed is the mode of n after a write or chown by somebody without
// privilege: without the bits that lend privilege.
func killed(n *node) uint32 {
	if n.isDir() {
		return n.mode
	}
	mode := n.mode &^ syscall.S_ISUID
	if mode&syscall.S_IXGRP != 0 {
		mode &^= syscall.S_ISGID
	}
	return mode
}

// setattr logs and applies rec. mu is held for writing.
func (w *workspace) setattr(n *node, rec layer.Record) fuse.Status {
	if rec.Mask&layer.SetMtime != 0 && w.opens.written(n) && w.hasData(n) {
		// The next write changes the time, and nobody will tell.
		rec.Mask &^= layer.MtimeHeld
		at := backingTime(rec.Mtime)
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, w.data(n), at[:], 0); err != nil {
			return status(err)
		}
	}
	recs := w.about(n)
	if rec.Mask&(layer.SetUID|layer.SetGID) != 0 && n.flags&hasCap != 0 {
		recs = append(recs, layer.Record{Kind: layer.KindRemoveXattr, Time: rec.Time, Ino: n.ino, Name: capXattr})
	}
	return w.enact(n, append(recs, rec))
}

// about returns a list of records to which some about n itself are to be
// added. mu is held for writing.
func (w *workspace) about(n *node) []layer.Record {
	if n.nlink == 0 {
		return w.records()
	}
	return w.introduce(w.records(), n)
}

// change commits records about n itself. mu is held for writing.
func (w *workspace) change(n *node, recs ...layer.Record) fuse.Status {
	return w.enact(n, append(w.about(n), recs...))
}

// enact commits what was added to what about returned. A node without names
// is changed in memory only: nothing of it survives a remount. mu is held for
// writing.
func (w *workspace) enact(n *node, recs []layer.Record) fuse.Status {
	if n.nlink > 0 {
		return w.commit(recs...)
	}
	for i := range recs {
		if err := w.t.applyKind(&recs[i]); err != nil {
			return fuse.EIO
		}
	}
	return fuse.OK
}

func (w *workspace) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	var s syscall.Statfs_t
	if err := syscall.Statfs(w.layerDir, &s); err != nil {
		return status(err)
	}
	w.quota.statfs(&s)
	out.FromStatfsT(&s)
	out.NameLen = maxName
	return fuse.OK
}
