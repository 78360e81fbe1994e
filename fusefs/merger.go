package fusefs

import (
	"cmp"
	"math"
	"slices"
	"syscall"

	"github.com/git-env/git-env/fusefs/layer"
)

// merger finds out the net effect of a run of layers: it notes what their
// records touch while they are applied, and describes that afterwards. So the
// cost of describing is that of the run, whatever is underneath.
type merger struct {
	t *tree
	// nodes are the inodes that may differ, and whether they were there before.
	nodes map[uint64]bool
	// names are the names that may differ, and whether they were there before.
	names map[link64]bool
	// dirs are the directories whose dirty names may differ.
	dirs   map[uint64]struct{}
	mark   uint64
	commit string
}

type link64 struct {
	parent uint64
	name   string
}

// Owner and time of what is in the git tree are said when it is mounted. While
// layers are merged they stand for themselves.
const (
	treeTime = math.MinInt64
	treeID   = math.MaxUint32
)

func newMerger(t *tree) *merger {
	return &merger{t: t, nodes: map[uint64]bool{}, names: map[link64]bool{}, dirs: map[uint64]struct{}{}}
}

// apply applies a record of the run.
func (m *merger) apply(r *layer.Record) error {
	m.note(r)
	return m.t.apply(r)
}

func (m *merger) note(r *layer.Record) {
	switch r.Kind {
	case layer.KindIntro:
		if m.t.nodes[r.Ino] == nil {
			m.name(r.Parent, r.Name)
		}
		m.node(r.Ino)
	case layer.KindCreate:
		m.node(r.Ino)
		if r.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			m.dirs[r.Ino] = struct{}{}
		}
		m.changed(r.Parent, r.Name)
	case layer.KindLink:
		m.node(r.Ino)
		m.changed(r.Parent, r.Name)
	case layer.KindRemove:
		m.changed(r.Parent, r.Name)
	case layer.KindRename:
		m.changed(r.Parent, r.Name)
		m.changed(r.Parent2, r.Name2)
	case layer.KindMark:
		m.marked(r)
	case layer.KindNode, layer.KindName, layer.KindNoName, layer.KindGone, layer.KindDirtyDir, layer.KindDirtyName, layer.KindEnd:
		m.noteMerged(r)
	default:
		m.node(r.Ino)
		if n := m.t.nodes[r.Ino]; n != nil {
			n.eachLink(func(p *node, _ string) { m.up(p) })
		}
	}
}

// noteMerged notes a record of a merged layer that is in the run.
func (m *merger) noteMerged(r *layer.Record) {
	switch r.Kind {
	case layer.KindDirtyDir:
		m.dirs[r.Ino] = struct{}{}
	case layer.KindNode, layer.KindName, layer.KindGone:
		m.node(r.Ino)
	}
	if r.Kind == layer.KindNoName || r.Kind == layer.KindName || r.Kind == layer.KindNode && r.Parent != 0 {
		m.name(r.Parent, r.Name)
	}
}

func (m *merger) marked(r *layer.Record) {
	if r.Seq >= m.mark {
		m.mark, m.commit = r.Seq, r.Commit
	}
}

func (m *merger) node(ino uint64) {
	if _, ok := m.nodes[ino]; !ok {
		m.nodes[ino] = m.t.nodes[ino] != nil
	}
}

func (m *merger) name(parent uint64, name string) {
	k := link64{parent, name}
	if _, ok := m.names[k]; !ok {
		p := m.t.nodes[parent]
		m.names[k] = p != nil && p.isDir() && p.dir.get(name) != nil
	}
}

// changed notes that a name gets another node or goes.
func (m *merger) changed(parent uint64, name string) {
	m.name(parent, name)
	p := m.t.nodes[parent]
	if p == nil || !p.isDir() {
		return
	}
	if n := p.dir.get(name); n != nil {
		m.node(n.ino)
		if n.isDir() {
			m.dirs[n.ino] = struct{}{}
		}
	}
	m.up(p)
}

// up notes that something becomes dirty in p.
func (m *merger) up(p *node) {
	for ; p != nil; p = p.parent {
		m.node(p.ino)
		m.dirs[p.ino] = struct{}{}
	}
}

// describe passes the records of the merged layer to put, whose layers are those
// with an index from first on.
func (m *merger) describe(first int16, put func(*layer.Record) error) error {
	if m.mark != 0 {
		if err := put(&layer.Record{Kind: layer.KindMark, Seq: m.mark, Commit: m.commit}); err != nil {
			return err
		}
	}
	hidden, err := m.lost(put)
	if err != nil {
		return err
	}
	nodes := m.alive()
	for _, n := range nodes {
		if err := m.describeNode(n, first, put); err != nil {
			return err
		}
		for _, name := range hidden[n.ino] {
			if err := put(&layer.Record{Kind: layer.KindNoName, Parent: n.ino, Name: name}); err != nil {
				return err
			}
		}
	}
	for _, n := range nodes {
		if err := m.describeNames(n, put); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		if err := m.describeDirty(n, put); err != nil {
			return err
		}
	}
	for _, ino := range sortedKeys(m.nodes) {
		if m.nodes[ino] && m.t.nodes[ino] == nil {
			if err := put(&layer.Record{Kind: layer.KindGone, Ino: ino}); err != nil {
				return err
			}
		}
	}
	return put(&layer.Record{Kind: layer.KindEnd, Seq: m.t.seq, Ino: m.t.nextIno})
}

