package objects

import (
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// smallBlob is the size up to which a blob is held in memory, in bytes.
	smallBlob = 1 << 20
	// maxKnown bounds how many objects a Writer remembers to have written.
	maxKnown = 1 << 16
)

// Writer makes loose objects. It is safe for concurrent use.
type Writer struct {
	dir     string
	format  string
	idLen   int
	dirMode fs.FileMode
	zlib    sync.Pool

	pending pendingSync

	mu sync.Mutex
	// known are objects this Writer has written or read through; guarded by mu.
	known map[string]bool
}

// NewWriter returns a Writer into the objects directory of a repository of that
// object format. It does not create the directory.
func NewWriter(objectsDir, format string) (*Writer, error) {
	empty := EmptyTree(format)
	if empty == "" {
		return nil, fmt.Errorf("unknown object format '%s'", format)
	}
	st, err := os.Stat(objectsDir)
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		return nil, fmt.Errorf("%s: not a directory", objectsDir)
	}
	w := &Writer{
		dir:     objectsDir,
		format:  format,
		idLen:   len(empty),
		dirMode: st.Mode() & (fs.ModePerm | fs.ModeSetgid),
		known:   map[string]bool{},
		pending: pendingSync{dir: objectsDir},
	}
	w.zlib.New = func() any {
		// git's own choice for loose objects.
		z, _ := zlib.NewWriterLevel(io.Discard, zlib.BestSpeed)
		return z
	}
	return w, nil
}

// Format returns "sha1" or "sha256".
func (w *Writer) Format() string { return w.format }

// Has reports whether the object is there as a loose object; packs and
// alternates are not looked at.
func (w *Writer) Has(id string) bool {
	if len(id) != w.idLen || !isID(id) {
		return false
	}
	_, err := os.Lstat(w.path(id))
	return err == nil
}

// Write writes an object and returns its id.
func (w *Writer) Write(kind Kind, data []byte) (string, error) {
	id, err := Hash(w.format, kind, data)
	if err != nil {
		return "", err
	}
	if w.reuse(id) {
		return id, nil
	}
	t, err := w.create()
	if err != nil {
		return "", err
	}
	defer t.discard()
	if _, err := t.z.Write(header(kind, int64(len(data)))); err != nil {
		return "", err
	}
	if _, err := t.z.Write(data); err != nil {
		return "", err
	}
	return id, t.commit(id)
}

// Blob writes a blob of size bytes from r without holding a large one in
// memory. It is an error if r has fewer bytes (io.ErrUnexpectedEOF) or more.
func (w *Writer) Blob(r io.Reader, size int64) (string, error) {
	if size < 0 {
		return "", fmt.Errorf("invalid blob size %d", size)
	}
	if size <= smallBlob {
		buf := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
		if err := copyExactly(buf, r, size); err != nil {
			return "", fmt.Errorf("read blob: %w", err)
		}
		return w.Write(KindBlob, buf.Bytes())
	}
	t, err := w.create()
	if err != nil {
		return "", err
	}
	defer t.discard()
	h, err := newHash(w.format)
	if err != nil {
		return "", err
	}
	both := io.MultiWriter(h, t.z)
	if _, err := both.Write(header(KindBlob, size)); err != nil {
		return "", err
	}
	if err := copyExactly(both, r, size); err != nil {
		return "", fmt.Errorf("write blob: %w", err)
	}
	id, err := sum(h)
	if err != nil || w.reuse(id) {
		return id, err
	}
	return id, t.commit(id)
}

// Tree writes a tree of these entries, in any order.
func (w *Writer) Tree(entries []TreeEntry) (string, error) {
	data, err := encodeTree(entries, w.idLen)
	if err != nil {
		return "", err
	}
	return w.Write(KindTree, data)
}

// Commit writes a commit.
func (w *Writer) Commit(c *Commit) (string, error) {
	data, err := c.encode(w.idLen)
	if err != nil {
		return "", err
	}
	return w.Write(KindCommit, data)
}

// Sync makes everything durable that was written since the last Sync, and all
// that was found there instead of being written. It must return before a ref
// names any of it.
func (w *Writer) Sync() error { return w.pending.sync() }

func (w *Writer) path(id string) string { return filepath.Join(w.dir, id[:2], id[2:]) }

// reuse reports whether a sound object is there already. As git does, it
// renews the modification time, so that a concurrent prune spares the object.
func (w *Writer) reuse(id string) bool {
	path := w.path(id)
	now := time.Now()
	if err := os.Chtimes(path, now, now); err != nil {
		return false
	}
	if !w.isKnown(id) {
		if !w.sound(path, id) {
			return false
		}
		w.know(id)
	}
	w.pending.add(path, false)
	return true
}

// sound reads a loose object through and compares its id. A crash after a
// rename can leave an empty file that looks like an object.
func (w *Writer) sound(path, id string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	z, err := zlib.NewReader(f)
	if err != nil {
		return false
	}
	defer z.Close()
	h, err := newHash(w.format)
	if err != nil {
		return false
	}
	if _, err := io.Copy(h, z); err != nil {
		return false
	}
	got, err := sum(h)
	return err == nil && got == id
}

func (w *Writer) isKnown(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.known[id]
}

func (w *Writer) know(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.known) >= maxKnown {
		clear(w.known)
	}
	w.known[id] = true
}

// temp is an object being written.
type temp struct {
	w    *Writer
	f    *os.File
	z    *zlib.Writer
	done bool
}

// create opens a temporary file; git prunes files of this name when they are
// left behind by a crash.
func (w *Writer) create() (*temp, error) {
	f, err := os.CreateTemp(w.dir, "tmp_obj_")
	if err != nil {
		return nil, err
	}
	z := w.zlib.Get().(*zlib.Writer)
	z.Reset(f)
	return &temp{w: w, f: f, z: z}, nil
}

// commit gives the file its name.
func (t *temp) commit(id string) error {
	if err := t.z.Close(); err != nil {
		return err
	}
	if err := t.f.Chmod(0o444 & t.w.dirMode); err != nil {
		return err
	}
	if err := t.f.Close(); err != nil {
		return err
	}
	path := t.w.path(id)
	fresh := false
	err := os.Rename(t.f.Name(), path)
	if errors.Is(err, fs.ErrNotExist) {
		if fresh, err = t.w.mkdir(filepath.Dir(path)); err != nil {
			return err
		}
		err = os.Rename(t.f.Name(), path)
	}
	if err != nil {
		return err
	}
	t.done = true
	t.w.know(id)
	t.w.pending.add(path, fresh)
	return nil
}

// discard frees what create took; after commit it leaves the object alone.
func (t *temp) discard() {
	t.w.zlib.Put(t.z)
	if !t.done {
		t.f.Close()
		os.Remove(t.f.Name())
	}
}

// mkdir makes a fan-out directory as accessible as the objects directory.
func (w *Writer) mkdir(dir string) (fresh bool, err error) {
	err = os.Mkdir(dir, w.dirMode.Perm())
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, os.Chmod(dir, w.dirMode)
}
