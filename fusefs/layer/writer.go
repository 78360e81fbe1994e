package layer

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Originals lists the layers that a layer stands for: itself, unless it is a
// merged one.
func (m Meta) Originals() []string {
	if len(m.Replaces) > 0 {
		return m.Replaces
	}
	return []string{m.ID}
}

// A Writer makes a merged layer. It is a layer when Finish has returned; until
// then its directory has no meta.
type Writer struct {
	l   *Layer
	out *bufio.Writer
	buf []byte
	// touched are the directories below data with something in them.
	touched map[string]struct{}
}

// NewWriter makes the directory dir, which must not exist, for a merged layer.
func NewWriter(dir string, meta Meta) (*Writer, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(dir, "data"), 0o700); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return &Writer{
		l:   &Layer{dir: dir, meta: meta, log: log},
		out: bufio.NewWriterSize(log, 1<<18), touched: map[string]struct{}{},
	}, nil
}

// Append adds a record.
func (w *Writer) Append(r *Record) error {
	w.buf = AppendFrame(w.buf[:0], r)
	_, err := w.out.Write(w.buf)
	return err
}

// LinkData shares the data file of ino in layer from.
func (w *Writer) LinkData(from *Layer, ino uint64) error {
	if err := w.shard(ino); err != nil {
		return err
	}
	return os.Link(from.DataPath(ino), w.l.DataPath(ino))
}

// CreateData makes a data file, which the caller writes and syncs.
func (w *Writer) CreateData(ino uint64) (*os.File, error) {
	if err := w.shard(ino); err != nil {
		return nil, err
	}
	return os.OpenFile(w.l.DataPath(ino), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

func (w *Writer) shard(ino uint64) error {
	dir := filepath.Dir(w.l.DataPath(ino))
	if _, ok := w.touched[dir]; ok {
		return nil
	}
	w.touched[dir] = struct{}{}
	return os.Mkdir(dir, 0o700)
}

// TakeExtras keeps what else is in the directory of a layer that is going to be
// replaced, such as the tail that was cut off its log.
func (w *Writer) TakeExtras(from *Layer) error {
	entries, err := os.ReadDir(from.dir)
	if err != nil {
		return err
	}
	for _, d := range entries {
		name := d.Name()
		if !d.Type().IsRegular() || name == "meta" || name == "log" || strings.HasPrefix(name, ".") {
			continue
		}
		to := filepath.Join(w.l.dir, from.meta.ID+"-"+name)
		if len(from.meta.Replaces) > 0 {
			to = filepath.Join(w.l.dir, name) // says already where it is from
		}
		if err := os.Link(filepath.Join(from.dir, name), to); err != nil {
			return err
		}
	}
	return nil
}

// Flush brings all records into the log, so that it can be replayed.
func (w *Writer) Flush() error { return w.out.Flush() }

// Layer is what is being made, to be replayed only.
func (w *Writer) Layer() *Layer { return &Layer{dir: w.l.dir, meta: w.l.meta} }

// Finish makes everything durable and then, by its meta, a layer of it.
func (w *Writer) Finish() error {
	if err := w.Flush(); err != nil {
		return err
	}
	if err := w.l.log.Sync(); err != nil {
		return err
	}
	if err := w.l.Close(); err != nil {
		return err
	}
	for dir := range w.touched {
		if err := syncDir(dir); err != nil {
			return err
		}
	}
	if err := syncDir(filepath.Join(w.l.dir, "data")); err != nil {
		return err
	}
	if err := w.l.writeMeta(); err != nil {
		return err
	}
	return syncDir(filepath.Dir(w.l.dir))
}

// Abandon removes what was made. It is called instead of Finish.
func (w *Writer) Abandon() {
	_ = w.l.Close()
	_ = os.RemoveAll(w.l.dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// ErrInUse reports a layer that somebody holds.
var ErrInUse = errors.New("layer is in use")

// Hold keeps a layer from being removed until release is called or the process
// ends.
func Hold(dir string) (release func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		d.Close()
		return nil, &fs.PathError{Op: "lock", Path: dir, Err: err}
	}
	return func() { d.Close() }, nil
}

// Remove removes a layer, all of it or, when somebody holds it, nothing. One
// that is not there is no error.
func Remove(dir string) error {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	err = unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return &fs.PathError{Op: "remove", Path: dir, Err: ErrInUse}
	}
	if err != nil {
		return &fs.PathError{Op: "lock", Path: dir, Err: err}
	}
	// Without its meta it is no layer, however far this gets.
	if err := os.Remove(filepath.Join(dir, "meta")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(dir)
}
