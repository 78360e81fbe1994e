package fusefs

import (
	"context"
	"slices"

	"github.com/git-env/git-env/internal/objects"
)

// A Cone says which paths of a tree a sparse workspace hides. A nil Cone hides
// nothing. It is immutable.
type Cone struct{ root *cone }

// ReadCone returns the cone of MountSpec.Paths in a tree; nil when that hides
// nothing.
func ReadCone(ctx context.Context, r *objects.Reader, tree string, paths []string) (*Cone, error) {
	root := newCone(paths)
	if root == nil {
		return nil, nil
	}
	hides, err := root.read(ctx, gitObjects{r}, tree)
	if err != nil || !hides {
		return nil, err
	}
	return &Cone{root}, nil
}

// read fills in what is hidden in a tree, and reports whether anything is.
func (c *cone) read(ctx context.Context, objs Objects, tree string) (bool, error) {
	all, err := objs.Tree(ctx, tree)
	if err != nil {
		return false, err
	}
	c.mask(all)
	hides := len(c.hidden) > 0
	for name, sub := range c.shown {
		if sub == nil {
			continue
		}
		below := false
		if sub.tree != "" {
			if below, err = sub.read(ctx, objs, sub.tree); err != nil {
				return false, err
			}
		}
		if !below {
			c.shown[name] = nil
		}
		hides = hides || below
	}
	return hides, nil
}

// Hides reports whether path, or a directory that it is in, is hidden.
func (c *Cone) Hides(path string) bool {
	if c == nil {
		return false
	}
	at := c.root
	for _, name := range splitPath(path) {
		if _, hidden := at.hidden[name]; hidden {
			return true
		}
		if at = at.shown[name]; at == nil {
			return false
		}
	}
	return false
}

// Leads reports whether path is a directory that has something hidden in it and
// is not hidden itself.
func (c *Cone) Leads(path string) bool {
	if c == nil {
		return false
	}
	at := c.root
	for _, name := range splitPath(path) {
		if at = at.shown[name]; at == nil {
			return false
		}
	}
	return true
}

// Hidden returns the paths that are hidden, each with all that is below it, in
// order.
func (c *Cone) Hidden() []string {
	if c == nil {
		return nil
	}
	var list []string
	c.root.each(func(path string) { list = append(list, path) })
	slices.Sort(list)
	return list
}

func (c *cone) each(fn func(path string)) {
	for name := range c.hidden {
		fn(join(c.path, name))
	}
	for _, sub := range c.shown {
		if sub != nil {
			sub.each(fn)
		}
	}
}