// lost takes away the names that were there before. What it returns are, by
// directory, the names of the tree that are gone without having been there.
func (m *merger) lost(put func(*layer.Record) error) (map[uint64][]string, error) {
	keys := make([]link64, 0, len(m.names))
	for k := range m.names {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b link64) int {
		return cmp.Or(cmp.Compare(a.parent, b.parent), cmp.Compare(a.name, b.name))
	})
	hidden := map[uint64][]string{}
	for _, k := range keys {
		if m.names[k] {
			if err := put(&layer.Record{Kind: layer.KindNoName, Parent: k.parent, Name: k.name}); err != nil {
				return nil, err
			}
		} else if p := m.t.nodes[k.parent]; p != nil && p.isDir() {
			if _, ok := p.dir.hidden[k.name]; ok {
				hidden[k.parent] = append(hidden[k.parent], k.name)
			}
		}
	}
	return hidden, nil
}

// alive lists the inodes that may differ and are still there, parents first.
func (m *merger) alive() []*node {
	depth := map[*node]int{}
	nodes := make([]*node, 0, len(m.nodes))
	for ino := range m.nodes {
		n := m.t.nodes[ino]
		if n == nil {
			continue
		}
		nodes = append(nodes, n)
		for p := n.parent; p != nil; p = p.parent {
			depth[n]++
		}
	}
	slices.SortFunc(nodes, func(a, b *node) int {
		return cmp.Or(cmp.Compare(depth[a], depth[b]), cmp.Compare(a.ino, b.ino))
	})
	return nodes
}

func (m *merger) describeNode(n *node, first int16, put func(*layer.Record) error) error {
	r := layer.Record{
		Kind: layer.KindNode, Ino: n.ino, Mode: n.mode, Nlink: n.nlink, Size: n.size, Seq: n.dirtySeq,
	}
	for _, f := range nodeFlags() {
		if n.flags&f.memory != 0 {
			r.Flags |= f.disk
		}
	}
	if n.flags&lower != 0 && n != m.t.root {
		r.OID = n.oid[:m.t.oidLen]
	}
	if n.data >= first {
		r.Flags |= layer.NodeData
	}
	if path, moved := m.t.origins[n.ino]; moved && (n.isDir() || n.converts()) {
		r.Flags, r.Name2 = r.Flags|layer.NodeMoved, path
	}
	if n.parent != nil {
		if _, ok := m.names[link64{n.parent.ino, n.name}]; ok {
			r.Parent, r.Name = n.parent.ino, n.name
		}
	}
	if n.uid != treeID {
		r.Mask, r.UID = r.Mask|layer.SetUID, n.uid
	}
	if n.gid != treeID {
		r.Mask, r.GID = r.Mask|layer.SetGID, n.gid
	}
	if n.atime != treeTime {
		r.Mask, r.Atime = r.Mask|layer.SetAtime, n.atime
	}
	if n.mtime != treeTime {
		r.Mask, r.Mtime = r.Mask|layer.SetMtime, n.mtime
	}
	if n.ctime != treeTime {
		r.Mask, r.Time = r.Mask|layer.SetCtime, n.ctime
	}
	if n.ext != nil {
		r.Target, r.Rdev = n.ext.target, n.ext.rdev
	}
	if err := put(&r); err != nil || n.ext == nil {
		return err
	}
	for _, name := range sortedKeys(n.ext.xattr) {
		x := layer.Record{Kind: layer.KindSetXattr, Time: n.ctime, Ino: n.ino, Name: name, Value: n.ext.xattr[name]}
		if err := put(&x); err != nil {
			return err
		}
	}
	return nil
}

// describeNames gives n its names but the first, which it has already.
func (m *merger) describeNames(n *node, put func(*layer.Record) error) (err error) {
	n.eachLink(func(p *node, name string) {
		if err != nil || p == n.parent && name == n.name {
			return
		}
		if _, ok := m.names[link64{p.ino, name}]; ok {
			err = put(&layer.Record{Kind: layer.KindName, Ino: n.ino, Parent: p.ino, Name: name})
		}
	})
	return err
}

func (m *merger) describeDirty(n *node, put func(*layer.Record) error) error {
	if _, ok := m.dirs[n.ino]; !ok || !n.isDir() {
		return nil
	}
	if err := put(&layer.Record{Kind: layer.KindDirtyDir, Ino: n.ino, Seq: n.dir.below, Whole: n.dir.whole}); err != nil {
		return err
	}
	for _, name := range sortedKeys(n.dir.dirty) {
		r := layer.Record{Kind: layer.KindDirtyName, Parent: n.ino, Name: name, Seq: n.dir.dirty[name]}
		if err := put(&r); err != nil {
			return err
		}
	}
	return nil
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
