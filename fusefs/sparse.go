package fusefs

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// A sparse workspace shows some paths of the git tree (MountSpec.Paths) and the
// directories that lead to them. What else the tree has in those directories is
// hidden: it is not there to look at, and nothing can take its name, so that
// whoever commits the workspace may rely on it being as it was.

// cone is what is shown of a directory that is not shown as a whole.
type cone struct {
	path string
	tree string // its id
	// shown has the names that are shown, nil for one as a whole.
	shown map[string]*cone
	// hidden are the names of the tree that are not.
	hidden map[string]struct{}
}

// newCone returns what the paths leave of the root, nil when they leave it whole.
func newCone(paths []string) *cone {
	if len(paths) == 0 {
		return nil
	}
	root := &cone{shown: map[string]*cone{}}
	for _, p := range paths {
		if !root.show(splitPath(p)) {
			return nil
		}
	}
	return root
}

// show adds a path, and reports whether it is one below the directory.
func (c *cone) show(names []string) bool {
	if len(names) == 0 {
		return false
	}
	sub, there := c.shown[names[0]]
	switch {
	case there && sub == nil: // as a whole already
	case len(names) == 1:
		c.shown[names[0]] = nil
	case sub == nil:
		sub = &cone{path: join(c.path, names[0]), shown: map[string]*cone{}}
		c.shown[names[0]] = sub
		sub.show(names[1:])
	default:
		sub.show(names[1:])
	}
	return true
}

// mask leaves of a tree what is shown. c may be nil, for all of it.
func (c *cone) mask(all []TreeEntry) []TreeEntry {
	if c == nil {
		return all
	}
	var left []TreeEntry
	hidden := map[string]struct{}{}
	for _, e := range all {
		if sub, ok := c.shown[e.Name]; ok {
			left = append(left, e)
			if sub != nil && sub.tree == "" && e.Mode&syscall.S_IFMT == syscall.S_IFDIR { // the tree never changes
				sub.tree = e.ID
			}
		} else {
			hidden[e.Name] = struct{}{}
		}
	}
	if c.hidden == nil {
		c.hidden = hidden
	}
	return left
}

// loadCones reads the directories that are not shown as a whole, and reports
// whether anything in n is hidden: one that has nothing hidden in it is like any
// other. It is called once, before anything is served: w.cones does not change
// afterwards.
func (w *workspace) loadCones(ctx context.Context, n *node, c *cone) (bool, error) {
	if c == nil {
		return false, nil
	}
	w.cones[n.ino] = c
	if err := w.load(ctx, n); err != nil {
		return false, err
	}
	hides := len(c.hidden) > 0
	for name, sub := range c.shown {
		d := n.dir.get(name)
		if sub == nil || d == nil || !d.isDir() || d.flags&(lower|gitlink) != lower || w.t.oidString(&d.oid) != sub.tree {
			continue // nothing of it is hidden, or it could not have gone away
		}
		below, err := w.loadCones(ctx, d, sub)
		if err != nil {
			return false, err
		}
		hides = hides || below
	}
	if !hides {
		delete(w.cones, n.ino)
	}
	return hides, nil
}

// hides reports whether the name is hidden in directory ino, and remembers that
// somebody wanted to write there.
func (w *workspace) hides(ino uint64, name string) bool {
	c := w.cones[ino]
	if c == nil {
		return false
	}
	if _, hidden := c.hidden[name]; !hidden {
		return false
	}
	w.refusals.add(Refusal{Path: join(c.path, name)})
	return true
}

// sought remembers that somebody looked for a name that is hidden in p, and
// reports whether it is.
func (w *workspace) sought(p *node, name string) bool {
	c := w.cones[p.ino]
	if c == nil {
		return false
	}
	_, hidden := c.hidden[name]
	if hidden {
		w.refusals.add(Refusal{Path: join(c.path, name), Sought: true})
	}
	return hidden
}

// leads reports whether one of the nodes is a directory with hidden names
// somewhere in it, and remembers that somebody wanted to move or remove it.
func (w *workspace) leads(nodes ...*node) bool {
	if w.cones == nil {
		return false
	}
	for _, n := range nodes {
		if n == nil {
			continue
		}
		if c := w.cones[n.ino]; c != nil {
			w.refusals.add(Refusal{Path: c.path, Leads: true})
			return true
		}
	}
	return false
}

// A Refusal is a change that a sparse workspace did not allow.
type Refusal struct {
	// Path is what was to be changed, from the root.
	Path string
	// Leads says that the path is not hidden itself: it is a directory that has
	// hidden ones in it, which therefore cannot be moved or removed.
	Leads bool
	// Sought says that the path was only looked for: that it is hidden may be why
	// a command found a file missing, or could not make one below it.
	Sought bool
}

// maxRefusals bounds how many refusals are remembered until they are told.
const maxRefusals = 20

// refusals are the first few since they were last asked for. It is safe for
// concurrent use.
type refusals struct {
	mu   sync.Mutex
	list []Refusal // guarded by mu
	more int       // guarded by mu: how many are not in list
}

// add remembers x. Of one path, what was refused counts, not that it was looked
// for, as everything is first.
func (r *refusals) add(x Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, y := range r.list {
		if x.Path == y.Path {
			if y.Sought {
				r.list[i] = x
			}
			return
		}
	}
	if len(r.list) == maxRefusals {
		r.more++
		return
	}
	r.list = append(r.list, x)
}

func (r *refusals) take() ([]Refusal, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list, more := r.list, r.more
	r.list, r.more = nil, 0
	return list, more
}

// refuse is the answer to a change that hidden names are in the way of.
const refuse = fuse.EPERM

// checkPaths refuses paths that no tree can have.
func checkPaths(paths []string) error {
	for _, p := range paths {
		for name := range strings.SplitSeq(p, "/") {
			if !usableName(name) {
				return fmt.Errorf("bad path %q", p)
			}
		}
	}
	return nil
}
