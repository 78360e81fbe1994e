package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/git-env/git-env/internal/gitcmd"
)

const (
	// pipeline is how many questions are put to git at once.
	pipeline = 4096
	// maxObject bounds trees and commits, which are held in memory, in bytes.
	maxObject = 512 << 20
	// drainLimit is how much of an unwanted answer is read to keep a process.
	drainLimit = 1 << 20
)

// errClosed is returned after Close.
var errClosed = errors.New("object reader is closed")

// Reader reads objects of one repository through a pool of git cat-file
// processes, which start when needed and are replaced when they die. It is
// safe for concurrent use.
type Reader struct {
	git   *gitcmd.Git
	slots chan *proc // nil stands for a process not started
	size  int
	done  chan struct{}
	trees *treeCache
	// promise is what there is to know of a partial clone. isHere marks the
	// Reader that never fetches.
	promise partialOnce
	isHere  bool

	closing sync.Once
}

// NewReader returns a Reader with up to n processes.
func NewReader(g *gitcmd.Git, n int) *Reader {
	n = max(n, 1)
	r := &Reader{
		// A partial clone may have its promised objects in a local repository.
		git:   g.WithFileProtocol(),
		slots: make(chan *proc, n),
		size:  n,
		done:  make(chan struct{}),
		trees: newTreeCache(maxCachedEntries),
	}
	for range n {
		r.slots <- nil
	}
	return r
}

// Close ends the processes, after the requests under way; later requests fail.
func (r *Reader) Close() error {
	r.closing.Do(func() {
		close(r.done)
		r.promise.once.Do(func() {}) // nothing is made any more
		if p := r.promise.p; p != nil {
			p.here.Close()
		}
		for range r.size {
			if p := <-r.slots; p != nil {
				p.close()
			}
		}
	})
	return nil
}

// Tree returns the entries of a tree, which are shared with other callers and
// must not be modified. The id of a commit or tag gives an error.
func (r *Reader) Tree(ctx context.Context, id string) ([]TreeEntry, error) {
	if entries, ok := r.trees.get(id); ok {
		return entries, nil
	}
	data, err := r.object(ctx, id, KindTree, maxObject)
	if err != nil {
		return nil, err
	}
	entries, err := parseTree(data, len(id))
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", id, err)
	}
	r.trees.put(id, entries)
	return entries, nil
}

// Commit returns a commit.
func (r *Reader) Commit(ctx context.Context, id string) (*Commit, error) {
	data, err := r.object(ctx, id, KindCommit, maxObject)
	if err != nil {
		return nil, err
	}
	c, err := parseCommit(data)
	if err != nil {
		return nil, fmt.Errorf("commit %s: %w", id, err)
	}
	return c, nil
}

// Bytes returns a blob of at most max bytes.
func (r *Reader) Bytes(ctx context.Context, id string, max int64) ([]byte, error) {
	return r.object(ctx, id, KindBlob, max)
}

// Blob copies a blob to w and returns the number of bytes.
func (r *Reader) Blob(ctx context.Context, id string, w io.Writer) (int64, error) {
	if !isID(id) {
		return 0, fmt.Errorf("invalid object id '%s'", id)
	}
	var n int64
	err := r.one(ctx, id, func(p *proc) (err error) {
		n, err = copyBlob(p, id, w)
		return err
	})
	return n, err
}

// one reads the answer about one object, which is fetched if a partial clone
// does not have it.
func (r *Reader) one(ctx context.Context, id string, read func(*proc) error) error {
	err := r.here().do(ctx, "contents", []string{id}, read)
	if errors.Is(err, ErrNotFound) && r.partial() != nil {
		if err := r.promised(ctx, []string{id}); err != nil {
			return err
		}
		err = r.here().do(ctx, "contents", []string{id}, read)
	}
	return err
}

func copyBlob(p *proc, id string, w io.Writer) (int64, error) {
	in, err := p.answer(id)
	if err != nil {
		return 0, err
	}
	if in.kind != KindBlob {
		return 0, p.drain(in, fmt.Errorf("object %s is a %s, not a blob", id, in.kind))
	}
	t := &target{w: w}
	left, err := p.body(t, in.size)
	switch {
	case t.err != nil:
		// The receiver failed, not git; the rest of the answer is in the way.
		in.size = left
		return t.n, p.drain(in, t.err)
	case err != nil:
		// Retrying would send the beginning twice.
		return t.n, &brokenError{err: err, final: t.n > 0}
	}
	return t.n, nil
}

