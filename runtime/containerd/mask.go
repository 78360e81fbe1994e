package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maskAge is when a mask is made anew although its signature still fits.
const maskAge = 24 * time.Hour

// claimMask returns a mask for the host as it is now, scanning its directories
// when there is none yet. The signature is cheap and therefore coarse: package
// databases and the upper directories. A file that becomes secret further down
// stays visible until a day has passed; so it was to every user of the host.
func (h *hostStore) claimMask(ctx context.Context, id string, overlays []overlay) (name string, err error) {
	prefix := "mask-" + maskSignature(overlays)
	err = h.locked(ctx, func() error {
		if name = h.newest(prefix); name == "" {
			if name, err = h.makeMask(prefix, overlays); err != nil {
				return err
			}
		} else if h.age(name) > maskAge {
			h.refresh(prefix, overlays)
		}
		return touch(filepath.Join(h.dir, name, "refs", id))
	})
	return name, err
}

// warmMask begins to make a mask that will be wanted soon.
func (h *hostStore) warmMask() {
	overlays := hostOverlays()
	prefix := "mask-" + maskSignature(overlays)
	if h.newest(prefix) == "" {
		h.refresh(prefix, overlays)
	}
}

// refresh makes a mask in the background; the next container uses it.
func (h *hostStore) refresh(prefix string, overlays []overlay) {
	if !h.refreshing.CompareAndSwap(false, true) {
		return
	}
	h.background.Go(func() {
		defer h.refreshing.Store(false)
		_ = h.locked(context.Background(), func() error { // who needs it tries again, and reports
			if name := h.newest(prefix); name != "" && h.age(name) < maskAge {
				return nil
			}
			_, err := h.makeMask(prefix, overlays)
			return err
		})
	})
}

// newest is the mask of a signature that was made last, "" if there is none.
func (h *hostStore) newest(prefix string) string {
	found, _ := filepath.Glob(filepath.Join(h.dir, prefix+"-*"))
	if len(found) == 0 {
		return ""
	}
	return filepath.Base(slices.Max(found)) // the names end in the time, of equal length
}

func (h *hostStore) age(name string) time.Duration {
	at, err := strconv.ParseInt(name[strings.LastIndexByte(name, '-')+1:], 10, 64)
	if err != nil {
		return maskAge + 1
	}
	return time.Since(time.Unix(0, at))
}

func (h *hostStore) makeMask(prefix string, overlays []overlay) (string, error) {
	name := fmt.Sprintf("%s-%d", prefix, time.Now().UnixNano())
	return name, h.build("mask-", name, func(dir string) error {
		for _, o := range overlays {
			if o.Target == "/" {
				continue
			}
			if err := buildMask(o.Target, filepath.Join(dir, o.Name)); err != nil {
				return fmt.Errorf("scan %s: %w", o.Target, err)
			}
		}
		return nil
	})
}

