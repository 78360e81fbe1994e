package objects

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// maxPending is the number of objects up to which each is flushed by itself;
	// beyond it one flush of the whole filesystem is cheaper.
	maxPending = 64
	// parallelSyncs lets the filesystem put several flushes into one transaction.
	parallelSyncs = 8
)

// pendingSync knows which files are not durable yet.
type pendingSync struct {
	dir string

	// running is held during a flush, so that a second one waits for what the
	// first has taken over.
	running sync.Mutex

	mu    sync.Mutex      // guards the fields below
	paths map[string]bool // at most maxPending
	more  bool            // there are others
	fresh bool            // a directory was made in dir
}

func (p *pendingSync) add(path string, fresh bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fresh = p.fresh || fresh
	if p.more || p.paths[path] {
		return
	}
	if len(p.paths) == maxPending {
		p.paths, p.more = nil, true
		return
	}
	if p.paths == nil {
		p.paths = map[string]bool{}
	}
	p.paths[path] = true
}

func (p *pendingSync) sync() error {
	p.running.Lock()
	defer p.running.Unlock()
	p.mu.Lock()
	paths, more, fresh := p.paths, p.more, p.fresh
	p.paths, p.more, p.fresh = nil, false, false
	p.mu.Unlock()

	err := p.flush(paths, more, fresh)
	if err != nil {
		// Nothing is durable; the next call must not believe it is.
		p.mu.Lock()
		p.paths, p.more, p.fresh = nil, true, true
		p.mu.Unlock()
	}
	return err
}

func (p *pendingSync) flush(paths map[string]bool, more, fresh bool) error {
	if more {
		return syncFilesystem(p.dir)
	}
	var files []string
	dirs := map[string]bool{}
	for path := range paths {
		files = append(files, path)
		dirs[filepath.Dir(path)] = true
	}
	if err := syncAll(files); err != nil {
		return err
	}
	files = files[:0]
	for d := range dirs {
		files = append(files, d)
	}
	if fresh {
		files = append(files, p.dir)
	}
	return syncAll(files)
}

// syncAll flushes files or directories. One that is gone was packed or pruned
// by git, which is then answerable for it.
func syncAll(paths []string) error {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	slots := make(chan struct{}, parallelSyncs)
	for _, path := range paths {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := syncFile(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func syncFilesystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return &fs.PathError{Op: "syncfs", Path: dir, Err: err}
	}
	return nil
}
