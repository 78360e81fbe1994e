package layer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Version is the newest layer format this program reads: that of merged layers.
// All others are written as version 1.
const Version = 2

// ErrNewerFormat reports a layer that a newer program wrote.
var ErrNewerFormat = errors.New("layer has a newer format")

// ErrSealed reports a write to a sealed layer.
var ErrSealed = errors.New("layer is sealed")

// Meta describes a layer. It is the content of the file meta.
type Meta struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	// Parent is the layer underneath, "" at the bottom of a stack.
	Parent string `json:"parent,omitempty"`
	// StartSeq is the sequence number of the last record underneath: the
	// first record of this layer has StartSeq+1.
	StartSeq uint64 `json:"start_seq"`
	// FirstIno is the first inode number this layer may give to a new file.
	FirstIno uint64 `json:"first_ino"`
	Sealed   bool   `json:"sealed,omitempty"`
	// Replaces lists the layers, bottom to top, whose net effect a merged layer
	// is; none of them is a merged one itself.
	Replaces []string `json:"replaces,omitempty"`
}

// ErrDamaged reports a layer that cannot be read.
var ErrDamaged = errors.New("layer is damaged")

// A Layer is one layer directory. Reading methods may be used concurrently;
// Append is serialised by the caller, because the order of records is the
// order of changes.
type Layer struct {
	dir    string
	meta   Meta
	torn   bool
	damage []Damage

	log  *os.File // nil when opened read-only
	size int64    // bytes of whole frames in log
	room int64    // up to where blocks are allocated for log
	enc  encoder  // scratch of Append
	err  error    // sticky: the log could not be brought back to size

	mu     sync.Mutex // guards synced, and log against Close
	synced int64
}

// Create makes the directory dir with an empty layer in it and opens it for
// writing. A directory that a crash left without meta is taken over unless its
// log has something in it: ErrExist.
func Create(dir string, meta Meta) (*Layer, error) {
	meta.Version = 1
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o700); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dir, "meta")); err == nil {
		return nil, &fs.PathError{Op: "create layer", Path: dir, Err: fs.ErrExist}
	}
	if st, err := os.Stat(filepath.Join(dir, "log")); err == nil && st.Size() > 0 {
		return nil, &fs.PathError{Op: "create layer", Path: dir, Err: fs.ErrExist}
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	l := &Layer{dir: dir, meta: meta, log: log}
	if err := l.writeMeta(); err != nil {
		log.Close()
		return nil, err
	}
	return l, nil
}

