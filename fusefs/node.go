package fusefs

import (
	"encoding/hex"
	"slices"
	"sort"
	"sync/atomic"
	"syscall"
)

// Inode numbers with a meaning of their own.
const (
	rootIno   = 1
	dotGitIno = 2
	// newIno is the bit of inode numbers of files that are not from the tree.
	newIno = 1 << 63
)

const noData = -1

// flags of a node
const (
	known     = 1 << iota // a record of the stack introduces it
	lower                 // from the git tree: oid is its blob, tree or commit
	mtimeSet              // mtime holds although a data file has another one
	touched               // a directory in which something was changed, ever
	hasCap                // has the attribute security.capability
	gitlink               // lower, and oid is the commit of a submodule
	unwritten             // new and empty: there is no data file yet; never known at replay
	convert               // lower, and the content may be a conversion of the blob
	spare                 // unwritten, but an empty data file was made ahead
	sized                 // convert, and size is that of the content
)

// node is an inode. All fields but lookups are guarded by workspace.mu.
// A million of them must fit into memory: what few have is in ext.
type node struct {
	ino      uint64
	size     int64 // of a blob or link; the size of a data file is its own
	atime    int64
	mtime    int64
	ctime    int64
	dirtySeq uint64 // of the last record about its content
	lookups  atomic.Int64
	parent   *node // with name: the first link; nil without one
	name     string
	dir      *dir // directories only
	ext      *ext // may be nil
	oid      [32]byte
	mode     uint32 // type and permissions
	uid, gid uint32
	nlink    uint32
	data     int16 // index of the layer with the bytes, or noData
	flags    uint16
}

type ext struct {
	links  []link // all but the first
	xattr  map[string][]byte
	target string
	rdev   uint32
	nodeid uint64 // what the kernel calls it when that is not ino; see opens
}

type link struct {
	parent *node
	name   string
}

func (n *node) kind() uint32 { return n.mode & syscall.S_IFMT }

// plainLower reports whether n is a file of the tree, not empty, that shows its
// blob as it is.
func (n *node) plainLower() bool {
	return n.flags&lower != 0 && n.data == noData && n.kind() == syscall.S_IFREG && !n.converts() && n.size > 0
}

func (n *node) isDir() bool { return n.dir != nil }

func (n *node) more() *ext {
	if n.ext == nil {
		n.ext = &ext{}
	}
	return n.ext
}

func (n *node) addLink(p *node, name string) {
	if n.parent == nil {
		n.parent, n.name = p, name
		return
	}
	e := n.more()
	e.links = append(e.links, link{p, name})
}

func (n *node) dropLink(p *node, name string) {
	if n.parent == p && n.name == name {
		n.parent, n.name = nil, ""
		if n.ext != nil && len(n.ext.links) > 0 {
			l := n.ext.links[0]
			n.ext.links = slices.Delete(n.ext.links, 0, 1)
			n.parent, n.name = l.parent, l.name
		}
		return
	}
	if n.ext != nil {
		n.ext.links = slices.DeleteFunc(n.ext.links, func(l link) bool {
			return l.parent == p && l.name == name
		})
	}
}

// eachLink calls fn for every name the node has.
func (n *node) eachLink(fn func(p *node, name string)) {
	if n.parent == nil {
		return
	}
	fn(n.parent, n.name)
	if n.ext != nil {
		for _, l := range n.ext.links {
			fn(l.parent, l.name)
		}
	}
}

// dir is the content of a directory.
type dir struct {
	ents map[string]*dirent
	// order has the entries by ascending cookie. Entries that were removed
	// stay with a nil node until there are many; cookies never change, so that
	// a reader that comes back finds its place whatever was removed meanwhile.
	order  []*dirent
	dead   int
	next   uint64
	loaded bool
	ahead  bool // files of it were read ahead, unasked and not asked for since
	// hidden are names of the tree that are gone, until the tree is loaded.
	hidden map[string]struct{}
	// dirty has the changed names with the number of the last change; 0 when
	// only something below the name changed. below is the last change
	// anywhere inside; whenever it is not 0 the parent's dirty has the name.
	dirty map[string]uint64
	below uint64
	whole uint64 // when it became new or moved, 0 for not since the last mark
	// subdirs are the directories among ents, unread those of the tree that
	// are not there yet; see nlink.go.
	subdirs, unread int32
}

type dirent struct {
	name   string
	cookie uint64
	n      *node
}

// Cookies 1 to 3 are ".", ".." and the mount's own .git.
const firstCookie = 4

func newDir(loaded bool) *dir {
	d := &dir{ents: map[string]*dirent{}, next: firstCookie, loaded: loaded}
	if !loaded {
		d.unread = unknown
	}
	return d
}

func (d *dir) get(name string) *node {
	if e := d.ents[name]; e != nil {
		return e.n
	}
	return nil
}

func (d *dir) add(name string, n *node) {
	e := &dirent{name: name, cookie: d.next, n: n}
	d.next++
	d.ents[name] = e
	d.order = append(d.order, e)
	if n.isDir() {
		d.subdirs++
	}
}

func (d *dir) remove(name string) {
	if !d.loaded {
		if d.hidden == nil {
			d.hidden = map[string]struct{}{}
		}
		d.hidden[name] = struct{}{}
	}
	e := d.ents[name]
	if e == nil {
		return
	}
	delete(d.ents, name)
	if e.n.isDir() {
		d.subdirs--
	}
	e.n = nil
	d.dead++
	if d.dead > 64 && d.dead > len(d.order)/2 {
		d.order = slices.DeleteFunc(d.order, func(e *dirent) bool { return e.n == nil })
		d.dead = 0
	}
}

// after returns the entries, removed ones among them, with cookies above c.
func (d *dir) after(c uint64) []*dirent {
	i := sort.Search(len(d.order), func(i int) bool { return d.order[i].cookie > c })
	return d.order[i:]
}

// hashIno is the inode number of the entry name of a directory of the tree.
// It depends on nothing else, so that it is the same in every mount; it is
// part of the format. The result is never one of the reserved numbers and has
// the top bit clear.
func hashIno(parent uint64, name string) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i := range 8 {
		h = (h ^ parent>>(8*i)&0xff) * prime
	}
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * prime
	}
	// FNV alone is weak in the high bits for short names.
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	h &^= newIno
	if h <= dotGitIno {
		h += dotGitIno + 1
	}
	return h
}

func (t *tree) oidString(o *[32]byte) string { return hex.EncodeToString(o[:t.oidLen]) }
