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
			closeLayers(layers)
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
		l, rebuilt, err := openLayer(filepath.Join(dir, id), write, top, layer.Meta{
			ID: id, Parent: parent, StartSeq: t.seq, FirstIno: t.nextIno,
		})
		if errors.Is(err, fs.ErrNotExist) && top && !write {
			break
		}
		if err != nil {
			return layers, err
		}
		layers = append(layers, l)
		if err := replay(l, int16(i), t, rebuilt); err != nil {
			return layers, err
		}
	}
	return layers, nil
}

func closeLayers(layers []*layer.Layer) {
	for _, l := range layers {
		l.Close()
	}
}

// openLayer opens a layer, the top one for appending if write. What follows
// from the layers underneath, fresh, is used to make a top that does not exist,
// and for a layer whose meta is damaged, for the reason returned.
func openLayer(path string, write, top bool, fresh layer.Meta) (l *layer.Layer, rebuilt, err error) {
	l, err = layer.Open(path, write && top)
	gone := errors.Is(err, fs.ErrNotExist)
	switch {
	case err == nil:
		return l, nil, nil
	case errors.Is(err, layer.ErrDamaged) && gone: // its log: nothing makes up for that
		return nil, nil, err
	case errors.Is(err, layer.ErrDamaged):
		rebuilt = err
		fresh.Sealed = !top
		if !write {
			return layer.Assume(path, fresh), rebuilt, nil
		}
		if err := layer.Rebuild(path, fresh); err != nil {
			return nil, nil, err
		}
		l, err = layer.Open(path, top)
		return l, rebuilt, err
	case gone && write && top:
		l, err = layer.Create(path, fresh)
		return l, nil, err
	case gone && !top:
		return nil, nil, fmt.Errorf("%w: layer %s is gone", layer.ErrDamaged, path)
	}
	return nil, nil, err
}

// replayWith applies the records of l by fn.
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

// replay applies the records of l and notes what is damaged. rebuilt says why
// its meta had to be made again.
func replay(l *layer.Layer, index int16, t *tree, rebuilt error) error {
	if err := replayWith(l, index, t, t.apply); err != nil {
		return err
	}
	if rebuilt == nil && !l.Torn() && len(l.Damage()) == 0 && l.Cut() == 0 {
		return nil
	}
	d := damagedLayer{l: l, rebuilt: rebuilt}
	if len(l.Damage()) > 0 || l.Torn() {
		d.ghosts = t.settle(l, index)
	}
	var err error
	if d.strays, err = t.strays(l, index); err != nil {
		return err
	}
	t.damaged = append(t.damaged, d)
	return nil
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
	closeLayers(opened)
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
