package fusefs

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"

	"github.com/git-env/git-env/fusefs/layer"
	"github.com/git-env/git-env/internal/durable"
)

// A log with damage in it is replayed as far as it makes sense: a record about
// something that is not there is skipped, one that finds its place taken means
// that the removal was lost. The records may as well have been forged by who
// could write bytes into the log as a name or an attribute, so that nothing
// about them is taken for granted.

// damagedLayer is what replay found about one layer.
type damagedLayer struct {
	l       *layer.Layer
	rebuilt error // why meta had to be made again, nil when it was not
	// strays are data files whose names are lost, with a name each was once
	// meant to get, or "".
	strays map[uint64]string
	ghosts int // names dropped because what they named is gone
}

// displace makes place for name in p: the record that took it away was lost.
func (t *tree) displace(p *node, name string, now int64) {
	n := p.dir.get(name)
	if n == nil {
		return
	}
	t.detach(p, name)
	t.unlinked(n, now)
}

// sensible reports whether a record behind damage may be applied.
func (t *tree) sensible(r *layer.Record) bool {
	switch r.Kind {
	case layer.KindIntro, layer.KindCreate:
		return t.nameable(r.Parent, r.Name) && r.Ino > dotGitIno
	case layer.KindLink:
		n := t.nodes[r.Ino]
		return t.nameable(r.Parent, r.Name) && n != nil && !n.isDir()
	case layer.KindRename:
		return t.nameable(r.Parent2, r.Name2) && t.nameable(r.Parent, r.Name) && t.movable(r)
	case layer.KindDirtyName:
		return t.nameable(r.Parent, r.Name)
	case layer.KindName:
		return t.nameable(r.Parent, r.Name) && t.free(r)
	case layer.KindNode:
		return r.Ino == rootIno || r.Ino > dotGitIno && (r.Parent == 0 || t.nameable(r.Parent, r.Name) && t.free(r))
	case layer.KindGone:
		return r.Ino > dotGitIno
	}
	return true
}

// free reports whether the inode of r may get one more name: a directory only
// its first.
func (t *tree) free(r *layer.Record) bool {
	n := t.nodes[r.Ino]
	return n == nil || !n.isDir() || n.parent == nil && !inside(t.nodes[r.Parent], n)
}

func (t *tree) nameable(parent uint64, name string) bool {
	return usableName(name) || name == dotGit && parent != rootIno
}

// movable reports whether a rename makes no directory its own descendant.
func (t *tree) movable(r *layer.Record) bool {
	p, p2 := t.nodes[r.Parent], t.nodes[r.Parent2]
	if p == nil || p2 == nil || !p.isDir() || !p2.isDir() {
		return false
	}
	n, over := p.dir.get(r.Name), p2.dir.get(r.Name2)
	if n == nil || inside(p2, n) || n == over {
		return false
	}
	return r.Flags&layer.FlagExchange == 0 || over != nil && !inside(p, over)
}

// settle makes the namespace consistent after layer l, of that index, which
// has damage: what no name leads to is forgotten, and so are names of files
// that were deleted, when that record was lost.
func (t *tree) settle(l *layer.Layer, index int16) (ghosts int) {
	if len(l.Damage()) > 0 {
		for _, n := range t.nodes {
			if n.data != index || n.kind() != syscall.S_IFREG {
				continue
			}
			if _, err := os.Lstat(l.DataPath(n.ino)); !os.IsNotExist(err) {
				continue
			}
			var links []link
			n.eachLink(func(p *node, name string) { links = append(links, link{p, name}) })
			for _, k := range links {
				t.detach(k.parent, k.name)
				t.dirtyName(k.parent, k.name)
				ghosts++
			}
			t.drop(n)
		}
	}
	seen := map[*node]bool{}
	t.reach(t.root, seen)
	for ino, n := range t.nodes {
		if !seen[n] {
			delete(t.nodes, ino)
			continue
		}
		var gone []link
		n.eachLink(func(p *node, name string) {
			if !seen[p] || p.dir.get(name) != n {
				gone = append(gone, link{p, name})
			}
		})
		for _, k := range gone {
			n.dropLink(k.parent, k.name)
		}
		if n != t.root {
			n.nlink = 0
			n.eachLink(func(*node, string) { n.nlink++ })
		}
		t.lead(n)
	}
	return ghosts
}

// lead makes the dirty names above directory n lead to what is dirty in it.
func (t *tree) lead(n *node) {
	if !n.isDir() {
		return
	}
	last := max(n.dir.below, n.dir.whole)
	for _, at := range n.dir.dirty {
		last = max(last, at)
	}
	if last == 0 {
		return
	}
	n.dir.below = max(n.dir.below, last)
	for ; n.parent != nil; n = n.parent {
		t.register(n)
		n.parent.dir.below = max(n.parent.dir.below, last)
	}
}

// reach adds everything below p, and p, to seen.
func (t *tree) reach(p *node, seen map[*node]bool) {
	todo := []*node{p}
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[n] {
			continue
		}
		seen[n] = true
		if n.isDir() {
			for _, e := range n.dir.ents {
				todo = append(todo, e.n)
			}
		}
	}
}

