package fusefs

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"syscall"
	"time"

	"github.com/git-env/git-env/internal/conversion"
)

// A file of the tree shows what git checkout would have written for it, which is
// not its blob where line ends are converted, a keyword is expanded, an encoding
// or a filter is configured. Such a node has the flag convert. Its rule, and
// above all its size, are found out when they are needed; sized says that they
// were. What counts is the path that the file has in the tree, its origin,
// wherever it was moved to: a checkout does not rewrite what is moved either.

// unsettled reports whether the size of n has to be found out. mu is held.
func (n *node) unsettled() bool {
	return n.flags&(convert|sized) == convert && n.data == noData
}

// converts reports whether the content of n is, or may be, a conversion of its
// blob. mu is held.
func (n *node) converts() bool { return n.flags&convert != 0 && n.data == noData }

// origin is the path of a lower node in the git tree.
func (t *tree) origin(n *node) string {
	if path, moved := t.origins[n.ino]; moved {
		return path
	}
	if n.parent == nil {
		return ""
	}
	return join(t.origin(n.parent), n.name)
}

// keepOrigin remembers where n came from before it loses the name by which that
// is known.
func (t *tree) keepOrigin(n *node, p *node, name string) {
	if n.flags&lower == 0 || n.parent != p || n.name != name || !n.isDir() && !n.converts() {
		return
	}
	if _, kept := t.origins[n.ino]; kept {
		return
	}
	t.setOrigin(n, t.origin(n))
}

func (t *tree) setOrigin(n *node, path string) {
	if t.origins == nil {
		t.origins = map[uint64]string{}
	}
	t.origins[n.ino] = path
}

// setRule says how the content of n comes about; nil for as stored, which is of
// size bytes.
func (t *tree) setRule(n *node, r *conversion.Rule, size int64) {
	if r == nil {
		n.flags &^= convert
		n.size = size
		delete(t.origins, n.ino)
		return
	}
	n.flags |= convert
	if t.rules == nil {
		t.rules = map[uint64]*conversion.Rule{}
	}
	t.rules[n.ino] = r
}

// settleLoaded tells a node that a record brought, and that its tree now is
// read for, how its content comes about.
func (t *tree) settleLoaded(p, n *node, e lowerEntry) {
	if n.unsettled() && t.rules[n.ino] == nil && n.parent == p && n.name == e.name &&
		string(n.oid[:t.oidLen]) == string(e.oid) && t.origin(n) == join(t.origin(p), e.name) {
		t.setRule(n, e.rule, e.size)
	}
}

// attributesFile returns the id of the .gitattributes among entries, "" for none.
func attributesFile(entries []TreeEntry) string {
	for _, e := range entries {
		if e.Name == dotGitAttributes && e.Mode&syscall.S_IFMT == syscall.S_IFREG {
			return e.ID
		}
	}
	return ""
}

// rulesFor fills in the rules of a directory's entries; file is the id of its
// .gitattributes.
func (w *workspace) rulesFor(ctx context.Context, n *node, file string, entries []lowerEntry) error {
	var names []string
	var at []int
	for i, e := range entries {
		if e.mode&syscall.S_IFMT != syscall.S_IFREG {
			continue
		}
		names, at = append(names, e.name), append(at, i)
	}
	w.mu.RLock()
	dir := w.t.origin(n)
	w.mu.RUnlock()
	tree, err := w.conv.get(ctx)
	if err != nil {
		return err
	}
	rules, err := tree.Rules(ctx, dir, file, names)
	if err != nil {
		return fmt.Errorf("attributes in %q: %w", dir, err)
	}
	for i, r := range rules {
		entries[at[i]].rule = r
	}
	return nil
}

const dotGitAttributes = ".gitattributes"

// lowerContent is what the content of a lower file is made of.
type lowerContent struct {
	id   string
	size int64            // of the content, -1 when it is not known
	rule *conversion.Rule // nil: the blob itself
	path string           // in the git tree
}

