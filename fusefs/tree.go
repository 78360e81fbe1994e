package fusefs

import (
	"encoding/hex"
	"errors"
	"fmt"
	"syscall"

	"github.com/git-env/git-env/fusefs/layer"
)

// tree is the namespace of a workspace: a function of the git tree and the
// records applied to it. It does no input or output and has no lock; the
// workspace guards it.
type tree struct {
	nodes   map[uint64]*node
	root    *node
	oidLen  int    // bytes of an object id
	seq     uint64 // number of the last record
	layer   int16  // index of the layer whose records are applied
	nextIno uint64
	// lenient skips records about things that do not exist. Set when a layer
	// lost its tail with the power, because what follows may refer to it.
	lenient bool
	// orphaned is called for a node that lost its last name.
	orphaned func(*node)

	time     int64 // of lower entries
	uid, gid uint32
}

var errDangling = errors.New("record refers to something that does not exist")

// newTree returns the namespace of a git tree without any records. id may be
// empty when nothing is ever going to be loaded.
func newTree(id string, time int64, uid, gid uint32) (*tree, error) {
	t := &tree{nodes: map[uint64]*node{}, oidLen: len(id) / 2, time: time, uid: uid, gid: gid, nextIno: newIno + 1}
	t.orphaned = t.drop
	raw, err := hex.DecodeString(id)
	if err != nil || len(raw) > 32 {
		return nil, fmt.Errorf("bad tree id %q", id)
	}
	t.root = t.newLower(rootIno, syscall.S_IFDIR, raw, 0)
	t.root.flags |= known
	return t, nil
}

// drop forgets a node.
func (t *tree) drop(n *node) { delete(t.nodes, n.ino) }

// newLower makes the node of an entry of the git tree. mode is git's or, for
// a known node, the full one.
func (t *tree) newLower(ino uint64, mode uint32, oid []byte, size int64) *node {
	n := &node{
		ino: ino, size: size, atime: t.time, mtime: t.time, ctime: t.time,
		uid: t.uid, gid: t.gid, nlink: 1, data: noData, flags: lower,
	}
	copy(n.oid[:], oid)
	switch mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		n.mode = syscall.S_IFDIR | 0o755
		n.dir = newDir(false)
	case gitlinkMode:
		// A submodule is an empty directory until somebody fills it.
		n.mode = syscall.S_IFDIR | 0o755
		n.dir = newDir(true)
		n.flags |= gitlink
	case syscall.S_IFLNK:
		n.mode = syscall.S_IFLNK | 0o777
	default:
		n.mode = syscall.S_IFREG | 0o644
		if mode&0o100 != 0 {
			n.mode |= 0o111
		}
	}
	t.nodes[ino] = n
	return n
}

const gitlinkMode = 0o160000

func (t *tree) attach(p *node, name string, n *node) {
	p.dir.add(name, n)
	n.addLink(p, name)
}

func (t *tree) detach(p *node, name string) {
	if n := p.dir.get(name); n != nil {
		n.dropLink(p, name)
	}
	p.dir.remove(name)
}

// load puts the entries of the git tree into directory p. Names that records
// have taken or removed keep what the records say. The entries whose inode
// number is taken are returned; the caller introduces them under another one
// and then calls loaded.
func (t *tree) load(p *node, entries []lowerEntry) (taken []lowerEntry) {
	for _, e := range entries {
		if _, gone := p.dir.hidden[e.name]; gone || p.dir.get(e.name) != nil {
			continue
		}
		ino := hashIno(p.ino, e.name)
		if t.nodes[ino] != nil {
			taken = append(taken, e)
			continue
		}
		n := t.newLower(ino, e.mode, e.oid, e.size)
		t.attach(p, e.name, n)
	}
	return taken
}

func (t *tree) loaded(p *node) {
	p.dir.loaded = true
	p.dir.hidden = nil
}

type lowerEntry struct {
	name string
	mode uint32
	oid  []byte
	size int64
}

// apply makes the change of one record. Live, the record is in the log
// already and was checked before; at replay an error means a damaged log.
func (t *tree) apply(r *layer.Record) error {
	t.seq++
	err := t.applyKind(r)
	if err != nil && t.lenient && errors.Is(err, errDangling) {
		return nil
	}
	return err
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
	if p.dir.get(r.Name) != nil {
		return dangling(r)
	}
	t.sawIno(r.Ino)
	n := t.newLower(r.Ino, r.Mode, r.OID, r.Size)
	n.flags |= known
	t.attach(p, r.Name, n)
	return nil
}

func (t *tree) applyCreate(r *layer.Record) error {
	p, err := t.parentOf(r, r.Parent)
	if err != nil {
		return err
	}
	if t.nodes[r.Ino] != nil || p.dir.get(r.Name) != nil {
		return dangling(r)
	}
	t.sawIno(r.Ino)
	n := &node{
		ino: r.Ino, mode: r.Mode, uid: r.UID, gid: r.GID, nlink: 1, data: noData, flags: known,
		atime: r.Time, mtime: r.Time, ctime: r.Time, dirtySeq: t.seq, size: int64(len(r.Target)),
	}
	if r.Target != "" || r.Rdev != 0 {
		n.ext = &ext{target: r.Target, rdev: r.Rdev}
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
	// The time of a data file in the top layer is set on the file itself,
	// since later writes change it there without a record.
	if r.Mask&layer.SetMtime != 0 && n.data != t.layer {
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
