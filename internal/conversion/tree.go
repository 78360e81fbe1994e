package conversion

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
)

// Objects reads git objects; *objects.Reader is one.
type Objects interface {
	Tree(ctx context.Context, id string) ([]objects.TreeEntry, error)
	Bytes(ctx context.Context, id string, max int64) ([]byte, error)
}

const (
	attributesName = ".gitattributes"
	// maxAttributes bounds a .gitattributes in bytes; git itself stops at 100 MiB.
	maxAttributes = 32 << 20
	// processes is how many conversions of a tree go on at a time.
	processes = 2
)

// errClosed is returned after Close.
var errClosed = errors.New("conversions have ended")

// Tree converts the files of one git tree as a checkout of it would. It is safe
// for concurrent use.
type Tree struct {
	git    *gitcmd.Git
	objs   Objects
	id     string
	config *Config
	tmp    string
	log    *log.Logger
	seed   maphash.Seed
	slots  chan *converter // nil stands for a process not started

	mu      sync.Mutex
	scratch string          // guarded by mu: "" until something may have attributes
	active  map[uint64]bool // guarded by mu: by directory, whether a .gitattributes bears on it
	rules   map[effect]*Rule
	check   *checker                // guarded by mu; nil when not running
	asked   int                     // guarded by mu: how often check was used
	live    map[*converter]struct{} // guarded by mu
	closed  bool                    // guarded by mu
}

// NewTree returns the tree id with the configuration c. Scratch work trees are
// made in tmp, which is made when it does not exist. What git says on the way
// goes to l.
func NewTree(g *gitcmd.Git, objs Objects, id string, c *Config, tmp string, l *log.Logger) *Tree {
	t := &Tree{
		git: g.WithFileProtocol(), objs: objs, id: id, config: c, tmp: tmp, log: l,
		seed: maphash.MakeSeed(), slots: make(chan *converter, processes),
		active: map[uint64]bool{}, rules: map[effect]*Rule{}, live: map[*converter]struct{}{},
	}
	for range processes {
		t.slots <- nil
	}
	return t
}

// Global reports whether something besides the .gitattributes files of the tree
// may have content converted.
func (t *Tree) Global() bool { return t.config.Global() }

// Close ends what is under way and removes the scratch work tree. Whatever is
// asked later fails.
func (t *Tree) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if t.check != nil {
		t.check.close()
		t.check = nil
	}
	for c := range t.live {
		c.kill()
	}
	if t.scratch == "" {
		return nil
	}
	return os.RemoveAll(t.scratch)
}

// Rules returns the rules of files in a directory of the tree, in the order of
// names; nil where content is shown as stored, and nil altogether when that is
// so for all. file is the id of the directory's .gitattributes, "" for none.
func (t *Tree) Rules(ctx context.Context, dir, file string, names []string) ([]*Rule, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.enter(ctx, dir, func() (string, error) { return file, nil }); err != nil {
		return nil, err
	}
	return t.rulesIn(ctx, dir, names)
}

// Rule returns the rule of one path of the tree, nil for none.
func (t *Tree) Rule(ctx context.Context, path string) (*Rule, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	dir, name := split(path)
	err := t.enter(ctx, dir, func() (string, error) { return t.attributesIn(ctx, dir) })
	if err != nil {
		return nil, err
	}
	rules, err := t.rulesIn(ctx, dir, []string{name})
	if err != nil || rules == nil {
		return nil, err
	}
	return rules[0], nil
}

// split cuts a path into its directory, "" for the top, and its name.
func split(path string) (dir, name string) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return "", path
	}
	return path[:i], path[i+1:]
}

// enter puts the attributes of dir and all directories above it in place. mu is
// held. find returns the id of the file in dir.
func (t *Tree) enter(ctx context.Context, dir string, find func() (string, error)) error {
	if t.closed {
		return errClosed
	}
	key := maphash.String(t.seed, dir)
	if _, done := t.active[key]; done {
		return nil
	}
	active := false
	if dir != "" {
		up, _ := split(dir)
		if err := t.enter(ctx, up, func() (string, error) { return t.attributesIn(ctx, up) }); err != nil {
			return err
		}
		active = t.active[maphash.String(t.seed, up)]
	}
	file, err := find()
	if err != nil {
		return err
	}
	if file != "" {
		put, err := t.put(ctx, dir, file)
		if err != nil {
			return err
		}
		active = active || put
	}
	t.active[key] = active
	return nil
}

// attributesIn finds the .gitattributes of a directory of the tree.
func (t *Tree) attributesIn(ctx context.Context, dir string) (string, error) {
	id := t.id
	for _, name := range append(strings.FieldsFunc(dir, func(r rune) bool { return r == '/' }), attributesName) {
		entries, err := t.objs.Tree(ctx, id)
		if err != nil {
			return "", err
		}
		id = ""
		for i := range entries {
			e := &entries[i]
			if e.Name == name && (name == attributesName && isFile(e.Mode) || e.Mode == objects.ModeTree) {
				id = e.ID
			}
		}
		if id == "" {
			return "", nil
		}
	}
	return id, nil
}

