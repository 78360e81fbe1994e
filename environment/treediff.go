package environment

import (
	"context"

	"github.com/git-env/git-env/internal/objects"
)

// treeDiff is what turns one tree into another, as edits of single files, in time
// that depends on the directories that differ alone.
type treeDiff struct {
	ctx   context.Context
	r     *objects.Reader
	visit func(objects.Edit)
}

// diffTrees calls visit for each path that is another file in tree b than in tree
// a, or none there ("" is an empty tree). Submodules count as files.
func diffTrees(ctx context.Context, r *objects.Reader, a, b string, visit func(objects.Edit)) error {
	return (&treeDiff{ctx, r, visit}).dir("", a, b)
}

// countChanged counts the paths in which two trees differ.
func countChanged(ctx context.Context, r *objects.Reader, a, b string) (int, error) {
	n := 0
	err := diffTrees(ctx, r, a, b, func(objects.Edit) { n++ })
	return n, err
}

func (d *treeDiff) tree(id string) ([]objects.TreeEntry, error) {
	if id == "" {
		return nil, nil
	}
	return d.r.Tree(d.ctx, id)
}

func (d *treeDiff) dir(prefix, a, b string) error {
	if a == b {
		return nil
	}
	olds, err := d.tree(a)
	if err != nil {
		return err
	}
	news, err := d.tree(b)
	if err != nil {
		return err
	}
	// Most of a large directory is the same.
	for len(olds) > 0 && len(news) > 0 && olds[0] == news[0] {
		olds, news = olds[1:], news[1:]
	}
	for len(olds) > 0 && len(news) > 0 && olds[len(olds)-1] == news[len(news)-1] {
		olds, news = olds[:len(olds)-1], news[:len(news)-1]
	}
	was := make(map[string]objects.TreeEntry, len(olds))
	for _, e := range olds {
		was[e.Name] = e
	}
	for _, e := range news {
		old := was[e.Name]
		delete(was, e.Name)
		if err := d.entry(prefix+e.Name, old, e); err != nil {
			return err
		}
	}
	for _, e := range olds {
		if _, gone := was[e.Name]; gone {
			if err := d.entry(prefix+e.Name, e, objects.TreeEntry{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// entry compares what two trees have under one name; the zero entry is nothing.
func (d *treeDiff) entry(p string, x, y objects.TreeEntry) error {
	if x == y {
		return nil
	}
	sub := func(e objects.TreeEntry) string {
		if e.Mode.IsTree() {
			return e.ID
		}
		return ""
	}
	leaf := func(e objects.TreeEntry) bool { return e.ID != "" && !e.Mode.IsTree() }
	switch {
	case leaf(y):
		d.visit(objects.Edit{Path: p, Mode: y.Mode, ID: y.ID})
	case leaf(x):
		d.visit(objects.Edit{Path: p})
	}
	return d.dir(p+"/", sub(x), sub(y))
}