// target tells failures of the receiver from those of git.
type target struct {
	w   io.Writer
	n   int64 // bytes taken
	err error
}

func (t *target) Write(b []byte) (int, error) {
	n, err := t.w.Write(b)
	t.n += int64(n)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	t.err = err
	return n, err
}

// Size returns the size of an object in bytes.
func (r *Reader) Size(ctx context.Context, id string) (int64, error) {
	sizes, err := r.Sizes(ctx, []string{id})
	if err != nil {
		return 0, err
	}
	return sizes[0], nil
}

// Sizes returns the sizes of many objects, asking for all at once. The error is
// ErrNotFound when one of them does not exist.
func (r *Reader) Sizes(ctx context.Context, ids []string) ([]int64, error) {
	sizes, err := r.SizesIf(ctx, ids)
	if err != nil {
		return nil, err
	}
	for i, size := range sizes {
		if size < 0 {
			return nil, fmt.Errorf("%w: %s", ErrNotFound, ids[i])
		}
	}
	return sizes, nil
}

// Kind resolves any expression git takes for an object. The error is
// ErrNotFound when it names none.
func (r *Reader) Kind(ctx context.Context, rev string) (id string, kind Kind, size int64, err error) {
	if rev == "" || strings.ContainsAny(rev, "\n\x00") {
		return "", "", 0, fmt.Errorf("%w: %q", ErrNotFound, rev)
	}
	var in info
	err = r.do(ctx, "info", []string{rev}, func(p *proc) (err error) {
		in, err = p.answer(rev)
		return err
	})
	var died *brokenError
	if errors.As(err, &died) && died.message != "" && !isID(rev) {
		// git gives up over some expressions, such as a reflog that is too short.
		err = fmt.Errorf("%w: %s", ErrNotFound, died.message)
	}
	return in.id, in.kind, in.size, err
}

// Path finds a path below a commit, a tag or a tree. The empty path is the tree
// itself. The error is ErrNotFound when there is no such path.
func (r *Reader) Path(ctx context.Context, treeish, path string) (TreeEntry, error) {
	id := treeish
	if !r.trees.has(treeish) {
		var err error
		if id, _, _, err = r.Kind(ctx, treeish+"^{tree}"); err != nil {
			return TreeEntry{}, err
		}
	}
	entry := TreeEntry{Mode: ModeTree, ID: id}
	for path != "" {
		name, rest, _ := strings.Cut(path, "/")
		path = rest
		if name == "" {
			continue
		}
		found := false
		if entry.Mode.IsTree() {
			entries, err := r.Tree(ctx, entry.ID)
			if err != nil {
				return TreeEntry{}, err
			}
			entry, found = lookupEntry(entries, name)
		}
		if !found {
			return TreeEntry{}, fmt.Errorf("%w: path %q in %s", ErrNotFound, name, treeish)
		}
	}
	return entry, nil
}

// lookupEntry does not rely on the order: trees made by other tools have been
// seen out of it.
func lookupEntry(entries []TreeEntry, name string) (TreeEntry, bool) {
	for i := range entries {
		if entries[i].Name == name {
			return entries[i], true
		}
	}
	return TreeEntry{}, false
}

// object reads an object that is held in memory.
func (r *Reader) object(ctx context.Context, id string, kind Kind, max int64) ([]byte, error) {
	if !isID(id) {
		return nil, fmt.Errorf("invalid object id '%s'", id)
	}
	var data []byte
	err := r.one(ctx, id, func(p *proc) error {
		in, err := p.answer(id)
		if err != nil {
			return err
		}
		if in.kind != kind {
			return p.drain(in, fmt.Errorf("object %s is a %s, not a %s", id, in.kind, kind))
		}
		if in.size > max {
			return p.drain(in, fmt.Errorf("object %s has %d bytes, more than %d", id, in.size, max))
		}
		buf := bytes.NewBuffer(make([]byte, 0, in.size))
		_, err = p.body(buf, in.size)
		data = buf.Bytes()
		return err
	})
	if err != nil {
		return nil, err
	}
	return data, nil
}
