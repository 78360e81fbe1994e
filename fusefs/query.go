package fusefs

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/git-env/git-env/fusefs/layer"
)

// dirty answers Client.Dirty. Everything that changes after it counts as
// dirty again, whatever Mark is told later.
func (w *workspace) dirty(dirs []string) (Dirty, error) {
	w.gate.Lock()
	written := w.writers()
	w.mu.Lock()
	w.barrier = w.t.seq
	d := Dirty{Seq: w.t.seq}
	err := w.stillWritten(written)
	w.mu.Unlock()
	w.gate.Unlock()
	if err != nil {
		return Dirty{}, err
	}

	w.mu.RLock()
	var converted []uint64
	for _, path := range dirs {
		if p := w.known(path); p != nil && p.isDir() {
			converted = append(converted, convertedIn(p, maps.Keys(p.dir.dirty))...)
		}
	}
	if len(converted) > 0 {
		w.mu.RUnlock()
		w.present(converted...)
		w.mu.RLock()
	}
	defer w.mu.RUnlock()
	for _, path := range dirs {
		var entries []DirtyEntry
		if p := w.known(path); p != nil && p.isDir() {
			for name := range p.dir.dirty {
				e, err := w.describe(name, p.dir.get(name))
				if err != nil {
					return Dirty{}, fmt.Errorf("%s: %w", join(path, name), err)
				}
				entries = append(entries, e)
			}
		}
		d.Entries = append(d.Entries, entries)
	}
	return d, nil
}

func join(dir, name string) string { return strings.TrimPrefix(dir+"/"+name, "/") }

// known returns the node at path if it is in memory, as every dirty one is.
// mu is held.
func (w *workspace) known(path string) *node {
	n := w.t.root
	for _, name := range splitPath(path) {
		if n == nil || !n.isDir() {
			return nil
		}
		n = n.dir.get(name)
	}
	return n
}

func splitPath(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// find returns the node at path, reading trees on the way; nil for none.
func (w *workspace) find(ctx context.Context, path string) (*node, error) {
	n := w.t.root
	for _, name := range splitPath(path) {
		if err := w.loadIf(ctx, n); err != nil {
			return nil, err
		}
		w.mu.RLock()
		if n.isDir() {
			n = n.dir.get(name)
		} else {
			n = nil
		}
		w.mu.RUnlock()
		if n == nil {
			return nil, nil
		}
	}
	return n, w.loadIf(ctx, n)
}

func (w *workspace) loadIf(ctx context.Context, n *node) error {
	w.mu.RLock()
	need := n.isDir() && !n.dir.loaded
	w.mu.RUnlock()
	if !need {
		return nil
	}
	return w.load(ctx, n)
}

// list answers Client.List.
func (w *workspace) listDirs(ctx context.Context, dirs []string) ([][]DirtyEntry, error) {
	w.using.RLock()
	defer w.using.RUnlock()
	all := make([][]DirtyEntry, 0, len(dirs))
	for _, path := range dirs {
		p, err := w.find(ctx, path)
		if err != nil {
			return nil, err
		}
		entries, err := w.describeAll(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, entries)
	}
	return all, nil
}

func (w *workspace) describeAll(p *node) ([]DirtyEntry, error) {
	if p == nil || !p.isDir() {
		return nil, nil
	}
	w.mu.RLock()
	if converted := convertedIn(p, maps.Keys(p.dir.ents)); len(converted) > 0 {
		w.mu.RUnlock()
		w.present(converted...)
		w.mu.RLock()
	}
	defer w.mu.RUnlock()
	entries := make([]DirtyEntry, 0, len(p.dir.ents))
	for _, de := range p.dir.order {
		if de.n == nil {
			continue
		}
		e, err := w.describe(de.name, de.n)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// stat answers Client.Stat. The Name of an entry is the path asked for.
func (w *workspace) stat(ctx context.Context, paths []string) ([]DirtyEntry, error) {
	w.using.RLock()
	defer w.using.RUnlock()
	entries := make([]DirtyEntry, 0, len(paths))
	for _, path := range paths {
		n, err := w.find(ctx, path)
		if err != nil {
			return nil, err
		}
		w.mu.RLock()
		if n != nil && n.converts() {
			w.mu.RUnlock()
			w.present(n.ino)
			w.mu.RLock()
		}
		e, err := w.describe(path, n)
		w.mu.RUnlock()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// describe says what n is now. mu is held.
func (w *workspace) describe(name string, n *node) (DirtyEntry, error) {
	e := DirtyEntry{Name: name}
	if n == nil {
		return e, nil
	}
	var a fuse.Attr
	if st := w.attr(n, &a); !st.Ok() {
		return e, syscall.Errno(st)
	}
	e.Ino, e.Size, e.Mtime = n.ino, int64(a.Size), time.Unix(int64(a.Mtime), int64(a.Mtimensec))
	isLower := n.flags&lower != 0
	switch n.kind() {
	case syscall.S_IFDIR:
		e.Kind, e.Whole, e.Below = Dir, n.dir.whole != 0, n.dir.below != 0
		if isLower && n.flags&touched == 0 {
			if id := w.t.oidString(&n.oid); n.flags&gitlink != 0 {
				e.Gitlink = id
			} else {
				e.Tree = id
			}
		}
	case syscall.S_IFREG:
		e.Kind, e.Exec = File, n.mode&0o100 != 0
		switch {
		case n.data != noData && a.Size > 0:
			e.Data = w.data(n)
		case n.converts() && w.convertedFile(n) != "":
			e.Data, e.Source = w.convertedFile(n), w.t.oidString(&n.oid)
		case n.data == noData && isLower:
			e.Blob = w.t.oidString(&n.oid)
		}
	case syscall.S_IFLNK:
		e.Kind = Symlink
		if isLower {
			e.Blob = w.t.oidString(&n.oid)
		} else {
			e.Target = n.ext.target
		}
	default:
		e.Kind = Other
	}
	return e, nil
}

// mark answers Client.Mark.
func (w *workspace) mark(seq uint64, commit string) error {
	if w.spec.ReadOnly {
		return syscall.EROFS
	}
	w.mu.Lock()
	if seq > w.barrier {
		w.mu.Unlock()
		return fmt.Errorf("mark %d is not of an earlier look at the dirty set", seq)
	}
	st := w.commit(layer.Record{Kind: layer.KindMark, Time: now(), Seq: seq, Commit: commit})
	top := w.top()
	w.mu.Unlock()
	if !st.Ok() {
		return syscall.Errno(st)
	}
	return top.Sync()
}

// fewFiles is up to how many files sync syncs one by one.
const fewFiles = 64

// sync makes everything written so far durable.
func (w *workspace) sync() error {
	if w.spec.ReadOnly {
		return nil
	}
	w.awaitSealed()
	w.gate.Lock()
	written := w.writers()
	w.mu.Lock()
	w.barrier = w.t.seq // later writes are to be listed again
	top := w.top()
	w.syncMu.Lock()
	inos := w.unsynced
	w.unsynced = map[uint64]struct{}{}
	w.syncMu.Unlock()
	err := w.stillWritten(written)
	w.mu.Unlock()
	w.gate.Unlock()
	if err != nil {
		return err
	}

	if len(inos) > fewFiles {
		return top.SyncAll()
	}
	for ino := range inos {
		if err := syncFile(top.DataPath(ino)); err != nil {
			return err
		}
	}
	return top.Sync()
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil // deleted meanwhile
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
