package fusefs

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/fusefs/layer"
)

// mutable refuses a change of name in directory ino early.
func (w *workspace) mutable(ino uint64, name string) fuse.Status {
	switch {
	case w.spec.ReadOnly:
		return fuse.EROFS
	case len(name) > maxName:
		return fuse.Status(syscall.ENAMETOOLONG)
	case w.isDotGit(ino, name):
		return fuse.EBUSY
	case w.hides(ino, name):
		return refuse
	}
	return fuse.OK
}

// create makes a new node under name. rec has what is special about it.
func (w *workspace) create(h *fuse.InHeader, name string, rec layer.Record, out *fuse.EntryOut) fuse.Status {
	w.using.RLock()
	defer w.using.RUnlock()
	if st := w.mutable(h.NodeId, name); st == fuse.EBUSY {
		return fuse.Status(syscall.EEXIST)
	} else if !st.Ok() {
		return st
	}
	p, st := w.directory(h.NodeId)
	if !st.Ok() {
		return st
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.nlink == 0 {
		return fuse.ENOENT
	}
	if p.dir.get(name) != nil {
		return fuse.Status(syscall.EEXIST)
	}
	regular, ahead := rec.Mode&syscall.S_IFMT == syscall.S_IFREG, false
	rec.Kind, rec.Time, rec.Ino = layer.KindCreate, now(), w.t.nextIno
	if regular {
		rec.Ino, ahead = w.newFileIno()
	}
	rec.Parent, rec.Name, rec.UID, rec.GID = p.ino, name, h.Uid, h.Gid
	if p.mode&syscall.S_ISGID != 0 {
		rec.GID = p.gid
		if rec.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			rec.Mode |= syscall.S_ISGID
		}
	}
	recs := append(w.introduce(w.records(), p), rec)
	if regular {
		// Its bytes will be here: that needs no record of its own when they come.
		recs = append(recs, layer.Record{Kind: layer.KindDataUp, Time: rec.Time, Ino: rec.Ino})
	}
	if st := w.commit(recs...); !st.Ok() {
		return st
	}
	n := w.t.nodes[rec.Ino]
	if regular {
		n.flags |= unwritten
		if ahead {
			n.flags |= spare
		}
		w.tookFileIno(ahead)
	}
	return w.entry(n, out)
}

func (w *workspace) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	mode := in.Mode
	if mode&syscall.S_IFMT == 0 {
		mode |= syscall.S_IFREG
	}
	return w.create(&in.InHeader, name, layer.Record{Mode: mode, Rdev: in.Rdev}, out)
}

func (w *workspace) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return w.create(&in.InHeader, name, layer.Record{Mode: syscall.S_IFDIR | in.Mode&0o7777}, out)
}

func (w *workspace) Symlink(_ <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	if len(target) >= maxLink {
		return fuse.Status(syscall.ENAMETOOLONG)
	}
	return w.create(h, name, layer.Record{Mode: syscall.S_IFLNK | 0o777, Target: target}, out)
}

func (w *workspace) Readlink(_ <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	w.mu.RLock()
	n := w.t.nodes[h.NodeId]
	if n == nil || n.kind() != syscall.S_IFLNK {
		w.mu.RUnlock()
		return nil, fuse.EINVAL
	}
	if n.flags&lower == 0 {
		defer w.mu.RUnlock()
		return []byte(n.ext.target), fuse.OK
	}
	id := w.t.oidString(&n.oid)
	w.mu.RUnlock()
	target, err := w.blobs.link(context.Background(), id)
	if err != nil {
		w.log.Printf("%s: symbolic link %s: %v", w.spec.ID, id, err)
		return nil, status(err)
	}
	return []byte(target), fuse.OK
}

func (w *workspace) Link(_ <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	w.using.RLock()
	defer w.using.RUnlock()
	for {
		st := w.link(in, name, out)
		if st != frozenMeanwhile {
			return st
		}
		if st := w.unnamedUp(in.Oldnodeid); !st.Ok() {
			return st
		}
	}
}

func (w *workspace) link(in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	if in.Oldnodeid == dotGitIno {
		return fuse.EPERM
	}
	if st := w.mutable(in.NodeId, name); st == fuse.EBUSY {
		return fuse.Status(syscall.EEXIST)
	} else if !st.Ok() {
		return st
	}
	p, st := w.directory(in.NodeId)
	if !st.Ok() {
		return st
	}
	w.settle(in.Oldnodeid)
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.t.nodes[in.Oldnodeid]
	switch {
	case n == nil || p.nlink == 0:
		return fuse.ENOENT
	case n.isDir():
		return fuse.EPERM
	case p.dir.get(name) != nil:
		return fuse.Status(syscall.EEXIST)
	}
	var recs []layer.Record
	if n.nlink == 0 {
		if n.data != noData && n.data != w.t.layer {
			return frozenMeanwhile
		}
		recs = w.name(n, p, name)
	} else {
		recs = append(w.introduce(w.records(), n, p), layer.Record{
			Kind: layer.KindLink, Time: now(), Ino: n.ino, Parent: p.ino, Name: name,
		})
	}
	if st := w.commit(recs...); !st.Ok() {
		return st
	}
	return w.entry(n, out)
}

