package fusefs

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/git-env/git-env/fusefs/layer"
)

// directory returns the loaded directory ino.
func (w *workspace) directory(ino uint64) (*node, fuse.Status) {
	w.mu.RLock()
	n := w.t.nodes[ino]
	loaded := n != nil && n.isDir() && n.dir.loaded
	w.mu.RUnlock()
	switch {
	case n == nil:
		return nil, fuse.Status(syscall.ESTALE)
	case loaded:
		return n, fuse.OK
	case !n.isDir():
		return nil, fuse.ENOTDIR
	}
	if err := w.load(context.Background(), n); err != nil {
		w.log.Printf("%s: %v", w.spec.ID, err)
		return nil, status(err)
	}
	return n, fuse.OK
}

// load reads the git tree of directory n, once however many ask for it.
func (w *workspace) load(ctx context.Context, n *node) error {
	w.loadMu.Lock()
	if f := w.loads[n.ino]; f != nil {
		w.loadMu.Unlock()
		<-f.done
		return f.err
	}
	f := &fetch{done: make(chan struct{})}
	w.loads[n.ino] = f
	w.loadMu.Unlock()

	if f.err = w.loadTree(ctx, n); f.err == nil {
		w.cameIn(n)
	}
	w.loadMu.Lock()
	delete(w.loads, n.ino)
	w.loadMu.Unlock()
	close(f.done)
	return f.err
}

func (w *workspace) loadTree(ctx context.Context, n *node) error {
	w.mu.RLock()
	done, id := n.dir.loaded, w.t.oidString(&n.oid)
	w.mu.RUnlock()
	if done {
		return nil
	}
	entries, attributes, err := w.readTree(ctx, id, w.cones[n.ino])
	if err != nil {
		return fmt.Errorf("tree %s: %w", id, err)
	}
	if err := w.rulesFor(ctx, n, attributes, entries); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.dir.loaded {
		return nil
	}
	for _, e := range w.t.load(n, entries) {
		rec := layer.Record{
			Kind: layer.KindIntro, Ino: w.t.nextIno, Parent: n.ino, Name: e.name,
			Mode: e.mode, OID: e.oid, Size: e.size,
		}
		if w.spec.ReadOnly {
			if err := w.t.apply(&rec); err != nil {
				return err
			}
			continue
		}
		recs := append(w.introduce(nil, n), rec)
		if st := w.commit(recs...); !st.Ok() {
			return syscall.Errno(st)
		}
	}
	w.t.loaded(n)
	w.readIn(n)
	return nil
}

// readTree returns what is shown of a tree, and the id of its .gitattributes,
// which counts when it is hidden too; c may be nil, for all of it.
func (w *workspace) readTree(ctx context.Context, id string, c *cone) (entries []lowerEntry, attributes string, err error) {
	all, err := w.objs.Tree(ctx, id)
	if err != nil {
		return nil, "", err
	}
	attributes = attributesFile(all)
	all = c.mask(all)
	entries = make([]lowerEntry, 0, len(all))
	var ids []string
	var at []int
	for _, e := range all {
		if !usableName(e.Name) {
			continue
		}
		raw, err := hex.DecodeString(e.ID)
		if err != nil || len(raw) > 32 {
			return nil, "", fmt.Errorf("bad object id %q", e.ID)
		}
		if kind := e.Mode & syscall.S_IFMT; kind == syscall.S_IFREG || kind == syscall.S_IFLNK {
			ids, at = append(ids, e.ID), append(at, len(entries))
		}
		entries = append(entries, lowerEntry{name: e.Name, mode: e.Mode, oid: raw})
	}
	if len(ids) == 0 {
		return entries, attributes, nil
	}
	sizes, err := w.objs.Sizes(ctx, ids)
	if err != nil {
		return nil, "", err
	}
	for i, size := range sizes {
		if size < 0 {
			size = w.blobs.lostSize(ids[i])
		}
		entries[at[i]].size = size
	}
	return entries, attributes, nil
}

// maxName is the longest name the kernel lists; FUSE itself would let longer
// ones through.
const maxName = 255

// usableName refuses names of a hostile tree: git itself never writes them.
func usableName(name string) bool {
	return name != "" && name != "." && name != ".." && name != dotGit &&
		len(name) <= maxName && !strings.ContainsAny(name, "/\x00")
}

const dotGit = ".git"
