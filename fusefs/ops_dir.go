package fusefs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

func (w *workspace) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	w.using.RLock()
	defer w.using.RUnlock()
	if len(name) > maxName {
		return fuse.Status(syscall.ENAMETOOLONG)
	}
	if w.isDotGit(h.NodeId, name) {
		w.awaitRelease(cancel)
		w.dotGitEntry(out)
		return fuse.OK
	}
	p, st := w.directory(h.NodeId)
	if !st.Ok() {
		return st
	}
	w.mu.RLock()
	if n := p.dir.get(name); n != nil && n.unsettled() {
		w.mu.RUnlock()
		w.settle(n.ino)
		w.mu.RLock()
	}
	defer w.mu.RUnlock()
	if n := p.dir.get(name); n != nil {
		return w.entry(n, out)
	}
	out.NodeId = 0 // the kernel remembers that there is nothing
	if w.cones == nil || !w.sought(p, name) {
		out.SetEntryTimeout(forever)
	}
	return fuse.OK
}

// OpenDir keeps no state: the answer ENOSYS makes the kernel stop asking, and
// cache.
func (w *workspace) OpenDir(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status {
	return fuse.ENOSYS
}

// Flush has nothing to do: what is written is in the backing file.
func (w *workspace) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status {
	return fuse.ENOSYS
}

func (w *workspace) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return w.list(in, func(e fuse.DirEntry, _ *node) (bool, fuse.Status) {
		return out.AddDirEntry(e), fuse.OK
	})
}

func (w *workspace) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return w.list(in, func(e fuse.DirEntry, n *node) (bool, fuse.Status) {
		eo := out.AddDirLookupEntry(e)
		switch {
		case eo == nil:
			return false, fuse.OK
		case n != nil:
			// Should the attributes be unreadable, or cost a conversion, the
			// entry stays without them and the kernel looks it up.
			if n.unsettled() {
				*eo = fuse.EntryOut{}
			} else if st := w.entry(n, eo); !st.Ok() {
				*eo = fuse.EntryOut{}
			}
		case e.Ino == dotGitIno:
			w.dotGitEntry(eo)
		}
		return true, fuse.OK
	})
}

// list calls add for the entries after the cookie in.Offset until it returns
// false. The node is nil for ".", ".." and the mount's own .git.
func (w *workspace) list(in *fuse.ReadIn, add func(fuse.DirEntry, *node) (bool, fuse.Status)) fuse.Status {
	w.using.RLock()
	defer w.using.RUnlock()
	p, st := w.directory(in.NodeId)
	if !st.Ok() {
		return st
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	parent := p.parent
	if parent == nil {
		parent = p
	}
	for _, e := range []fuse.DirEntry{
		{Name: ".", Ino: p.ino, Mode: syscall.S_IFDIR, Off: 1},
		{Name: "..", Ino: parent.ino, Mode: syscall.S_IFDIR, Off: 2},
		{Name: dotGit, Ino: dotGitIno, Mode: syscall.S_IFREG, Off: 3},
	} {
		if e.Off <= in.Offset || e.Name == dotGit && !w.isDotGit(p.ino, dotGit) {
			continue
		}
		if ok, st := add(e, nil); !ok || !st.Ok() {
			return st
		}
	}
	for _, e := range p.dir.after(in.Offset) {
		if e.n == nil {
			continue
		}
		ok, st := add(fuse.DirEntry{Name: e.name, Ino: e.n.ino, Mode: e.n.kind(), Off: e.cookie}, e.n)
		if !ok || !st.Ok() {
			return st
		}
	}
	return fuse.OK
}

func (w *workspace) FsyncDir(<-chan struct{}, *fuse.FsyncIn) fuse.Status {
	if w.spec.ReadOnly {
		return fuse.OK
	}
	w.mu.RLock()
	top := w.top()
	w.mu.RUnlock()
	return status(top.Sync())
}
