package fusefs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
)

// blobStore keeps materialised blobs as files, shared by all mounts and by
// all file servers of a repository: <dir>/<2 hex>/<rest of the id>, mode 0444,
// written under a temporary name and renamed, never changed afterwards.
type blobStore struct {
	dir   string
	objs  Objects
	temps atomic.Uint64

	mu      sync.Mutex
	fetches map[string]*fetch // guarded by mu
}

type fetch struct {
	done chan struct{}
	err  error
}

func newBlobStore(dir string, objs Objects) *blobStore {
	return &blobStore{dir: dir, objs: objs, fetches: map[string]*fetch{}}
}

func (b *blobStore) path(id string) string { return filepath.Join(b.dir, id[:2], id[2:]) }

// open returns the blob id of size bytes, fetching it when it is not there or
// has the wrong size, as after a crash of the machine.
func (b *blobStore) open(ctx context.Context, id string, size int64) (*os.File, error) {
	for attempt := 0; ; attempt++ {
		f, err := os.Open(b.path(id))
		if err == nil {
			st, err := f.Stat()
			if err == nil && st.Size() == size {
				return f, nil
			}
			f.Close()
		}
		if attempt > 1 {
			return nil, fmt.Errorf("blob %s does not have %d bytes", id, size)
		}
		if err := b.fetch(ctx, id, size); err != nil {
			return nil, err
		}
	}
}

// fetch materialises a blob once, however many ask for it at a time.
func (b *blobStore) fetch(ctx context.Context, id string, size int64) error {
	b.mu.Lock()
	if f := b.fetches[id]; f != nil {
		b.mu.Unlock()
		<-f.done
		return f.err
	}
	f := &fetch{done: make(chan struct{})}
	b.fetches[id] = f
	b.mu.Unlock()

	f.err = b.write(ctx, id, size)
	b.mu.Lock()
	delete(b.fetches, id)
	b.mu.Unlock()
	close(f.done)
	return f.err
}

func (b *blobStore) write(ctx context.Context, id string, size int64) error {
	tmp, err := b.temp(filepath.Dir(b.path(id)))
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	// A fetch is used by everybody who waits for it: it does not end with the
	// request that happened to start it.
	n, err := b.objs.Blob(context.WithoutCancel(ctx), id, tmp)
	if err == nil && n != size {
		err = fmt.Errorf("blob %s has %d bytes instead of %d", id, n, size)
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), b.path(id))
}

// temp makes a file of the final mode that no other process makes.
func (b *blobStore) temp(dir string) (*os.File, error) {
	name := filepath.Join(dir, fmt.Sprintf(".tmp-%d-%d", os.Getpid(), b.temps.Add(1)))
	const flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	f, err := os.OpenFile(name, flags, 0o444)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(name, flags, 0o444)
	}
	return f, err
}

// maxLink bounds the target of a symbolic link: PATH_MAX.
const maxLink = 4096

// link returns the content of a blob as the target of a symbolic link.
func (b *blobStore) link(ctx context.Context, id string) (string, error) {
	var buf bytes.Buffer
	if _, err := b.objs.Blob(ctx, id, &limitWriter{&buf, maxLink}); err != nil {
		return "", err
	}
	return buf.String(), nil
}

// limitWriter fails a write that goes beyond n bytes.
type limitWriter struct {
	w io.Writer
	n int
}

func (l *limitWriter) Write(p []byte) (int, error) {
	if len(p) > l.n {
		return 0, fmt.Errorf("more than %d bytes: %w", maxLink, io.ErrShortWrite)
	}
	l.n -= len(p)
	return l.w.Write(p)
}
