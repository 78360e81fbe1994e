package fusefs

import (
	"encoding/hex"
	"errors"
	"fmt"
	"syscall"

	"github.com/git-env/git-env/internal/conversion"
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
	// lenient skips records that make no sense. Set from where a layer has
	// damage, or lost its tail with the power, because what follows may refer
	// to it.
	lenient bool
	meant   map[uint64]string // names of files that records had no place for
	damaged []damagedLayer
	// origins are the paths in the git tree of lower nodes that were moved, rules
	// say how the content of those with the flag convert comes about.
	origins map[uint64]string
	rules   map[uint64]*conversion.Rule
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
func (t *tree) drop(n *node) {
	delete(t.nodes, n.ino)
	delete(t.nodes, n.kernelID())
	delete(t.origins, n.ino)
	delete(t.rules, n.ino)
}

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
		t.keepOrigin(n, p, name)
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
		if n := p.dir.get(e.name); n != nil {
			t.settleLoaded(p, n, e)
			continue
		}
		if _, gone := p.dir.hidden[e.name]; gone {
			continue
		}
		ino := hashIno(p.ino, e.name)
		if t.nodes[ino] != nil {
			taken = append(taken, e)
			continue
		}
		n := t.newLower(ino, e.mode, e.oid, e.size)
		if e.rule != nil {
			t.setRule(n, e.rule, 0)
		}
		t.attach(p, e.name, n)
	}
	return taken
}

func (t *tree) loaded(p *node) {
	p.dir.loaded = true
	p.dir.hidden = nil
	p.dir.unread = 0
}

type lowerEntry struct {
	name string
	mode uint32
	oid  []byte
	size int64
	rule *conversion.Rule // nil: shown as stored
}
