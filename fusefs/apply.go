package fusefs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/git-env/git-env/fusefs/layer"
)

// apply makes the change of one record. Live, the record is in the log
// already and was checked before; at replay an error means a damaged log.
func (t *tree) apply(r *layer.Record) error {
	if r.Kind == layer.KindGap {
		t.seq += r.Seq
		t.lenient = true
		return nil
	}
	t.seq++
	if t.lenient && !t.sensible(r) {
		return nil
	}
	err := t.applyKind(r)
	if err != nil && t.lenient && errors.Is(err, errDangling) {
		t.remember(r)
		return nil
	}
	return err
}

// remember keeps the name that a file without a place was to have.
func (t *tree) remember(r *layer.Record) {
	if r.Kind != layer.KindCreate && r.Kind != layer.KindLink && r.Kind != layer.KindIntro {
		return
	}
	if t.meant == nil {
		t.meant = map[uint64]string{}
	}
	t.meant[r.Ino] = r.Name
}

func (t *tree) applyKind(r *layer.Record) error {
	switch r.Kind {
	case layer.KindIntro:
		return t.applyIntro(r)
	case layer.KindCreate:
		return t.applyCreate(r)
	case layer.KindRemove:
		return t.applyRemove(r)
	case layer.KindRename:
		return t.applyRename(r)
	case layer.KindMark:
		t.clean(r.Seq)
		return nil
	}
	if r.Kind >= layer.KindNode {
		return t.applyMerged(r)
	}
	n := t.nodes[r.Ino]
	if n == nil {
		return dangling(r)
	}
	switch r.Kind {
	case layer.KindLink:
		p, err := t.parentOf(r, r.Parent)
		if err != nil {
			return err
		}
		if t.lenient {
			t.displace(p, r.Name, r.Time)
			if t.nodes[r.Ino] != n {
				return dangling(r) // it was its only name
			}
		}
		n.nlink++
		n.ctime = r.Time
		t.attach(p, r.Name, n)
		t.changed(p, r.Name, r.Time)
	case layer.KindSetattr:
		t.applySetattr(n, r)
	case layer.KindSetXattr, layer.KindRemoveXattr:
		applyXattr(n, r)
	case layer.KindDataUp:
		n.data = t.layer
		n.flags &^= mtimeSet
		t.dirtyContent(n)
	case layer.KindDirty:
		n.flags &^= mtimeSet
		t.dirtyContent(n)
	default:
		return fmt.Errorf("record of unknown kind %d", r.Kind)
	}
	return nil
}

func dangling(r *layer.Record) error {
	return fmt.Errorf("%w: kind %d, inode %x, in %x", errDangling, r.Kind, r.Ino, r.Parent)
}

// parentOf returns the directory ino that r refers to.
func (t *tree) parentOf(r *layer.Record, ino uint64) (*node, error) {
	if p := t.nodes[ino]; p != nil && p.isDir() {
		return p, nil
	}
	return nil, dangling(r)
}

func (t *tree) sawIno(ino uint64) {
	if ino&newIno != 0 && ino >= t.nextIno {
		t.nextIno = ino + 1
	}
}

func (t *tree) applyIntro(r *layer.Record) error {
	if n := t.nodes[r.Ino]; n != nil {
		n.flags |= known
		return nil
	}
	p, err := t.parentOf(r, r.Parent)
	if err != nil {
		return err
	}
	if t.lenient {
		t.displace(p, r.Name, r.Time)
	}
	if p.dir.get(r.Name) != nil {
		return dangling(r)
	}
	t.sawIno(r.Ino)
	n := t.newLower(r.Ino, r.Mode, r.OID, r.Size)
	n.flags |= known
	if n.kind() == syscall.S_IFREG {
		n.flags |= convert // perhaps: whoever reads it finds out
	}
	t.attach(p, r.Name, n)
	return nil
}

