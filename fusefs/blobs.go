package fusefs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// blobStore keeps materialised blobs as files, shared by all mounts of a
// repository: <dir>/<2 hex>/<rest of the id>, mode 0444, never changed once they
// are whole.
//
// A file is made under its own name and not flushed to the disk: it can always
// be had again. What a crash, a disk or a hand made of it shows when a server
// opens it for the first time: its content is believed only when it has the id
// (see check). What this server wrote it believes.
type blobStore struct {
	dir  string
	objs Objects
	log  *log.Logger
	bound
	memory *blobMemory // what is small and came from git without being given a file
	rooms  rooms

	mu      sync.RWMutex
	fetches map[string]*fetch    // guarded by mu: blobs on their way
	good    map[blobKey]struct{} // guarded by mu: files that were checked or written
}

// blobKey is enough of an object id to tell blobs apart.
type blobKey [16]byte

func keyOf(id string) (k blobKey) {
	for i := range k {
		k[i] = unhex(id[2*i])<<4 | unhex(id[2*i+1])
	}
	return k
}

func unhex(c byte) byte {
	if c >= 'a' {
		return c - 'a' + 10
	}
	return c - '0'
}

type fetch struct {
	done chan struct{}
	err  error
}

// newBlobStore returns the store in dir, which holds at most max bytes as far
// as what is open allows; 0 for any number.
func newBlobStore(dir string, objs Objects, max int64, log *log.Logger) *blobStore {
	b := &blobStore{
		dir: dir, objs: objs, log: log, memory: newBlobMemory(memoryBytes),
		fetches: map[string]*fetch{}, good: map[blobKey]struct{}{},
	}
	b.bound.init(max)
	return b
}

func (b *blobStore) path(id string) string { return filepath.Join(b.dir, id[:2], id[2:]) }

// isGood reports whether the file of a blob was found to be right and not
// evicted since.
func (b *blobStore) isGood(id string) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	_, ok := b.good[keyOf(id)]
	return ok
}

// nearSize is up to how many bytes a file is checked in less time than it takes
// to have somebody else do it.
const nearSize = 64 << 10

// isNear reports whether a blob can be opened without waiting for git or for
// much of the disk.
func (b *blobStore) isNear(id string, size int64) bool {
	b.mu.RLock()
	_, good := b.good[keyOf(id)]
	_, coming := b.fetches[id]
	b.mu.RUnlock()
	return good || small(size) && b.memory.has(keyOf(id)) || !coming && size <= nearSize && exists(b.path(id))
}

func (b *blobStore) setGood(id string) {
	b.mu.Lock()
	b.good[keyOf(id)] = struct{}{}
	b.mu.Unlock()
}

func (b *blobStore) forget(id string) {
	b.mu.Lock()
	delete(b.good, keyOf(id))
	b.mu.Unlock()
}

// open returns the blob id of size bytes, fetching it when it is not there or
// damaged.
func (b *blobStore) open(ctx context.Context, id string, size int64) (*os.File, error) {
	f, _, err := b.get(ctx, id, size)
	return f, err
}

// get is open; it also tells whether the blob came from git.
func (b *blobStore) get(ctx context.Context, id string, size int64) (f *os.File, fetched bool, err error) {
	const tries = 8 // against eviction in between and fetches that others gave up
	for range tries {
		if b.isGood(id) {
			if f, err := openSized(b.path(id), size); err == nil {
				return f, fetched, nil
			}
			b.forget(id)
		}
		f, from, err := b.obtain(ctx, id, size)
		fetched = fetched || from
		if f != nil || err != nil && !errors.Is(err, errGivenUp) {
			return f, fetched, err
		}
	}
	return nil, fetched, fmt.Errorf("blob %s is taken out of the cache as soon as it is there", id)
}

var errSize = errors.New("has another size")

