package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/internal/durable"
)

const opaqueXattr = "trusted.overlay.opaque"

// squash merges the sealed layers of a root filesystem into one of its own, so
// that a long line of forks can still be mounted. Files are linked, not copied:
// sealed layers never change.
func (s *rootStore) squash(id string, st *rootState) error {
	layer := id + "." + newLayerID()
	tmp := s.path(newDir, layer)
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(tmp, "refs"), 0o700); err != nil {
		return err
	}
	for _, o := range st.Overlays {
		out := filepath.Join(tmp, o.Name)
		if err := os.Mkdir(out, 0o755); err != nil {
			return err
		}
		for _, sealed := range st.Sealed {
			if err := mergeLayer(s.sealedPath(sealed, o.Name), out); err != nil {
				return errors.Join(fmt.Errorf("merge layers: %w", err), os.RemoveAll(tmp))
			}
		}
	}
	if err := touch(filepath.Join(tmp, "refs", id)); err != nil {
		return err
	}
	if err := os.Rename(tmp, s.sealedPath(layer)); err != nil {
		return err
	}
	if err := durable.SyncDir(filepath.Join(s.dir, sealedDir)); err != nil {
		return err
	}
	old := st.Sealed
	st.Sealed = []string{layer}
	if err := s.save(id, st); err != nil {
		return err
	}
	s.unref(id, old)
	return nil
}

// mergeLayer puts a layer over what is in out already, keeping the whiteouts
// that something further down may need.
func mergeLayer(layer, out string) error {
	names, err := readNames(layer)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := mergeEntry(filepath.Join(layer, name), filepath.Join(out, name)); err != nil {
			return err
		}
	}
	return mergeMeta(layer, out)
}

func mergeEntry(src, dst string) error {
	var st, below unix.Stat_t
	if err := unix.Lstat(src, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: src, Err: err}
	}
	err := unix.Lstat(dst, &below)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &os.PathError{Op: "lstat", Path: dst, Err: err}
	}
	exists := err == nil
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if exists {
			if err := os.RemoveAll(dst); err != nil {
				return err
			}
		}
		return os.Link(src, dst)
	}
	opaque := isOpaque(src)
	if exists && (opaque || below.Mode&unix.S_IFMT != unix.S_IFDIR) {
		// A directory over a whiteout or a file hides what was there further down.
		if err := os.RemoveAll(dst); err != nil {
			return err
		}
		opaque, exists = true, false
	}
	if !exists {
		if err := os.Mkdir(dst, 0o700); err != nil {
			return err
		}
	} else if isOpaque(dst) {
		opaque = true
	}
	if err := mergeLayer(src, dst); err != nil {
		return err
	}
	if !opaque {
		return nil
	}
	if err := unix.Lsetxattr(dst, opaqueXattr, []byte("y"), 0); err != nil {
		return &os.PathError{Op: "setxattr", Path: dst, Err: err}
	}
	return nil
}

func mergeMeta(src, dst string) error {
	if err := copyXattrs(src, dst); err != nil {
		return err
	}
	return copyDirMeta(src, dst)
}

func isOpaque(dir string) bool {
	var value [1]byte
	n, err := unix.Lgetxattr(dir, opaqueXattr, value[:])
	return err == nil && n == 1 && value[0] == 'y'
}
