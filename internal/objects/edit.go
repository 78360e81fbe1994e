package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrUnsafePath means that a path has a component for which UnsafeName holds.
var ErrUnsafePath = errors.New("unsafe path")

// Edit is one change of a tree: the entry at Path becomes ID with Mode,
// whatever was there; with an empty ID a file or a whole directory goes away.
type Edit struct {
	Path string
	Mode Mode
	ID   string
}

// EditTree applies edits to the tree root ("" for an empty one) one after the
// other and returns the new tree. Only directories on the way to a change are
// read and written. A file gives way to a directory and the other way round;
// directories left empty vanish; deleting what is not there is no error. Paths
// git would not check out are refused with ErrUnsafePath, unless they are to be
// deleted.
func EditTree(ctx context.Context, r *Reader, w *Writer, root string, edits []Edit) (string, error) {
	top := &editNode{}
	for _, e := range edits {
		if err := top.insert(e); err != nil {
			return "", err
		}
	}
	empty := EmptyTree(w.Format())
	if root == "" {
		root = empty
	}
	t := treeEditor{ctx, r, w, empty}
	id, err := t.apply(root, top)
	if err != nil {
		return "", err
	}
	if id == empty && root != empty {
		return w.Tree(nil)
	}
	return id, nil
}

// editNode is the changes at and below one path.
type editNode struct {
	// set replaces what was there, before the children apply; an empty ID
	// removes it.
	set      *Edit
	children map[string]*editNode
}

func (n *editNode) insert(e Edit) error {
	for name := range strings.SplitSeq(e.Path, "/") {
		if name == "" || name == "." || name == ".." || strings.ContainsRune(name, 0) || e.ID != "" && UnsafeName(name) {
			return fmt.Errorf("%w: %q", ErrUnsafePath, e.Path)
		}
		if n.set != nil && n.set.ID != "" && !n.set.Mode.IsTree() {
			if e.ID == "" {
				return nil // nothing is below a file
			}
			n.set = &Edit{} // the file gives way to a directory
		}
		child := n.children[name]
		if child == nil {
			child = &editNode{}
			if n.children == nil {
				n.children = map[string]*editNode{}
			}
			n.children[name] = child
		}
		n = child
	}
	n.set, n.children = &e, nil
	return nil
}

type treeEditor struct {
	ctx   context.Context
	r     *Reader
	w     *Writer
	empty string
}

// apply returns the tree id with the children of n applied.
func (t *treeEditor) apply(id string, n *editNode) (string, error) {
	var old []TreeEntry
	if id != t.empty {
		var err error
		if old, err = t.r.Tree(t.ctx, id); err != nil {
			return "", err
		}
	}
	entries := make([]TreeEntry, 0, len(old)+len(n.children))
	seen := make(map[string]bool, len(n.children))
	for _, e := range old {
		child := n.children[e.Name]
		if child == nil {
			entries = append(entries, e)
			continue
		}
		seen[e.Name] = true
		entry, ok, err := t.entry(e, child)
		if err != nil {
			return "", err
		}
		if ok {
			entries = append(entries, entry)
		}
	}
	for name, child := range n.children {
		if seen[name] {
			continue
		}
		entry, ok, err := t.entry(TreeEntry{Name: name}, child)
		if err != nil {
			return "", err
		}
		if ok {
			entries = append(entries, entry)
		}
	}
	switch {
	case len(entries) == 0:
		return t.empty, nil
	case slices.Equal(entries, old):
		return id, nil
	}
	if !slices.IsSortedFunc(entries, compareEntries) {
		slices.SortFunc(entries, compareEntries)
	}
	id, err := t.w.Tree(entries)
	if err == nil {
		t.r.trees.put(id, entries) // it is read next, to see what changed
	}
	return id, err
}

// entry applies n to one entry, whose ID is empty when it is new.
func (t *treeEditor) entry(e TreeEntry, n *editNode) (TreeEntry, bool, error) {
	if n.set != nil {
		e.Mode, e.ID = n.set.Mode, n.set.ID
	}
	if len(n.children) > 0 {
		base := t.empty
		if e.ID != "" && e.Mode.IsTree() {
			base = e.ID
		}
		id, err := t.apply(base, n)
		if err != nil {
			return e, false, err
		}
		if id != t.empty || base != t.empty || e.ID == "" {
			e.Mode, e.ID = ModeTree, id
		} // else only deletions were below a file, which stays
	}
	return e, e.ID != "" && !(e.Mode.IsTree() && e.ID == t.empty), nil
}