func openSized(path string, size int64) (*os.File, error) {
	b, err := openBacking(path, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = unix.Fstat(b.fd, &st)
	if err == nil && st.Size != size {
		err = fmt.Errorf("%w: %d instead of %d bytes", errSize, st.Size, size)
	}
	if err != nil {
		b.close()
		return nil, err
	}
	return os.NewFile(uintptr(b.fd), path), nil
}

// errGivenUp is the error of a fetch that ended without having been tried.
var errGivenUp = errors.New("given up")

// claim enters a blob as being on its way. When somebody else has done so it
// returns that fetch and false.
func (b *blobStore) claim(id string) (*fetch, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.fetches[id]; f != nil {
		return f, false
	}
	f := &fetch{done: make(chan struct{})}
	b.fetches[id] = f
	return f, true
}

// settle ends a fetch.
func (b *blobStore) settle(id string, f *fetch, err error) {
	b.mu.Lock()
	if err == nil {
		b.good[keyOf(id)] = struct{}{}
	}
	delete(b.fetches, id)
	b.mu.Unlock()
	f.err = err
	close(f.done)
}

// obtain checks or fetches a blob once, however many ask for it at a time. The
// one who did it gets the file, the others nil.
func (b *blobStore) obtain(ctx context.Context, id string, size int64) (file *os.File, fetched bool, err error) {
	f, mine := b.claim(id)
	if !mine {
		<-f.done
		return nil, false, f.err
	}
	var volatile bool
	defer func() {
		if volatile {
			b.settle(id, f, errGivenUp) // the others make a copy of their own
		} else {
			b.settle(id, f, err)
		}
	}()
	if file := b.check(id, size); file != nil {
		return file, false, nil
	}
	// A fetch is used by everybody who waits for it: it does not end with the
	// request that happened to start it.
	err = b.objs.Blobs(context.WithoutCancel(ctx), []string{id}, func(_ int, n int64, content io.Reader, err error) error {
		if err == nil && n != size {
			err = errBlobSize(id, n, size)
		}
		if err == nil {
			file, volatile, err = b.put(id, n, content)
		}
		return err
	})
	if err != nil {
		return nil, true, err
	}
	return file, true, nil
}

// put makes the file of a blob and returns it open. When the disk cannot take
// it a small one is kept in memory only, which volatile tells.
func (b *blobStore) put(id string, size int64, content io.Reader) (f *os.File, volatile bool, err error) {
	if size > smallBlob {
		f, err = b.putLarge(id, size, content)
		return f, false, err
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(content, data); err != nil {
		return nil, false, err
	}
	if got := hashBlob(id, data); got != id {
		return nil, false, badObject(id, got)
	}
	f, err = b.create(id)
	if err == nil {
		if _, err = f.Write(data); err != nil {
			b.drop(id, f)
		}
	}
	if err != nil {
		b.log.Printf("blob cache: %v: blob %s is served from memory", err, id)
		if f, err = memoryFile(data); err == nil {
			return f, true, nil
		}
		return nil, false, err
	}
	b.added(size)
	return f, false, nil
}

// smallBlob is up to how many bytes a blob is written from memory.
const smallBlob = 4 << 20

func (b *blobStore) putLarge(id string, size int64, content io.Reader) (*os.File, error) {
	f, err := b.create(id)
	if err != nil {
		return nil, err
	}
	h := newBlobHash(id, size)
	n, err := io.Copy(io.MultiWriter(f, h), content)
	switch {
	case err != nil:
	case n != size:
		err = fmt.Errorf("blob %s: %w", id, io.ErrUnexpectedEOF)
	case sum(h) != id:
		err = badObject(id, sum(h))
	}
	if err != nil {
		b.drop(id, f)
		return nil, err
	}
	b.added(size)
	go b.noteChecked(id, size)
	return f, nil
}

// badObject is what git's own object is when its content is not its id's.
func badObject(id, got string) error {
	return fmt.Errorf("git's object %s is damaged, its content is that of %s: 'git fsck' tells more", id, got)
}

// create makes the empty file of a blob in place of what is there.
func (b *blobStore) create(id string) (*os.File, error) {
	path := b.path(id)
	for range 3 {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o444)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return nil, err
			}
		case errors.Is(err, fs.ErrExist):
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		default:
			return f, err
		}
	}
	return nil, &fs.PathError{Op: "create", Path: path, Err: syscall.EEXIST}
}

// drop removes a file that did not come to its end.
func (b *blobStore) drop(id string, f *os.File) {
	f.Close()
	if err := os.Remove(b.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.log.Printf("blob cache: %v", err)
	}
}

func memoryFile(data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("git-env-blob", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "memory")
	if _, err := f.Write(data); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
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
