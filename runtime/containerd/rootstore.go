package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/runtime"
)

// Names in the root store's directory. Ids of root filesystems never begin with
// a dot, so they cannot collide.
const (
	sealedDir = ".sealed" // <layer>/<overlay>/…, <layer>/refs/<root id>
	newDir    = ".new"    // root filesystems being made
	trashDir  = ".trash"  // root filesystems being removed
)

// maxSealed is the number of sealed layers above which they are merged into one:
// the options of a mount must fit into a page, and the kernel stacks at most 500.
const maxSealed = 64

// rootStore keeps the writable layers of root filesystems. All methods expect
// the caller to hold the lock of the root filesystems concerned.
type rootStore struct {
	b    *Backend
	dir  string
	host *hostStore
	keyedMutex
}

func newRootStore(b *Backend, dir, hostDir string) *rootStore {
	return &rootStore{b: b, dir: dir, host: newHostStore(hostDir)}
}

// overlay is one writable mount of a root filesystem.
type overlay struct {
	// Name is the directory in each layer: "root", "usr", "var-lib-dpkg", …
	Name string `json:"name"`
	// Target is where it is mounted; "/" for the first.
	Target string `json:"target"`
}

// rootState is the file `layers` of a root filesystem.
type rootState struct {
	V        int       `json:"v"`
	Image    string    `json:"image"` // reference
	Digest   string    `json:"digest,omitempty"`
	Host     bool      `json:"host,omitempty"`
	Overlays []overlay `json:"overlays"`
	// Skeleton is what the host image's root starts from.
	Skeleton string `json:"skeleton,omitempty"`
	// Mask is what hides host files from the container that was started last.
	Mask string `json:"mask,omitempty"`
	// Sealed names the sealed layers, bottom first.
	Sealed []string `json:"sealed,omitempty"`
	// Sealing names the layer that the top is being renamed to. After a crash it
	// tells which side of the rename we are on.
	Sealing string `json:"sealing,omitempty"`
}

const rootStateVersion = 1

var validID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

func checkID(id string) error {
	if !validID.MatchString(id) {
		return fmt.Errorf("invalid id %q", id)
	}
	return nil
}

func (s *rootStore) path(id string, more ...string) string {
	return filepath.Join(append([]string{s.dir, id}, more...)...)
}

func (s *rootStore) sealedPath(layer string, more ...string) string {
	return filepath.Join(append([]string{s.dir, sealedDir, layer}, more...)...)
}

// load reads a root filesystem's state and finishes what a crash left half done.
func (s *rootStore) load(id string) (*rootState, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	var st rootState
	err := durable.ReadJSON(s.path(id, "layers"), &st)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &runtime.Error{Kind: runtime.ErrNotFound, Message: "no root filesystem " + id}
	}
	if err != nil {
		return nil, fmt.Errorf("read root filesystem %s: %w", id, err)
	}
	if st.V > rootStateVersion {
		return nil, fmt.Errorf("root filesystem %s was written by a newer git-env (format %d)", id, st.V)
	}
	if st.Sealing != "" {
		if err := s.finishSeal(id, &st); err != nil {
			return nil, fmt.Errorf("recover root filesystem %s: %w", id, err)
		}
	}
	return &st, nil
}

func (s *rootStore) save(id string, st *rootState) error {
	return durable.WriteJSON(s.path(id, "layers"), st, 0o600)
}

// create makes an empty root filesystem. base gives, for each overlay, a
// directory whose mode and owner the new top takes.
func (s *rootStore) create(id string, st *rootState, base func(overlay) string) error {
	tmp := s.path(newDir, id)
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := makeTops(tmp, st.Overlays, base); err != nil {
		return err
	}
	return s.publish(id, st, tmp)
}

// publish puts a complete root filesystem in its place, in one step.
func (s *rootStore) publish(id string, st *rootState, tmp string) (err error) {
	defer func() {
		if err != nil {
			_ = os.RemoveAll(tmp)
			s.unref(id, st.Sealed)
		}
	}()
	for _, layer := range st.Sealed {
		if err := touch(s.sealedPath(layer, "refs", id)); err != nil {
			return err
		}
	}
	if err := durable.WriteJSON(filepath.Join(tmp, "layers"), st, 0o600); err != nil {
		return err
	}
	if err := os.Rename(tmp, s.path(id)); err != nil {
		return err
	}
	return durable.SyncDir(s.dir)
}

// makeTops makes the empty writable layers below dir.
func makeTops(dir string, overlays []overlay, base func(overlay) string) error {
	for _, o := range overlays {
		for _, kind := range []string{"top", "work"} {
			if err := os.MkdirAll(filepath.Join(dir, kind, o.Name), 0o755); err != nil {
				return err
			}
		}
		if err := copyDirMeta(base(o), filepath.Join(dir, "top", o.Name)); err != nil {
			return err
		}
	}
	return nil
}