// strays lists the data files of layer l, of that index, that no name leads to.
func (t *tree) strays(l *layer.Layer, index int16) (map[uint64]string, error) {
	found := map[uint64]string{}
	err := l.DataFiles(func(ino uint64) error {
		if n := t.nodes[ino]; n != nil && n.data == index {
			return nil
		}
		if st, err := os.Lstat(l.DataPath(ino)); err == nil && st.Size() > 0 {
			found[ino] = t.meant[ino]
		}
		return nil
	})
	if os.IsNotExist(err) {
		err = nil
	}
	return found, err
}

// Repair says what was wrong with a layer and what became of it.
type Repair struct {
	// Layer is the id of the layer.
	Layer string
	// Meta says why the description of the layer had to be made again, "" when
	// it had not.
	Meta string
	// Bytes of the log could not be read, in Parts parts. What they recorded is
	// lost; copies of them are in Dir.
	Bytes int64
	Parts int
	// Names of files were dropped because the record of their removal is lost.
	Names int
	// Files are paths on the host, in Dir, of the content of files whose names
	// are lost.
	Files []string
	Dir   string
}

// String tells people in one line.
func (r Repair) String() string {
	var said []string
	if r.Meta != "" {
		said = append(said, "its description was made again ("+r.Meta+")")
	}
	if r.Parts > 0 {
		said = append(said, fmt.Sprintf("%d bytes of its log in %d place(s) cannot be read and what they recorded is lost", r.Bytes, r.Parts))
	}
	if r.Names > 0 {
		said = append(said, fmt.Sprintf("%d name(s) of files that had been deleted were dropped", r.Names))
	}
	if n := len(r.Files); n > 0 {
		said = append(said, fmt.Sprintf("the content of %d file(s) whose names are lost is kept", n))
	}
	if r.Dir != "" {
		said = append(said, "see "+r.Dir)
	}
	return "layer " + r.Layer + " of the workspace was damaged: " + strings.Join(said, "; ")
}

// salvage keeps what replay found to be lost in a place of its own, and returns
// what was not told before. It never changes a layer.
func salvage(layerDir string, damaged []damagedLayer) ([]Repair, error) {
	if len(damaged) == 0 {
		return nil, nil
	}
	dir, err := filepath.EvalSymlinks(layerDir)
	if err != nil {
		return nil, err
	}
	var repairs []Repair
	for _, d := range damaged {
		id := d.l.Meta().ID
		r, err := d.save(filepath.Join(filepath.Dir(dir), "lost", id))
		if err != nil {
			return nil, fmt.Errorf("keeping what is lost of layer %s: %w", id, err)
		}
		if r.Meta != "" || r.Parts > 0 || len(r.Files) > 0 {
			repairs = append(repairs, r)
		}
	}
	return repairs, nil
}

// toldFile lists what was told about a layer, a line each.
const toldFile = "told"

// save puts what is new of the damage into dir.
func (d *damagedLayer) save(dir string) (Repair, error) {
	r := Repair{Layer: d.l.Meta().ID}
	if d.rebuilt != nil {
		r.Meta = d.rebuilt.Error()
	}
	data, err := os.ReadFile(filepath.Join(dir, toldFile))
	if err != nil && !os.IsNotExist(err) {
		return r, err
	}
	told := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		told[strings.TrimSuffix(line, "\n")] = true
	}
	var fresh []layer.Damage
	var lines []string
	for _, part := range d.l.Damage() {
		if line := fmt.Sprintf("log %d+%d", part.Offset, part.Length); !told[line] {
			fresh, lines = append(fresh, part), append(lines, line)
			r.Bytes, r.Parts = r.Bytes+part.Length, r.Parts+1
		}
	}
	if line := fmt.Sprintf("cut %d", d.l.Cut()); d.l.Cut() > 0 && !told[line] {
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		return r, nil
	}
	r.Names = d.ghosts
	if len(fresh)+len(d.strays) > 0 {
		r.Dir = dir
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return r, err
	}
	if err := d.keep(dir, fresh, &r); err != nil {
		return r, err
	}
	return r, durable.WriteFile(filepath.Join(dir, toldFile), append(data, strings.Join(lines, "\n")+"\n"...), 0o600)
}

// maxKept bounds the copy of one damaged part of a log.
const maxKept = 64 << 20

// keep copies the damaged parts of the log to dir and links the strays there.
func (d *damagedLayer) keep(dir string, parts []layer.Damage, r *Repair) error {
	for _, part := range parts {
		part.Length = min(part.Length, maxKept)
		raw, err := d.l.ReadDamage(part)
		if err == nil {
			err = durable.WriteFile(filepath.Join(dir, fmt.Sprintf("log-%d", part.Offset)), raw, 0o600)
		}
		if err != nil {
			return err
		}
	}
	for ino, name := range d.strays {
		path := filepath.Join(dir, strconv.FormatUint(ino, 16)+harmless(name))
		if err := os.Link(d.l.DataPath(ino), path); err != nil && !os.IsExist(err) {
			return err
		}
		r.Files = append(r.Files, path)
	}
	sort.Strings(r.Files)
	return nil
}

// harmless makes a suffix of a file's lost name.
func harmless(name string) string {
	name = strings.Map(func(c rune) rune {
		if c > ' ' && c < 0x7f && c != '/' {
			return c
		}
		return '_'
	}, name)
	if name == "" {
		return ""
	}
	return "-" + name[:min(len(name), 64)]
}