func (w *workspace) Unlink(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return w.remove(h.NodeId, name, false)
}

func (w *workspace) Rmdir(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return w.remove(h.NodeId, name, true)
}

func (w *workspace) remove(parent uint64, name string, dir bool) fuse.Status {
	w.using.RLock()
	defer w.using.RUnlock()
	if st := w.mutable(parent, name); !st.Ok() {
		return st
	}
	p, st := w.directory(parent)
	if !st.Ok() {
		return st
	}
	if st := w.loadChild(p, name); !st.Ok() {
		return st
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := p.dir.get(name)
	switch {
	case n == nil:
		return fuse.ENOENT
	case dir && !n.isDir():
		return fuse.ENOTDIR
	case !dir && n.isDir():
		return fuse.EISDIR
	case dir && !n.dir.loaded:
		return fuse.EAGAIN
	case dir && len(n.dir.ents) > 0, w.leads(n):
		return fuse.Status(syscall.ENOTEMPTY)
	}
	return w.commit(append(w.introduce(w.records(), p), layer.Record{
		Kind: layer.KindRemove, Time: now(), Parent: p.ino, Name: name,
	})...)
}

// loadChild reads the directory name of p, if it is one, so that it can be
// seen to be empty.
func (w *workspace) loadChild(p *node, name string) fuse.Status {
	w.mu.RLock()
	n := p.dir.get(name)
	need := n != nil && n.isDir() && !n.dir.loaded
	w.mu.RUnlock()
	if !need {
		return fuse.OK
	}
	_, st := w.directory(n.ino)
	return st
}

func (w *workspace) Rename(_ <-chan struct{}, in *fuse.RenameIn, name, name2 string) fuse.Status {
	w.using.RLock()
	defer w.using.RUnlock()
	if in.Flags&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE) != 0 {
		return fuse.EINVAL
	}
	if st := w.mutable(in.NodeId, name); !st.Ok() {
		return st
	}
	if st := w.mutable(in.Newdir, name2); !st.Ok() {
		if st == fuse.EBUSY && in.Flags&unix.RENAME_NOREPLACE != 0 {
			return fuse.Status(syscall.EEXIST)
		}
		return st
	}
	p, st := w.directory(in.NodeId)
	if !st.Ok() {
		return st
	}
	p2, st := w.directory(in.Newdir)
	if !st.Ok() {
		return st
	}
	if st := w.loadChild(p2, name2); !st.Ok() {
		return st
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rename(p, name, p2, name2, in.Flags)
}

// rename moves a name. mu is held for writing and both directories are loaded.
func (w *workspace) rename(p *node, name string, p2 *node, name2 string, flags uint32) fuse.Status {
	n, over := p.dir.get(name), p2.dir.get(name2)
	exchange := flags&unix.RENAME_EXCHANGE != 0
	switch {
	case n == nil || p2.nlink == 0 || exchange && over == nil:
		return fuse.ENOENT
	case over != nil && flags&unix.RENAME_NOREPLACE != 0:
		return fuse.Status(syscall.EEXIST)
	case n == over:
		return fuse.OK
	case inside(p2, n) || exchange && inside(p, over):
		return fuse.EINVAL
	case w.leads(n), exchange && w.leads(over):
		return refuse
	}
	rec := layer.Record{
		Kind: layer.KindRename, Time: now(), Parent: p.ino, Name: name, Parent2: p2.ino, Name2: name2,
	}
	nodes := []*node{p, p2, n}
	switch {
	case exchange:
		rec.Flags = layer.FlagExchange
		nodes = append(nodes, over)
	case over != nil:
		if st := replaceable(n, over); !st.Ok() {
			return st
		}
		if w.leads(over) {
			return fuse.Status(syscall.ENOTEMPTY)
		}
	}
	return w.commit(append(w.introduce(w.records(), nodes...), rec)...)
}

func replaceable(n, over *node) fuse.Status {
	switch {
	case n.isDir() && !over.isDir():
		return fuse.ENOTDIR
	case !n.isDir() && over.isDir():
		return fuse.EISDIR
	case over.isDir() && !over.dir.loaded:
		return fuse.EAGAIN
	case over.isDir() && len(over.dir.ents) > 0:
		return fuse.Status(syscall.ENOTEMPTY)
	}
	return fuse.OK
}

// inside reports whether p is n or below it.
func inside(p, n *node) bool {
	for ; p != nil; p = p.parent {
		if p == n {
			return true
		}
	}
	return false
}