func maskSignature(overlays []overlay) string {
	h := sha256.New()
	fmt.Fprintln(h, "mask 1", overlays)
	stamp := func(path string) {
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil {
			fmt.Fprintln(h, path, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
		}
	}
	for _, db := range []string{"/var/lib/dpkg/status", "/var/lib/rpm/rpmdb.sqlite", "/var/lib/rpm/Packages", "/var/lib/pacman/local", "/lib/apk/db/installed"} {
		stamp(db)
	}
	for _, o := range overlays {
		if o.Target == "/" {
			continue
		}
		stamp(o.Target)
		names, _ := readNames(o.Target)
		slices.Sort(names)
		for _, name := range names {
			stamp(filepath.Join(o.Target, name))
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// buildMask makes a layer that hides what an ordinary user cannot read in tree.
func buildMask(tree, dst string) error {
	if err := os.MkdirAll(dst, 0o755); err != nil {
		return err
	}
	if _, err := os.Lstat(tree); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	hidden, err := scanHidden(tree)
	if err != nil {
		return err
	}
	made := map[string]bool{"": true}
	for _, rel := range hidden {
		if err := maskParents(tree, dst, filepath.Dir(rel), made); err != nil {
			return err
		}
		if err := unix.Mknod(filepath.Join(dst, rel), unix.S_IFCHR, 0); err != nil {
			return &os.PathError{Op: "mknod", Path: filepath.Join(dst, rel), Err: err}
		}
	}
	// A directory of the mask covers the one below: it must look the same. Parents
	// after children, which change their times.
	for rel := range made {
		if err := copyDirMeta(filepath.Join(tree, rel), filepath.Join(dst, rel)); err != nil {
			return err
		}
	}
	return nil
}

func maskParents(tree, dst, rel string, made map[string]bool) error {
	if rel == "." {
		rel = ""
	}
	if made[rel] {
		return nil
	}
	if err := maskParents(tree, dst, filepath.Dir(rel), made); err != nil {
		return err
	}
	made[rel] = true
	return os.Mkdir(filepath.Join(dst, rel), 0o755)
}

// scanner walks a tree with one goroutine per processor.
type scanner struct {
	root string

	mu      sync.Mutex
	wake    *sync.Cond
	queue   []string // directories to read, relative; guarded by mu
	pending int      // queued or being read; guarded by mu
	hidden  []string // guarded by mu
	err     error    // guarded by mu
}

// scanHidden lists the topmost paths, relative to root, that others cannot read:
// files without o+r, directories without o+x, and whatever is neither file,
// directory nor link.
func scanHidden(root string) ([]string, error) {
	s := &scanner{root: root, queue: []string{""}, pending: 1}
	s.wake = sync.NewCond(&s.mu)
	var wg sync.WaitGroup
	for range max(2, goruntime.NumCPU()) {
		wg.Go(s.work)
	}
	wg.Wait()
	return s.hidden, s.err
}

func (s *scanner) work() {
	buf := make([]byte, 64<<10)
	for {
		s.mu.Lock()
		for len(s.queue) == 0 && s.pending > 0 {
			s.wake.Wait()
		}
		if s.pending == 0 {
			s.mu.Unlock()
			return
		}
		dir := s.queue[len(s.queue)-1]
		s.queue = s.queue[:len(s.queue)-1]
		s.mu.Unlock()

		dirs, hidden, err := s.read(dir, buf)

		s.mu.Lock()
		s.queue = append(s.queue, dirs...)
		s.pending += len(dirs) - 1
		s.hidden = append(s.hidden, hidden...)
		if err != nil && s.err == nil {
			s.err = err
		}
		s.mu.Unlock()
		s.wake.Broadcast()
	}
}

// read lists a directory: what to descend into, and what to hide.
func (s *scanner) read(dir string, buf []byte) (dirs, hidden []string, err error) {
	path := filepath.Join(s.root, dir)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var names []string
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil {
			return nil, nil, &os.PathError{Op: "readdir", Path: path, Err: err}
		}
		if n == 0 {
			break
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
	var st unix.Statx_t
	for _, name := range names {
		// Attributes from the cache are good enough, also on network file systems.
		err := unix.Statx(fd, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_MODE, &st)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			hidden = append(hidden, filepath.Join(dir, name)) // unknown is not for all
			continue
		}
		switch mode := uint32(st.Mode); mode & unix.S_IFMT {
		case unix.S_IFLNK:
		case unix.S_IFDIR:
			if mode&0o001 == 0 {
				hidden = append(hidden, filepath.Join(dir, name))
			} else {
				dirs = append(dirs, filepath.Join(dir, name))
			}
		case unix.S_IFREG:
			if mode&0o004 == 0 {
				hidden = append(hidden, filepath.Join(dir, name))
			}
		default:
			hidden = append(hidden, filepath.Join(dir, name))
		}
	}
	return dirs, hidden, nil
}
