package fusefs

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sort"
	"strings"

	"github.com/git-env/git-env/fusefs/layer"
)

// openStack opens the layers and applies their records to t. With write the
// last one is opened for appending, or made when it is missing; a stack that
// is only read may lack its last layer. On an error nothing stays open.
func openStack(dir string, ids []string, t *tree, write bool) (layers []*layer.Layer, err error) {
	defer func() {
		if err != nil {
			for _, l := range layers {
				l.Close()
			}
			layers = nil
		}
	}()
	if len(ids) == 0 && write {
		return nil, errors.New("no layers")
	}
	for i, id := range ids {
		top := i == len(ids)-1
		parent := ""
		if i > 0 {
			parent = ids[i-1]
		}
		l, err := openLayer(filepath.Join(dir, id), top && write, layer.Meta{
			ID: id, Parent: parent, StartSeq: t.seq, FirstIno: t.nextIno,
		})
		if errors.Is(err, fs.ErrNotExist) && top && !write {
			break
		}
		if err != nil {
			return layers, err
		}
		layers = append(layers, l)
		if err := replay(l, int16(i), t); err != nil {
			return layers, err
		}
	}
	return layers, nil
}

func openLayer(path string, write bool, fresh layer.Meta) (*layer.Layer, error) {
	l, err := layer.Open(path, write)
	if errors.Is(err, fs.ErrNotExist) && write {
		return layer.Create(path, fresh)
	}
	return l, err
}

func replay(l *layer.Layer, index int16, t *tree) error { return replayWith(l, index, t, t.apply) }

func replayWith(l *layer.Layer, index int16, t *tree, fn func(*layer.Record) error) error {
	t.layer = index
	t.seq = max(t.seq, l.Meta().StartSeq)
	t.nextIno = max(t.nextIno, l.Meta().FirstIno)
	err := l.Replay(fn)
	if l.Torn() {
		t.lenient = true
	}
	return err
}

// OfflineDirty tells what changed since the last mark in a workspace that is
// not mounted, from its layers alone. It returns the number of dirty names
// and the first max of their paths in order; a directory that is new or moved
// counts as one name and ends with a slash. Nothing is written.
func OfflineDirty(layerDir string, layers []string, max int) (int, []string, error) {
	t, err := newTree("", 0, 0, 0)
	if err != nil {
		return 0, nil, err
	}
	opened, err := openStack(layerDir, layers, t, false)
	if err != nil {
		return 0, nil, fmt.Errorf("layers of the workspace: %w", err)
	}
	for _, l := range opened {
		l.Close()
	}
	var paths []string
	t.eachDirty(t.root, "", func(path string) { paths = append(paths, path) })
	sort.Strings(paths)
	n := len(paths)
	return n, paths[:min(n, max)], nil
}

// eachDirty calls fn for every dirty name below p, in no order.
func (t *tree) eachDirty(p *node, prefix string, fn func(path string)) {
	for name, at := range p.dir.dirty {
		c := p.dir.get(name)
		path := prefix + name
		switch {
		case c == nil || !c.isDir():
			fn(path)
		case c.dir.whole != 0:
			fn(strings.TrimSuffix(path, "/") + "/")
		case c.dir.below != 0:
			t.eachDirty(c, path+"/", fn)
		case at != 0:
			fn(path + "/")
		}
	}
}
