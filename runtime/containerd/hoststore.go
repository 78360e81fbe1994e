package containerd

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// hostStore keeps what host images share, for all repositories of the user:
//
//	lock                          held (flock) while something is made or dropped
//	skel-<sig>/root/…             what a root starts from
//	mask-<sig>-<time>/<overlay>/  whiteouts over the host's directories
//	<either>/refs/<id>            claims of root filesystems
//
// An entry never changes once it has its name: overlays stand on it.
type hostStore struct {
	dir string
	mu  sync.Mutex // makes one process scan once; the lock file is for others

	refreshing atomic.Bool    // a mask is being made in the background
	background sync.WaitGroup // what close waits for
}

// close waits for what is still being made.
func (h *hostStore) close() { h.background.Wait() }

func newHostStore(dir string) *hostStore { return &hostStore{dir: dir} }

// hostTrees are the directories that the host image shows, beside the skeleton.
// Those that are symbolic links on this host are links in the skeleton.
func hostTrees() []string {
	candidates := [...]string{
		"/usr", "/opt", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
		"/nix/store", "/gnu/store",
		"/var/lib/dpkg", "/var/lib/apt", "/var/lib/rpm", "/var/lib/pacman",
	}
	var trees []string
	for _, dir := range candidates {
		if info, err := os.Lstat(dir); err == nil && info.IsDir() && worldReadableDir(dir) {
			trees = append(trees, dir)
		}
	}
	return trees
}

// worldReadableDir reports whether an ordinary user can get at a directory.
func worldReadableDir(dir string) bool {
	for d := dir; d != "/"; d = filepath.Dir(d) {
		info, err := os.Lstat(d)
		if err != nil || !info.IsDir() || info.Mode().Perm()&0o001 == 0 {
			return false
		}
	}
	return true
}

// hostOverlays are the overlays of a host image's root filesystem.
func hostOverlays() []overlay {
	overlays := []overlay{{Name: "root", Target: "/"}}
	for _, dir := range hostTrees() {
		overlays = append(overlays, overlay{Name: overlayName(dir), Target: dir})
	}
	return overlays
}

func overlayName(dir string) string {
	return strings.ReplaceAll(strings.TrimPrefix(dir, "/"), "/", "-")
}

func (h *hostStore) skeletonRoot(name string) string { return filepath.Join(h.dir, name, "root") }
func (h *hostStore) maskDir(name, overlay string) string {
	return filepath.Join(h.dir, name, overlay)
}

// locked runs do while no other process makes or drops entries.
func (h *hostStore) locked(ctx context.Context, do func() error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := os.MkdirAll(h.dir, 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(h.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := flock(ctx, f, unix.LOCK_EX); err != nil {
		return err
	}
	return do()
}

// claim makes an entry unless it exists, and claims it for a root filesystem.
func (h *hostStore) claim(ctx context.Context, prefix, name, id string, build func(dir string) error) error {
	return h.locked(ctx, func() error {
		if _, err := os.Lstat(filepath.Join(h.dir, name)); errors.Is(err, fs.ErrNotExist) {
			if err := h.build(prefix, name, build); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
		return touch(filepath.Join(h.dir, name, "refs", id))
	})
}

// build makes an entry under a temporary name and drops older ones of its kind
// that nobody claims.
func (h *hostStore) build(prefix, name string, build func(dir string) error) error {
	tmp := filepath.Join(h.dir, "new-"+prefix)
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(tmp, "refs"), 0o755); err != nil {
		return err
	}
	if err := build(tmp); err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	if err := os.Rename(tmp, filepath.Join(h.dir, name)); err != nil {
		return err
	}
	old, _ := filepath.Glob(filepath.Join(h.dir, prefix+"*"))
	for _, dir := range old {
		if filepath.Base(dir) != name {
			h.drop(dir)
		}
	}
	return nil
}

// drop removes an entry unless somebody claims it.
func (h *hostStore) drop(dir string) {
	if err := os.Remove(filepath.Join(dir, "refs")); err == nil || errors.Is(err, fs.ErrNotExist) {
		_ = os.RemoveAll(dir) // what remains is dropped by the next one
	}
}

// ref claims an existing entry.
func (h *hostStore) ref(id, name string) error {
	return h.locked(context.Background(), func() error {
		if _, err := os.Lstat(filepath.Join(h.dir, name)); err != nil {
			return err
		}
		return touch(filepath.Join(h.dir, name, "refs", id))
	})
}

// unref gives claims up. The entries stay until a newer one replaces them: the
// next environment will want them.
func (h *hostStore) unref(id string, names ...string) {
	_ = h.locked(context.Background(), func() error {
		for _, name := range names {
			if name != "" {
				_ = os.Remove(filepath.Join(h.dir, name, "refs", id))
			}
		}
		return nil
	})
}