// Open opens the layer in dir. With write it must not be sealed, and a torn
// tail of its log is cut off by Replay, which must be called before Append. A
// layer whose meta or log is missing or unreadable is ErrDamaged, one of which
// there is nothing at all ErrNotExist.
func Open(dir string, write bool) (*Layer, error) {
	l := &Layer{dir: dir}
	data, err := os.ReadFile(filepath.Join(dir, "meta"))
	if errors.Is(err, fs.ErrNotExist) {
		if st, serr := os.Stat(filepath.Join(dir, "log")); serr == nil && st.Size() > 0 {
			return nil, fmt.Errorf("layer %s: %w: its meta is gone", dir, ErrDamaged)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &l.meta); err != nil {
		return nil, fmt.Errorf("layer %s: %w: meta: %w", dir, ErrDamaged, err)
	}
	if l.meta.Version > Version {
		return nil, fmt.Errorf("layer %s: %w: version %d, this program reads up to %d",
			dir, ErrNewerFormat, l.meta.Version, Version)
	}
	if l.meta.Version < 1 || l.meta.ID == "" {
		return nil, fmt.Errorf("layer %s: %w: meta is incomplete", dir, ErrDamaged)
	}
	if !write {
		return l, nil
	}
	if l.meta.Sealed {
		return nil, fmt.Errorf("layer %s: %w", dir, ErrSealed)
	}
	return l, l.openLog()
}

func (l *Layer) openLog() error {
	log, err := os.OpenFile(filepath.Join(l.dir, "log"), os.O_RDWR|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("layer %s: %w: its log is gone: %w", l.dir, ErrDamaged, err)
	}
	l.log = log
	return err
}

// Rebuild writes the meta of a layer whose own is gone or damaged; it follows
// from the layers underneath. A damaged one is kept as meta.damaged.
func Rebuild(dir string, meta Meta) error {
	path := filepath.Join(dir, "meta")
	if err := os.Rename(path, path+".damaged"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	meta.Version = Version
	l := &Layer{dir: dir, meta: meta}
	return l.writeMeta()
}

// Assume opens a layer for reading as meta describes it, whatever its own says.
func Assume(dir string, meta Meta) *Layer {
	meta.Version = Version
	return &Layer{dir: dir, meta: meta}
}

// Meta returns what the layer says about itself.
func (l *Layer) Meta() Meta { return l.meta }

// Dir returns the directory of the layer.
func (l *Layer) Dir() string { return l.dir }

// Torn reports whether Replay found a cut-off tail.
func (l *Layer) Torn() bool { return l.torn }

// Size returns the size of the log in bytes, without a torn tail. It must not
// be called while Append is, nor before Replay.
func (l *Layer) Size() int64 { return l.size }

// Damage lists the parts of the log that Replay could not read, but for a tail.
func (l *Layer) Damage() []Damage { return l.damage }

// Cut returns how many bytes of torn tails were ever cut off the log.
func (l *Layer) Cut() int64 {
	st, err := os.Stat(filepath.Join(l.dir, "log.cut"))
	if err != nil {
		return 0
	}
	return st.Size()
}

// ReadDamage returns the bytes of d.
func (l *Layer) ReadDamage(d Damage) ([]byte, error) {
	f, err := os.Open(filepath.Join(l.dir, "log"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.NewSectionReader(f, d.Offset, d.Length))
}

// Append writes the records to the log with one write(2). Either all of them
// are in it afterwards or, with an error, none. Nothing is synced.
func (l *Layer) Append(recs ...Record) error {
	if l.log == nil {
		return ErrSealed
	}
	if l.err != nil {
		return l.err
	}
	l.enc.b = l.enc.b[:0]
	for i := range recs {
		l.enc.frame(&recs[i])
	}
	if err := l.allocate(int64(len(l.enc.b))); err != nil && !removes(recs) {
		return err
	}
	n, err := writeAll(int(l.log.Fd()), l.enc.b)
	if err == nil {
		l.size += int64(n)
		return nil
	}
	if n > 0 {
		if terr := l.log.Truncate(l.size); terr != nil {
			l.err = fmt.Errorf("log of layer %s is damaged: %w", l.meta.ID, terr)
		}
	}
	return err
}

const (
	// ahead is how far blocks for the log are allocated before they are
	// needed. Only removals may use the last part, so that something can be
	// removed when the disk is full.
	ahead   = 64 << 10
	reserve = 16 << 10
)

// allocate makes sure that n more bytes fit without using the reserve.
func (l *Layer) allocate(n int64) error {
	if l.size+n+reserve <= l.room {
		return nil
	}
	err := unix.Fallocate(int(l.log.Fd()), unix.FALLOC_FL_KEEP_SIZE, l.size, n+ahead)
	switch {
	case err == nil:
		l.room = l.size + n + ahead
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return err
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
		l.room = math.MaxInt64 // the file system cannot
	}
	return nil
}

func removes(recs []Record) bool {
	for i := range recs {
		if recs[i].Kind == KindRemove {
			return true
		}
	}
	return false
}

func writeAll(fd int, b []byte) (int, error) {
	done := 0
	for done < len(b) {
		n, err := unix.Write(fd, b[done:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// Sync makes every record appended before the call durable. Calls that arrive
// while nothing was appended cost nothing.
func (l *Layer) Sync() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.log == nil {
		return nil
	}
	st, err := l.log.Stat()
	if err != nil {
		return err
	}
	if st.Size() == l.synced {
		return nil
	}
	if err := l.log.Sync(); err != nil {
		return err
	}
	l.synced = st.Size()
	return nil
}

// Seal makes everything in the layer durable and marks it as immutable. The
// caller appends nothing any more. Sealing a sealed layer does nothing.
func (l *Layer) Seal() error {
	if l.meta.Sealed {
		return nil
	}
	if err := l.SyncAll(); err != nil {
		return err
	}
	l.meta.Sealed = true
	if err := l.writeMeta(); err != nil {
		l.meta.Sealed = false
		return err
	}
	return nil
}

// SyncAll makes the log and all data files durable.
func (l *Layer) SyncAll() error {
	d, err := os.Open(l.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return &fs.PathError{Op: "syncfs", Path: l.dir, Err: err}
	}
	return nil
}

// Close releases the log. The layer stays readable through its paths.
func (l *Layer) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.log == nil {
		return nil
	}
	err := l.log.Close()
	l.log = nil
	return err
}

// DataPath returns the path of the data file of ino, which need not exist.
func (l *Layer) DataPath(ino uint64) string {
	return filepath.Join(l.dir, "data", shard(ino), strconv.FormatUint(ino, 16))
}

func shard(ino uint64) string {
	const digits = "0123456789abcdef"
	return string([]byte{digits[ino>>4&15], digits[ino&15]})
}

// CreateData creates an empty data file for ino, replacing one that a crash
// left behind, and opens it for reading and writing.
func (l *Layer) CreateData(ino uint64) (*os.File, error) {
	const flags = os.O_RDWR | os.O_CREATE | os.O_TRUNC
	f, err := os.OpenFile(l.DataPath(ino), flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(l.DataPath(ino)), 0o700); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(l.DataPath(ino), flags, 0o600)
	}
	return f, err
}

// DataFiles calls fn with the inode number of every data file.
func (l *Layer) DataFiles(fn func(ino uint64) error) error {
	return filepath.WalkDir(filepath.Join(l.dir, "data"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		ino, err := strconv.ParseUint(d.Name(), 16, 64)
		if err != nil {
			return nil // not ours
		}
		return fn(ino)
	})
}

func (l *Layer) writeMeta() error {
	data, err := json.Marshal(&l.meta)
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(l.dir, "meta"), append(data, '\n'))
}

func replaceFile(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".meta-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