// contentOf says what the content of inode ino is made of, asking git when it is
// a node that was known from the log alone.
func (w *workspace) contentOf(ctx context.Context, ino uint64) (lowerContent, error) {
	w.mu.RLock()
	n := w.t.nodes[ino]
	if n == nil || n.flags&lower == 0 || n.data != noData {
		w.mu.RUnlock()
		return lowerContent{}, syscall.ESTALE
	}
	c := lowerContent{id: w.t.oidString(&n.oid), size: n.size, rule: w.t.rules[ino]}
	plain := !n.converts()
	if n.unsettled() {
		c.size = -1
	}
	if !plain {
		c.path = w.t.origin(n)
	}
	w.mu.RUnlock()
	if plain {
		c.rule = nil
	}
	if plain || c.rule != nil {
		return c, nil
	}
	tree, err := w.conv.get(ctx)
	if err != nil {
		return c, err
	}
	if c.rule, err = tree.Rule(ctx, c.path); err != nil {
		return c, fmt.Errorf("attributes of %q: %w", c.path, err)
	}
	if c.rule == nil {
		sizes, err := w.objs.Sizes(ctx, []string{c.id})
		if err != nil {
			return c, err
		}
		if c.size = sizes[0]; c.size < 0 {
			c.size = w.blobs.lostSize(c.id)
		}
	}
	w.mu.Lock()
	w.t.setRule(n, c.rule, c.size)
	w.mu.Unlock()
	return c, nil
}

// openLower opens the content of a lower file, making it first if need be.
func (w *workspace) openLower(ctx context.Context, ino uint64) (backingFile, error) {
	c, err := w.contentOf(ctx, ino)
	if err != nil {
		return backingFile{}, err
	}
	if c.rule == nil {
		return w.openBlob(ino, c.id, c.size)
	}
	tree, err := w.conv.get(ctx)
	if err != nil {
		return backingFile{}, err
	}
	f, size, err := w.conv.store.open(ctx, tree, c)
	if err != nil {
		return backingFile{}, fmt.Errorf("%q cannot be converted: %w", c.path, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := w.t.nodes[ino]; n != nil && n.unsettled() {
		n.size = size
		n.flags |= sized
	}
	return backingFile{fd: int(f.Fd()), file: f}, nil
}

// settle finds out the size of ino if it is not known. A failure is logged: the
// file is there nevertheless, and reading it tells of it.
func (w *workspace) settle(ino uint64) {
	w.mu.RLock()
	n := w.t.nodes[ino]
	need := n != nil && n.unsettled()
	w.mu.RUnlock()
	if !need {
		return
	}
	w.present(ino)
}

// present makes the converted content of nodes be there as files.
func (w *workspace) present(inos ...uint64) {
	for _, ino := range inos {
		c, err := w.contentOf(context.Background(), ino)
		if err == nil && c.rule != nil {
			var f backingFile
			if f, err = w.openLower(context.Background(), ino); err == nil {
				f.close()
			}
		}
		if err != nil {
			w.log.Printf("%s: %v", w.spec.ID, err)
		}
	}
}

// convertedIn returns the converted ones of the named entries of directory p.
func convertedIn(p *node, names iter.Seq[string]) []uint64 {
	var inos []uint64
	for name := range names {
		if n := p.dir.get(name); n != nil && n.converts() {
			inos = append(inos, n.ino)
		}
	}
	return inos
}

// convertedFile is where the converted content of n is, "" when that could not
// be made. mu is held.
func (w *workspace) convertedFile(n *node) string {
	rule := w.t.rules[n.ino]
	if rule == nil || n.flags&sized == 0 {
		return ""
	}
	return w.conv.store.path(w.t.oidString(&n.oid), rule.Key(w.t.origin(n)), n.size)
}

// slowLookup reports whether looking up a name in directory ino has to wait for
// its tree, or for the size of the file.
func (w *workspace) slowLookup(ino uint64, arg []byte) bool {
	name, _, _ := bytes.Cut(arg, []byte{0})
	w.mu.RLock()
	defer w.mu.RUnlock()
	p := w.t.nodes[ino]
	if p == nil || !p.isDir() {
		return false
	}
	e := p.dir.ents[string(name)]
	return !p.dir.loaded || e != nil && e.n.unsettled()
}

func (w *workspace) isUnsettled(ino uint64) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	n := w.t.nodes[ino]
	return n != nil && n.unsettled()
}

// attrTime is how long the kernel may trust the attributes of n: a size or a
// link count that is not known yet is to be asked for again. mu is held.
func attrTime(n *node) time.Duration {
	if n.unsettled() || !n.counted() {
		return 0
	}
	return forever
}
