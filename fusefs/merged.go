package fusefs

import (
	"syscall"

	"github.com/git-env/git-env/fusefs/layer"
)

// applyMerged makes what a record of a merged layer says.
func (t *tree) applyMerged(r *layer.Record) error {
	switch r.Kind {
	case layer.KindNode:
		return t.applyNode(r)
	case layer.KindGone:
		if n := t.nodes[r.Ino]; n != nil {
			t.drop(n)
		}
		return nil
	case layer.KindEnd:
		t.seq, t.nextIno = r.Seq, max(t.nextIno, r.Ino)
		return nil
	case layer.KindDirtyDir:
		p, err := t.parentOf(r, r.Ino)
		if err != nil {
			return err
		}
		p.dir.dirty, p.dir.below, p.dir.whole = nil, r.Seq, r.Whole
		return nil
	}
	p, err := t.parentOf(r, r.Parent)
	if err != nil {
		return err
	}
	switch r.Kind {
	case layer.KindDirtyName:
		if p.dir.dirty == nil {
			p.dir.dirty = map[string]uint64{}
		}
		p.dir.dirty[r.Name] = r.Seq
	case layer.KindNoName:
		t.detach(p, r.Name)
	case layer.KindName:
		n := t.nodes[r.Ino]
		if n == nil || p.dir.get(r.Name) != nil {
			return dangling(r)
		}
		t.attach(p, r.Name, n)
	}
	return nil
}

func (t *tree) applyNode(r *layer.Record) error {
	var p *node
	if r.Parent != 0 {
		var err error
		if p, err = t.parentOf(r, r.Parent); err != nil {
			return err
		}
		if p.dir.get(r.Name) != nil {
			return dangling(r)
		}
	}
	n := t.nodes[r.Ino]
	if n == nil {
		n = &node{ino: r.Ino, data: noData}
		t.nodes[r.Ino] = n
		t.sawIno(r.Ino)
	}
	if isDir := r.Mode&syscall.S_IFMT == syscall.S_IFDIR; isDir && n.dir == nil {
		n.dir = newDir(r.Flags&layer.NodeLower == 0 || r.Flags&layer.NodeGitlink != 0)
	} else if !isDir && n.dir != nil {
		return dangling(r)
	}
	t.setNode(n, r)
	if p != nil {
		t.attach(p, r.Name, n)
	}
	return nil
}

// setNode gives n everything but its names and extended attributes.
func (t *tree) setNode(n *node, r *layer.Record) {
	n.mode, n.nlink, n.size, n.dirtySeq = r.Mode, r.Nlink, r.Size, r.Seq
	n.flags = 0
	for _, f := range nodeFlags() {
		if r.Flags&f.disk != 0 {
			n.flags |= f.memory
		}
	}
	if r.Flags&layer.NodeData != 0 {
		n.data = t.layer
	}
	if n.flags&lower != 0 && n.kind() == syscall.S_IFREG {
		n.flags |= convert // perhaps, as with an intro
	}
	if r.Flags&layer.NodeMoved != 0 {
		t.setOrigin(n, r.Name2)
	}
	if n != t.root {
		n.oid = [32]byte{}
		copy(n.oid[:], r.OID)
	}
	n.uid, n.gid, n.atime, n.mtime, n.ctime = t.uid, t.gid, t.time, t.time, t.time
	if r.Mask&layer.SetUID != 0 {
		n.uid = r.UID
	}
	if r.Mask&layer.SetGID != 0 {
		n.gid = r.GID
	}
	if r.Mask&layer.SetAtime != 0 {
		n.atime = r.Atime
	}
	if r.Mask&layer.SetMtime != 0 {
		n.mtime = r.Mtime
	}
	if r.Mask&layer.SetCtime != 0 {
		n.ctime = r.Time
	}
	if r.Target != "" || r.Rdev != 0 {
		n.more().target, n.ext.rdev = r.Target, r.Rdev
	}
	if n.ext != nil {
		n.ext.xattr = nil
	}
}

type nodeFlag struct {
	memory uint16
	disk   uint32
}

func nodeFlags() [6]nodeFlag {
	return [...]nodeFlag{
		{known, layer.NodeKnown}, {lower, layer.NodeLower}, {mtimeSet, layer.NodeMtimeSet},
		{touched, layer.NodeTouched}, {hasCap, layer.NodeHasCap}, {gitlink, layer.NodeGitlink},
	}
}