func (t *tree) applyCreate(r *layer.Record) error {
	p, err := t.parentOf(r, r.Parent)
	if err != nil {
		return err
	}
	n := t.nodes[r.Ino]
	if t.lenient && n == nil {
		t.displace(p, r.Name, r.Time)
	}
	if n != nil && n.nlink > 0 || p.dir.get(r.Name) != nil {
		return dangling(r)
	}
	t.sawIno(r.Ino)
	if n == nil { // else a file without a name gets one
		n = &node{ino: r.Ino, data: noData}
	}
	n.mode, n.uid, n.gid, n.nlink = r.Mode, r.UID, r.GID, 1
	n.atime, n.mtime, n.ctime = r.Time, r.Time, r.Time
	n.flags |= known
	n.dirtySeq, n.size = t.seq, int64(len(r.Target))
	if r.Target != "" || r.Rdev != 0 {
		n.more().target, n.ext.rdev = r.Target, r.Rdev
	}
	if n.kind() == syscall.S_IFDIR {
		n.dir = newDir(true)
		n.dir.whole = t.seq
		n.flags |= touched
	}
	t.nodes[n.ino] = n
	t.attach(p, r.Name, n)
	t.changed(p, r.Name, r.Time)
	return nil
}

func (t *tree) applyRemove(r *layer.Record) error {
	p, err := t.parentOf(r, r.Parent)
	if err != nil {
		return err
	}
	n := p.dir.get(r.Name)
	if n == nil && p.dir.loaded {
		return dangling(r)
	}
	t.detach(p, r.Name)
	t.changed(p, r.Name, r.Time)
	if n != nil {
		t.unlinked(n, r.Time)
	}
	return nil
}

func (t *tree) unlinked(n *node, now int64) {
	n.nlink--
	n.ctime = now
	if n.nlink == 0 {
		t.orphaned(n)
	}
}

func (t *tree) applyRename(r *layer.Record) error {
	p, err := t.parentOf(r, r.Parent)
	if err != nil {
		return err
	}
	p2, err := t.parentOf(r, r.Parent2)
	if err != nil {
		return err
	}
	n, over := p.dir.get(r.Name), p2.dir.get(r.Name2)
	exchange := r.Flags&layer.FlagExchange != 0
	if n == nil || exchange && over == nil {
		return dangling(r)
	}
	t.detach(p, r.Name)
	if over != nil {
		t.detach(p2, r.Name2)
	}
	t.attach(p2, r.Name2, n)
	t.moved(n, r.Time)
	switch {
	case exchange:
		t.attach(p, r.Name, over)
		t.moved(over, r.Time)
	case over != nil:
		t.unlinked(over, r.Time)
	}
	t.changed(p, r.Name, r.Time)
	t.changed(p2, r.Name2, r.Time)
	return nil
}

func (t *tree) moved(n *node, now int64) {
	n.ctime = now
	if n.isDir() {
		n.dir.whole = t.seq
	}
}

func (t *tree) applySetattr(n *node, r *layer.Record) {
	if r.Mask&layer.SetMode != 0 {
		exec := (n.mode^r.Mode)&0o100 != 0
		n.mode = n.kind() | r.Mode&0o7777
		if exec && n.kind() == syscall.S_IFREG {
			t.dirtyNames(n)
		}
	}
	if r.Mask&layer.SetUID != 0 {
		n.uid = r.UID
	}
	if r.Mask&layer.SetGID != 0 {
		n.gid = r.GID
	}
	if r.Mask&layer.SetAtime != 0 {
		n.atime = r.Atime
	}
	// It holds until a record says that the content changes again. Without
	// MtimeHeld the time of a data file was set on the file itself.
	if r.Mask&layer.SetMtime != 0 && (r.Mask&layer.MtimeHeld != 0 || n.data != t.layer) {
		n.mtime = r.Mtime
		n.flags |= mtimeSet
	}
	n.ctime = r.Time
}

const capXattr = "security.capability"

func applyXattr(n *node, r *layer.Record) {
	e := n.more()
	if r.Kind == layer.KindRemoveXattr {
		delete(e.xattr, r.Name)
	} else {
		if e.xattr == nil {
			e.xattr = map[string][]byte{}
		}
		e.xattr[r.Name] = append([]byte{}, r.Value...)
	}
	if r.Name == capXattr {
		n.flags &^= hasCap
		if r.Kind == layer.KindSetXattr {
			n.flags |= hasCap
		}
	}
	n.ctime = r.Time
}