// clean reports whether nothing was written since the last seal. It compares the
// tops' own attributes too: they are those of / and /usr inside.
func (s *rootStore) clean(id string, st *rootState, base func(overlay) string) (bool, error) {
	for _, o := range st.Overlays {
		top := s.path(id, "top", o.Name)
		empty, err := isEmpty(top)
		if err != nil || !empty {
			return false, err
		}
		same, err := sameDirMeta(base(o), top)
		if err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

// seal turns the writable layer into a sealed one and puts an empty one on top.
// No container may be running on it.
func (s *rootStore) seal(id string, st *rootState) error {
	layer := id + "." + newLayerID()
	if err := os.MkdirAll(filepath.Join(s.dir, sealedDir), 0o700); err != nil {
		return err
	}
	st.Sealing = layer
	if err := s.save(id, st); err != nil {
		return err
	}
	if err := os.Rename(s.path(id, "top"), s.sealedPath(layer)); err != nil {
		return err
	}
	return s.finishSeal(id, st)
}

// finishSeal completes a seal from wherever it stopped; it may be repeated.
func (s *rootStore) finishSeal(id string, st *rootState) error {
	layer := st.Sealing
	if _, err := os.Stat(s.sealedPath(layer)); errors.Is(err, fs.ErrNotExist) {
		st.Sealing = "" // the rename did not happen
		return s.save(id, st)
	} else if err != nil {
		return err
	}
	if err := durable.SyncDir(filepath.Join(s.dir, sealedDir)); err != nil {
		return err
	}
	if err := os.MkdirAll(s.sealedPath(layer, "refs"), 0o700); err != nil {
		return err
	}
	if err := touch(s.sealedPath(layer, "refs", id)); err != nil {
		return err
	}
	below := func(o overlay) string { return s.sealedPath(layer, o.Name) }
	if err := makeTops(s.path(id), st.Overlays, below); err != nil {
		return err
	}
	st.Sealing = ""
	st.Sealed = append(st.Sealed, layer)
	return s.save(id, st)
}

// unref drops a root filesystem's claim on sealed layers and removes those that
// nobody claims any more.
func (s *rootStore) unref(id string, layers []string) {
	for _, layer := range layers {
		refs := s.sealedPath(layer, "refs")
		if err := os.Remove(filepath.Join(refs, id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.b.warn("root filesystem %s: %v", id, err)
			continue
		}
		// Removing the directory of claims fails while there is one: the decision
		// and the deed are one step.
		if err := os.Remove(refs); err != nil {
			continue
		}
		if err := os.RemoveAll(s.sealedPath(layer)); err != nil {
			s.b.warn("root filesystem %s: %v", id, err)
		}
	}
}

// remove forgets a root filesystem. It is gone in one step; what is left over by
// a crash afterwards is removed by the next sweep.
func (s *rootStore) remove(id string) (*rootState, error) {
	st, err := s.load(id)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(s.dir, trashDir), 0o700); err != nil {
		return nil, err
	}
	if err := os.Rename(s.path(id), s.path(trashDir, id)); err != nil {
		return nil, err
	}
	return st, s.empty(id, st)
}

// empty removes a root filesystem that is in the trash.
func (s *rootStore) empty(id string, st *rootState) error {
	s.unref(id, st.Sealed)
	if st.Host {
		s.host.unref(id, st.Skeleton, st.Mask)
	}
	return os.RemoveAll(s.path(trashDir, id))
}

// sweep finishes removals and forgets creations that a crash interrupted.
func (s *rootStore) sweep() {
	if err := os.RemoveAll(filepath.Join(s.dir, newDir)); err != nil {
		s.b.warn("sweep root filesystems: %v", err)
	}
	trash, _ := os.ReadDir(filepath.Join(s.dir, trashDir))
	for _, e := range trash {
		var st rootState
		if err := durable.ReadJSON(s.path(trashDir, e.Name(), "layers"), &st); err != nil {
			st = rootState{}
		}
		if err := s.empty(e.Name(), &st); err != nil {
			s.b.warn("sweep root filesystems: %v", err)
		}
	}
}

// lowerDirs are the sealed directories of an overlay, top first.
func (s *rootStore) lowerDirs(st *rootState, o overlay) []string {
	dirs := make([]string, 0, len(st.Sealed))
	for i := len(st.Sealed) - 1; i >= 0; i-- {
		dirs = append(dirs, s.sealedPath(st.Sealed[i], o.Name))
	}
	return dirs
}

// oneLine cuts an error text down to a line.
func oneLine(text string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(text, "\n", " ")), " ")
}
