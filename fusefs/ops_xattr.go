package fusefs

import (
	"slices"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/fusefs/layer"
)

// The kernel's own limits.
const (
	maxXattrName = 255
	maxXattrs    = 64 << 10 // a value; also all names of a file together
)

// xattrName says what is wrong with a name.
func xattrName(name string) fuse.Status {
	for _, ns := range []string{"user.", "trusted.", "security."} {
		switch {
		case name == ns:
			return fuse.EINVAL
		case strings.HasPrefix(name, ns):
			return fuse.OK
		}
	}
	return fuse.ENOTSUP
}

func (w *workspace) GetXAttr(_ <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	if st := xattrName(name); !st.Ok() {
		return 0, st
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	n := w.t.nodes[h.NodeId]
	if n == nil || n.ext == nil {
		return 0, fuse.ENODATA
	}
	value, ok := n.ext.xattr[name]
	if !ok {
		return 0, fuse.ENODATA
	}
	return fit(dest, value)
}

func fit(dest, value []byte) (uint32, fuse.Status) {
	if len(value) > len(dest) {
		return uint32(len(value)), fuse.ERANGE
	}
	return uint32(copy(dest, value)), fuse.OK
}

func (w *workspace) ListXAttr(_ <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	n := w.t.nodes[h.NodeId]
	if n == nil || n.ext == nil {
		return 0, fuse.OK
	}
	return fit(dest, xattrList(n))
}

func xattrList(n *node) []byte {
	names := make([]string, 0, len(n.ext.xattr))
	for name := range n.ext.xattr {
		names = append(names, name)
	}
	slices.Sort(names)
	var list []byte
	for _, name := range names {
		list = append(append(list, name...), 0)
	}
	return list
}

func (w *workspace) SetXAttr(_ <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	bad := xattrName(name)
	switch {
	case w.spec.ReadOnly:
		return fuse.EROFS
	case in.NodeId == dotGitIno:
		return fuse.EPERM
	case !bad.Ok():
		return bad
	case len(name) > maxXattrName:
		return fuse.ERANGE
	case len(value) > maxXattrs:
		return fuse.Status(syscall.E2BIG)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.t.nodes[in.NodeId]
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	has := false
	if n.ext != nil {
		_, has = n.ext.xattr[name]
	}
	switch {
	case in.Flags&unix.XATTR_CREATE != 0 && has:
		return fuse.Status(syscall.EEXIST)
	case in.Flags&unix.XATTR_REPLACE != 0 && !has:
		return fuse.ENODATA
	case !has && n.ext != nil && len(xattrList(n))+len(name)+1 > maxXattrs:
		return fuse.Status(syscall.ENOSPC)
	}
	return w.change(n, layer.Record{Kind: layer.KindSetXattr, Time: now(), Ino: n.ino, Name: name, Value: value})
}

func (w *workspace) RemoveXAttr(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	bad := xattrName(name)
	switch {
	case w.spec.ReadOnly:
		return fuse.EROFS
	case h.NodeId == dotGitIno:
		return fuse.EPERM
	case !bad.Ok():
		return bad
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.t.nodes[h.NodeId]
	if n == nil || n.ext == nil {
		return fuse.ENODATA
	}
	if _, ok := n.ext.xattr[name]; !ok {
		return fuse.ENODATA
	}
	return w.change(n, layer.Record{Kind: layer.KindRemoveXattr, Time: now(), Ino: n.ino, Name: name})
}
