package environment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/internal/objects"
)

const (
	oNofollow = syscall.O_NOFOLLOW
	oNonblock = syscall.O_NONBLOCK
)

// changeSet is what git would commit of a workspace, found from the file
// server's account of what is dirty, never by walking the tree.
type changeSet struct {
	seq     uint64 // the account this is true for
	files   []changedFile
	deleted []string
	// ignored and held are paths that stay in the workspace: ignored by git's
	// rules, held back for their size or a name git refuses.
	ignored []string
	held    []string
	isHeld  map[string]bool // held, to look up
	guard   *guard          // of what must not be committed
	warn    []string
	rules   string // the rules outside of the tree that were followed
	all     bool   // what was left out before was looked at too
}

type changedFile struct {
	path string
	ent  fusefs.DirtyEntry
}

func (c *changeSet) empty() bool { return len(c.files) == 0 && len(c.deleted) == 0 }

// paths lists what would be committed.
func (c *changeSet) paths() []string {
	out := slices.Clone(c.deleted)
	for _, f := range c.files {
		out = append(out, f.path)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// treeView is what a collector needs of a workspace.
type treeView interface {
	fileView
	dirty(ctx context.Context, dirs []string) (fusefs.Dirty, error)
	list(ctx context.Context, dirs []string) ([][]fusefs.DirtyEntry, error)
}

// job is a directory to look at.
type job struct {
	path  string
	whole bool   // new or moved: everything in it counts
	head  string // its tree in HEAD, "" when HEAD has none
}

// collector walks the dirty part of a workspace, a level at a time: one
// question to the file server and one to git's ignore rules per level.
type collector struct {
	view    treeView
	scratch *scratch
	reader  *objects.Reader
	maxSize int64
	cone    *fusefs.Cone // what is not in the workspace and stays as it is
	set     changeSet
	next    []job
	through []job // directories to look through for what is not tracked
	cands   []candidate
	ents    []fusefs.DirtyEntry // of cands
}

// collect finds what git would commit against the tree head. again names paths
// that were left out before and are to be looked at anew; with all, everything is
// that is not tracked and not like the branch.
func (c *collector) collect(ctx context.Context, head string, again []string, all bool) (*changeSet, error) {
	c.next = []job{{head: head}}
	if all {
		c.through = []job{{head: head}}
	}
	first := true
	for len(c.next) > 0 || len(c.through) > 0 {
		jobs := c.next
		c.next = nil
		lists, err := c.ask(ctx, jobs, first)
		if err != nil {
			return nil, err
		}
		for i, j := range jobs {
			if err := c.directory(ctx, j, lists[i]); err != nil {
				return nil, err
			}
		}
		if err := c.lookThrough(ctx); err != nil {
			return nil, err
		}
		if first {
			if err := c.reconsider(ctx, head, again); err != nil {
				return nil, err
			}
			first = false
		}
		if err := c.untracked(ctx); err != nil {
			return nil, err
		}
	}
	c.set.ignored = uniq(c.set.ignored)
	c.set.held = uniq(c.set.held)
	return &c.set, nil
}

func uniq[S ~[]E, E cmp.Ordered](s S) S {
	slices.Sort(s)
	return slices.Compact(s)
}

// ask fetches the entries of a level.
func (c *collector) ask(ctx context.Context, jobs []job, first bool) ([][]fusefs.DirtyEntry, error) {
	out := make([][]fusefs.DirtyEntry, len(jobs))
	var dirty, whole []string
	var di, wi []int
	for i, j := range jobs {
		if j.whole {
			whole, wi = append(whole, j.path), append(wi, i)
		} else {
			dirty, di = append(dirty, j.path), append(di, i)
		}
	}
	if len(dirty) > 0 {
		d, err := c.view.dirty(ctx, dirty)
		if err != nil {
			return nil, err
		}
		if first {
			c.set.seq = d.Seq
		}
		for k, i := range di {
			out[i] = d.Entries[k]
		}
	}
	if len(whole) > 0 {
		l, err := c.view.list(ctx, whole)
		if err != nil {
			return nil, err
		}
		for k, i := range wi {
			out[i] = l[k]
		}
	}
	return out, nil
}

// directory sorts the entries of one directory: tracked ones become changes,
// untracked ones candidates.
func (c *collector) directory(ctx context.Context, j job, ents []fusefs.DirtyEntry) error {
	head, err := c.headEntries(ctx, j.head)
	if err != nil {
		return err
	}
	seen := make(map[string]bool, len(ents))
	for _, e := range ents {
		seen[e.Name] = true
		he, tracked := head[e.Name]
		c.entry(j, e, he, tracked)
	}
	if j.whole {
		for name := range head {
			if !seen[name] && !c.cone.Hides(path.Join(j.path, name)) {
				c.set.deleted = append(c.set.deleted, path.Join(j.path, name))
			}
		}
	}
	return nil
}

func (c *collector) headEntries(ctx context.Context, tree string) (map[string]objects.TreeEntry, error) {
	if tree == "" {
		return nil, nil
	}
	list, err := c.reader.Tree(ctx, tree)
	if err != nil {
		return nil, err
	}
	m := make(map[string]objects.TreeEntry, len(list))
	for _, e := range list {
		m[e.Name] = e
	}
	return m, nil
}

func (c *collector) entry(j job, e fusefs.DirtyEntry, he objects.TreeEntry, tracked bool) {
	p := path.Join(j.path, e.Name)
	isDir := e.Kind == fusefs.Dir
	if tracked && (isDir != (he.Mode == objects.ModeTree) || e.Kind == fusefs.Deleted || e.Kind == fusefs.Other) {
		if isDir && he.Mode == objects.ModeGitlink {
			return // a submodule's directory; its content is the submodule's own
		}
		c.set.deleted = append(c.set.deleted, p) // what HEAD has there is gone; what took its place follows
		tracked = false
	}
	switch {
	case e.Kind == fusefs.Deleted, e.Kind == fusefs.Other:
	case objects.UnsafeName(e.Name), e.Kind == fusefs.Symlink && objects.UnsafeLink(e.Name):
		if e.Name != ".git" {
			c.set.hold(p, "git refuses the name")
		}
	case isDir && tracked:
		if e.Whole || j.whole || e.Below {
			c.next = append(c.next, job{path: p, whole: e.Whole || j.whole, head: he.ID})
		}
	case isDir:
		c.cands = append(c.cands, candidate{path: p, dir: true, whole: e.Whole || j.whole})
		c.ents = append(c.ents, e)
	case tracked:
		c.file(p, e)
	default:
		c.cands = append(c.cands, candidate{path: p})
		c.ents = append(c.ents, e)
	}
}

// maxWarnings bounds how many paths that stay behind are told of one by one.
const maxWarnings = 20

func (c *changeSet) hold(p, why string) {
	if c.isHeld[p] {
		return
	}
	if c.isHeld == nil {
		c.isHeld = map[string]bool{}
	}
	c.isHeld[p] = true
	c.held = append(c.held, p)
	switch n := len(c.warn); {
	case n < maxWarnings:
		c.warn = append(c.warn, fmt.Sprintf("'%s' stays in the workspace and is not committed: %s", p, why))
	case n == maxWarnings:
		c.warn = append(c.warn, "and more paths; 'git env status' lists them")
	}
}

func (c *collector) file(p string, e fusefs.DirtyEntry) {
	if e.Kind == fusefs.File && e.Blob == "" && e.Source == "" && e.Size > c.maxSize {
		c.set.hold(p, fmt.Sprintf("it has %d bytes and env.maxFileSize is %d", e.Size, c.maxSize))
		return
	}
	c.set.files = append(c.set.files, changedFile{p, e})
}

// untracked asks git about the level's candidates and takes on what is not
// ignored.
func (c *collector) untracked(ctx context.Context) error {
	cands, ents := c.candidates()
	if len(cands) == 0 {
		return nil
	}
	dirs := make([]string, len(cands))
	for i, cd := range cands {
		dirs[i] = parentOf(cd.path)
	}
	if err := c.scratch.load(ctx, dirs); err != nil {
		return err
	}
	ign, err := c.scratch.ignored(ctx, cands)
	if err != nil {
		return err
	}
	for i, cd := range cands {
		switch {
		case ign[i]:
			c.set.ignored = append(c.set.ignored, cd.path)
		case cd.dir:
			c.next = append(c.next, job{path: cd.path, whole: cd.whole})
		default:
			c.file(cd.path, ents[i])
		}
	}
	return nil
}

// reconsider looks again at paths that earlier commits left out: those held
// back, and those ignored by rules that have changed since.
func (c *collector) reconsider(ctx context.Context, head string, again []string) error {
	if len(again) == 0 {
		return nil
	}
	ents, err := c.view.stat(ctx, again)
	if err != nil {
		return err
	}
	for i, e := range ents {
		dir := parentOf(again[i])
		he, err := c.reader.Path(ctx, head, again[i])
		if err != nil && !errors.Is(err, objects.ErrNotFound) {
			return err
		}
		if e.Kind == fusefs.Deleted {
			if err == nil {
				c.set.deleted = append(c.set.deleted, again[i])
			}
			continue
		}
		e.Name = path.Base(again[i])
		// Marked clean when it was left out, so all that is in it counts.
		c.entry(job{path: dir, whole: true}, e, he, err == nil)
	}
	return nil
}

// rulesChanged says whether the set changes an ignore file, or has one that is
// ignored itself and counts all the same.
func (c *changeSet) rulesChanged() bool {
	for _, p := range slices.Concat(c.deleted, c.ignored) {
		if path.Base(p) == ".gitignore" {
			return true
		}
	}
	return slices.ContainsFunc(c.files, func(f changedFile) bool { return path.Base(f.path) == ".gitignore" })
}

// below says whether p is in one of dirs or below it.
func below(p string, dirs map[string]bool) bool {
	for ; p != ""; p = parentOf(p) {
		if dirs[p] {
			return true
		}
	}
	return false
}

func hasPrefixPath(p, dir string) bool {
	return dir == "" || p == dir || strings.HasPrefix(p, dir+"/")
}

// lookThrough takes on what is not tracked in a level of directories, and goes on
// to those below that something was changed in or that the branch has otherwise:
// in all others there is only what is tracked. What is dirty and tracked is found
// anyway.
func (c *collector) lookThrough(ctx context.Context) error {
	jobs := c.through
	c.through = nil
	if len(jobs) == 0 {
		return nil
	}
	dirs := make([]string, len(jobs))
	for i, j := range jobs {
		dirs[i] = j.path
	}
	lists, err := c.view.list(ctx, dirs)
	if err != nil {
		return err
	}
	for i, j := range jobs {
		head, err := c.headEntries(ctx, j.head)
		if err != nil {
			return err
		}
		for _, e := range lists[i] {
			he, tracked := head[e.Name]
			switch {
			case !tracked:
				c.entry(job{path: j.path, whole: true}, e, he, false)
			case e.Kind == fusefs.Dir && he.Mode.IsTree() && e.Tree != he.ID:
				c.through = append(c.through, job{path: path.Join(j.path, e.Name), head: he.ID})
			}
		}
	}
	return nil
}

// candidates returns the level's, each once.
func (c *collector) candidates() ([]candidate, []fusefs.DirtyEntry) {
	cands, ents := c.cands, c.ents
	c.cands, c.ents = nil, nil
	at := make(map[string]int, len(cands))
	n := 0
	for i, cd := range cands {
		if k, twice := at[cd.path]; twice {
			cands[k].whole = cands[k].whole || cd.whole
			continue
		}
		at[cd.path] = n
		cands[n], ents[n] = cd, ents[i]
		n++
	}
	return cands[:n], ents[:n]
}
