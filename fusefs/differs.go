package fusefs

import (
	"fmt"
	"maps"
	"slices"
)

// differs says in what o is another namespace than t, "" for in nothing. Layers
// from first on count as one. Only what records make is compared.
func (t *tree) differs(o *tree, first int16) string {
	if t.seq != o.seq || t.nextIno != o.nextIno || len(t.nodes) != len(o.nodes) {
		return fmt.Sprintf("records %d and %d, next inode %x and %x, nodes %d and %d",
			t.seq, o.seq, t.nextIno, o.nextIno, len(t.nodes), len(o.nodes))
	}
	for ino, n := range t.nodes {
		m := o.nodes[ino]
		if m == nil {
			return fmt.Sprintf("inode %x is missing", ino)
		}
		what := n.differs(m, first)
		if what == "" && n.flags&lower != 0 && (n.isDir() || n.converts()) && t.origin(n) != o.origin(m) {
			what = "place in the tree"
		}
		if what != "" {
			return fmt.Sprintf("inode %x (%q): %s", ino, n.name, what)
		}
	}
	return ""
}

func (n *node) differs(m *node, first int16) string {
	switch {
	case n.mode != m.mode || n.uid != m.uid || n.gid != m.gid || n.nlink != m.nlink || n.flags != m.flags:
		return fmt.Sprintf("mode %o and %o, links %d and %d, flags %b and %b", n.mode, m.mode, n.nlink, m.nlink, n.flags, m.flags)
	case n.atime != m.atime || n.mtime != m.mtime || n.ctime != m.ctime:
		return "times"
	case n.dirtySeq != m.dirtySeq:
		return fmt.Sprintf("dirty %d and %d", n.dirtySeq, m.dirtySeq)
	case n.size != m.size || n.oid != m.oid:
		return "content of the tree"
	case min(n.data, first) != min(m.data, first):
		return fmt.Sprintf("data in %d and %d", n.data, m.data)
	case !slices.Equal(n.linkList(), m.linkList()):
		return "names"
	case n.isDir() != m.isDir() || n.isDir() && n.dir.differs(m.dir):
		return "as a directory"
	}
	a, b := n.ext, m.ext
	if a == nil {
		a = &ext{}
	}
	if b == nil {
		b = &ext{}
	}
	same := a.target == b.target && a.rdev == b.rdev && maps.EqualFunc(a.xattr, b.xattr, slices.Equal)
	if !same {
		return "target, device or extended attributes"
	}
	return ""
}

func (n *node) linkList() []string {
	var all []string
	n.eachLink(func(p *node, name string) { all = append(all, fmt.Sprintf("%x/%s", p.ino, name)) })
	slices.Sort(all)
	return all
}

func (d *dir) differs(e *dir) bool {
	if d.loaded != e.loaded || d.below != e.below || d.whole != e.whole || !maps.Equal(d.dirty, e.dirty) ||
		!maps.Equal(d.hidden, e.hidden) || len(d.ents) != len(e.ents) {
		return true
	}
	for name := range d.ents {
		n, m := d.get(name), e.get(name)
		if n == nil || m == nil || n.ino != m.ino {
			return true
		}
	}
	return false
}
