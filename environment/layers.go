package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/fusefs/layer"
)

// LayerInfo describes a layer on disk.
type LayerInfo struct {
	layer.Meta
	// Top: an environment writes to it.
	Top bool
	// Size is how many bytes of disk its log and files take, Files the number of
	// files with bytes. Those shared with a merged layer are in both.
	Size  int64
	Files int
	// Users are the environments that have it.
	Users []string
}

// Layers lists the layers of all workspaces, the oldest first. One that is just
// being made is not listed.
func (s *Store) Layers() ([]LayerInfo, error) {
	names, err := s.Names()
	if err != nil {
		return nil, err
	}
	users, tops := map[string][]string{}, map[string]bool{}
	for _, n := range names {
		st, _ := s.Load(n)
		if st == nil {
			continue // damaged: list says so
		}
		for _, l := range st.Layers {
			users[l] = append(users[l], n)
		}
		tops[st.top()] = true
	}
	entries, err := os.ReadDir(s.layerDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []LayerInfo
	for _, d := range entries {
		l, err := layer.Open(filepath.Join(s.layerDir(), d.Name()), false)
		if err != nil {
			continue
		}
		info := LayerInfo{Meta: l.Meta(), Top: tops[d.Name()], Users: users[d.Name()]}
		info.Size, info.Files, err = diskUse(filepath.Join(s.layerDir(), d.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, info)
	}
	// Ids sort by time, those of merged layers after a letter.
	slices.SortStableFunc(all, func(a, b LayerInfo) int {
		return strings.Compare(strings.TrimPrefix(a.ID, mergedPrefix), strings.TrimPrefix(b.ID, mergedPrefix))
	})
	return all, nil
}

func (s *Store) layerDir() string { return filepath.Join(s.Dir, "layers") }

// diskUse adds up a layer. What vanishes meanwhile does not count.
func diskUse(dir string) (size int64, files int, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir():
			return nil
		}
		size += st.Blocks * 512
		if filepath.Dir(filepath.Dir(path)) == filepath.Join(dir, "data") {
			files++
		}
		return nil
	})
	return size, files, err
}

// Freeze makes a workspace as it is now a stack of layers that never change.
func (e *Engine) Freeze(ctx context.Context, p api.Freeze) (*api.Frozen, error) {
	v, err := e.env(p.Env)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	defer v.touch()
	if err := v.mount(ctx); err != nil {
		return nil, err
	}
	v.flush(ctx)
	layers, pause, err := v.frozen(ctx)
	if err != nil {
		return nil, err
	}
	return &api.Frozen{Layers: layers, Pause: pause.Seconds()}, nil
}

// StackOf finds an environment that has a layer, and the layers up to it. One
// that is written to is not to be had.
func (s *Store) StackOf(id string) (*State, []string, error) {
	names, err := s.Names()
	if err != nil {
		return nil, nil, err
	}
	for _, n := range names {
		st, _ := s.Load(n)
		if st == nil {
			continue
		}
		i := slices.Index(st.Layers, id)
		if i < 0 {
			continue
		}
		if i == len(st.Layers)-1 {
			return nil, nil, Errorf(ExitBusy, "layer %s is being written to by environment '%s'", id, n).
				WithHint("'git env layer export %s' exports the whole workspace as it is", n)
		}
		return st, st.Layers[:i+1], nil
	}
	return nil, nil, Errorf(ExitNoEnv, "no environment and no layer of one is named '%s'", id).
		WithHint("'git env layer list' and 'git env list' show what there is")
}

// ExportLayers passes what layers show on the tree of an environment to put or,
// with last, what the last of them changes.
func (s *Store) ExportLayers(ctx context.Context, st *State, layers []string, last bool, put func(*fusefs.ExportEntry) error) error {
	for _, id := range layers {
		release, err := layer.Hold(filepath.Join(s.layerDir(), id))
		if err != nil {
			return fmt.Errorf("layer %s: %w", id, err)
		}
		defer release()
		if _, err := os.Stat(filepath.Join(s.layerDir(), id, "meta")); err != nil {
			return fmt.Errorf("layer %s: %w", id, err)
		}
	}
	return fusefs.Export(ctx, fusefs.ExportOptions{
		GitDir: s.Repo.CommonDir, BlobDir: filepath.Join(s.Dir, "blobs"), LayerDir: s.layerDir(), Layer: last,
		Spec: fusefs.MountSpec{
			ID: st.ID, Tree: st.Tree, Time: st.LowerTime, Layers: layers, Paths: st.Paths,
			UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
		},
	}, put)
}