func isFile(m objects.Mode) bool { return m&0o170000 == 0o100000 }

// put writes the .gitattributes of dir into the scratch work tree and reports
// whether it says anything. mu is held.
func (t *Tree) put(ctx context.Context, dir, id string) (bool, error) {
	data, err := t.objs.Bytes(ctx, id, maxAttributes)
	if err != nil {
		return false, fmt.Errorf("%s: %w", filepath.Join(dir, attributesName), err)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return false, nil
	}
	if err := t.makeScratch(); err != nil {
		return false, err
	}
	full := filepath.Join(t.workTree(), dir)
	if err = os.MkdirAll(full, 0o700); err == nil {
		err = os.WriteFile(filepath.Join(full, attributesName), data, 0o600)
	}
	if errors.Is(err, syscall.ENAMETOOLONG) {
		return false, nil // nor could git read it
	}
	return err == nil, err
}

func (t *Tree) workTree() string { return filepath.Join(t.scratch, "tree") }

// makeScratch makes the scratch work tree if there is none yet. mu is held.
func (t *Tree) makeScratch() error {
	if t.scratch != "" {
		return nil
	}
	if err := os.MkdirAll(t.tmp, 0o700); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(t.tmp, "attributes-")
	if err != nil {
		return err
	}
	if err = os.Mkdir(filepath.Join(dir, "tree"), 0o700); err == nil {
		err = copyIfThere(t.config.attributes, filepath.Join(dir, "user"))
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return err
	}
	t.scratch = dir
	t.git = t.git.WithWorkTree(filepath.Join(dir, "tree")).WithPathspecMagic().
		WithEnv(append(t.config.pinned(filepath.Join(dir, "user")), "GIT_INDEX_FILE="+filepath.Join(dir, "index"))...)
	return nil
}

// rulesIn asks git about files of a directory that was entered. mu is held.
func (t *Tree) rulesIn(ctx context.Context, dir string, files []string) ([]*Rule, error) {
	if len(files) == 0 || !t.config.global && !t.active[maphash.String(t.seed, dir)] {
		return nil, nil
	}
	if err := t.makeScratch(); err != nil {
		return nil, err
	}
	paths := files
	if dir != "" {
		paths = make([]string, len(files))
		for i, f := range files {
			paths[i] = dir + "/" + f
		}
	}
	found, err := t.ask(ctx, paths)
	if err != nil {
		return nil, err
	}
	var rules []*Rule
	for i, v := range found {
		e := t.config.effect(v)
		if e == (effect{}) {
			continue
		}
		r := t.rules[e]
		if r == nil {
			r = &Rule{digest: e.digest(), Filter: e.filter != ""}
			t.rules[e] = r
		}
		if rules == nil {
			rules = make([]*Rule, len(files))
		}
		rules[i] = r
	}
	return rules, nil
}

// ask has the attributes of paths found out, by a new process when the last one
// has died. mu is held.
func (t *Tree) ask(ctx context.Context, paths []string) ([]values, error) {
	for attempt := 0; ; attempt++ {
		if t.check == nil {
			c, err := startChecker(t.git)
			if err != nil {
				return nil, err
			}
			t.check = c
		}
		found, err := t.check.ask(ctx, paths)
		if err == nil {
			t.asked++
			c, asked := t.check, t.asked
			time.AfterFunc(idleTime, func() { t.retireChecker(c, asked) })
			return found, nil
		}
		t.check.close()
		said := t.check.stderr.last()
		t.check = nil
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if attempt > 0 {
			return nil, fmt.Errorf("git check-attr: %w", explain(err, said))
		}
	}
}

// retireChecker ends a process that was not used since it was used for the time
// that asked counts.
func (t *Tree) retireChecker(c *checker, asked int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.check == c && t.asked == asked {
		c.close()
		t.check = nil
	}
}

// Convert writes the blob id to w as a checkout would write it to path, which
// Rules or Rule was asked about, and returns its size in bytes.
func (t *Tree) Convert(ctx context.Context, id, path string, w io.Writer) (int64, error) {
	if strings.TrimLeft(path, " \t") != path {
		return t.convertAlone(ctx, id, path, w)
	}
	for {
		c, err := t.acquire(ctx)
		if err != nil {
			return 0, err
		}
		n, err := c.convert(ctx, id, path, w)
		if err == nil {
			t.release(c)
			return n, nil
		}
		t.discard(c)
		var dead *deadError
		if errors.As(err, &dead) {
			continue // it had died before it was asked
		}
		if ctx.Err() != nil {
			return n, context.Cause(ctx)
		}
		return n, explain(err, c.stderr.last())
	}
}

// convertAlone converts where the path cannot be given to a process that stays.
func (t *Tree) convertAlone(ctx context.Context, id, path string, w io.Writer) (int64, error) {
	t.mu.Lock()
	g, closed := t.git, t.closed
	t.mu.Unlock()
	if closed {
		return 0, errClosed
	}
	out, err := g.Output(ctx, nil, "cat-file", "--filters", "--path="+path, id)
	if err != nil {
		return 0, err
	}
	n, err := w.Write(out)
	return int64(n), err
}
