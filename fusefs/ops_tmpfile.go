package fusefs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/git-env/git-env/fusefs/layer"
)

// Tmpfile makes a file without a name (O_TMPFILE). It is in memory only, its
// bytes in a data file that nothing refers to, until it gets a name.
func (w *workspace) Tmpfile(_ <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	w.using.RLock()
	defer w.using.RUnlock()
	if w.spec.ReadOnly {
		return fuse.EROFS
	}
	p, st := w.directory(in.NodeId)
	if !st.Ok() {
		return st
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.nlink == 0 {
		return fuse.ENOENT
	}
	at := now()
	n := &node{
		ino: w.t.nextIno, mode: syscall.S_IFREG | in.Mode&0o7777, uid: in.Uid, gid: in.Gid,
		data: noData, atime: at, mtime: at, ctime: at,
	}
	if p.mode&syscall.S_ISGID != 0 {
		n.gid = p.gid
	}
	w.t.nextIno++
	w.t.nodes[n.ino] = n
	if w.io() {
		out.OpenFlags, out.Fh = fuse.FOPEN_DIRECT_IO, 0 // it has no file to leave to the kernel yet
	} else {
		out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	}
	return w.entry(n, &out.EntryOut)
}

// name returns the records that give a file without a name its first one:
// everything it has become so far. mu is held.
func (w *workspace) name(n, p *node, name string) []layer.Record {
	recs := append(w.introduce(nil, p),
		layer.Record{
			Kind: layer.KindCreate, Time: now(), Ino: n.ino, Parent: p.ino, Name: name,
			Mode: n.mode, UID: n.uid, GID: n.gid,
		})
	times := layer.Record{Kind: layer.KindSetattr, Time: now(), Ino: n.ino, Mask: layer.SetAtime, Atime: n.atime}
	if n.data != noData {
		recs = append(recs, layer.Record{Kind: layer.KindDataUp, Time: now(), Ino: n.ino})
	}
	if n.data == noData || n.flags&mtimeSet != 0 {
		times.Mask |= layer.SetMtime | layer.MtimeHeld
		times.Mtime = n.mtime
	}
	recs = append(recs, times)
	if n.ext != nil {
		for key, value := range n.ext.xattr {
			recs = append(recs, layer.Record{Kind: layer.KindSetXattr, Time: now(), Ino: n.ino, Name: key, Value: value})
		}
	}
	return recs
}
