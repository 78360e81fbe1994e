package fusefs

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// TarSink writes entries to a tar archive with PAX headers.
func TarSink(w *tar.Writer) func(*ExportEntry) error {
	return func(e *ExportEntry) error {
		h := &tar.Header{
			Name: e.Path, Mode: int64(e.Mode & 0o7777), Uid: int(e.UID), Gid: int(e.GID), ModTime: e.Mtime,
			Format: tar.FormatPAX, Typeflag: tar.TypeReg, Size: e.Size, PAXRecords: map[string]string{},
		}
		for name, value := range e.Xattrs {
			h.PAXRecords["SCHILY.xattr."+name] = string(value)
		}
		switch e.Mode & syscall.S_IFMT {
		case syscall.S_IFDIR:
			h.Typeflag, h.Name = tar.TypeDir, e.Path+"/"
		case syscall.S_IFLNK:
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, e.Target, 0
		case syscall.S_IFIFO:
			h.Typeflag = tar.TypeFifo
		case syscall.S_IFCHR, syscall.S_IFBLK:
			h.Typeflag = tar.TypeChar
			if e.Mode&syscall.S_IFMT == syscall.S_IFBLK {
				h.Typeflag = tar.TypeBlock
			}
			h.Devmajor, h.Devminor = int64(unix.Major(uint64(e.Rdev))), int64(unix.Minor(uint64(e.Rdev)))
		case syscall.S_IFSOCK:
			return nil // an archive has none, and it is nothing without its process
		}
		if e.Link != "" {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, e.Link, 0
		}
		if err := w.WriteHeader(h); err != nil {
			return fmt.Errorf("%s: %w", e.Path, err)
		}
		if h.Typeflag != tar.TypeReg {
			return nil
		}
		if _, err := io.Copy(w, e.Content()); err != nil {
			return fmt.Errorf("%s: %w", e.Path, err)
		}
		return nil
	}
}

// DirSink writes entries below a directory. Finish sets what comes last.
type DirSink struct {
	root *os.Root
	dirs []*ExportEntry // to be finished
}

// ErrNotEmpty reports a directory that an export would mix with what is there.
var ErrNotEmpty = errors.New("directory is not empty")

// NewDirSink opens dir, which is made when it does not exist; what is in it would
// not be told from what is exported, so it has to be empty. No symbolic link
// leads out of it.
func NewDirSink(dir string) (*DirSink, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	d, err := root.Open(".")
	if err != nil {
		root.Close()
		return nil, err
	}
	defer d.Close()
	if names, err := d.Readdirnames(1); len(names) > 0 || !errors.Is(err, io.EOF) {
		root.Close()
		if len(names) > 0 {
			err = &os.PathError{Op: "export", Path: dir, Err: ErrNotEmpty}
		}
		return nil, err
	}
	return &DirSink{root: root}, nil
}

// Put writes one entry.
func (s *DirSink) Put(e *ExportEntry) error {
	if e.Link != "" {
		return s.root.Link(e.Link, e.Path)
	}
	switch kind := e.Mode & syscall.S_IFMT; kind {
	case syscall.S_IFDIR:
		s.dirs = append(s.dirs, e)
		if e.Path == "." {
			return nil
		}
		return s.root.Mkdir(e.Path, 0o700)
	case syscall.S_IFLNK:
		if err := s.root.Symlink(e.Target, e.Path); err != nil {
			return err
		}
		return s.at(e, func(dir int, name string) error {
			if err := owned(unix.Fchownat(dir, name, int(e.UID), int(e.GID), unix.AT_SYMLINK_NOFOLLOW)); err != nil {
				return err
			}
			ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(e.Mtime.UnixNano())}
			return unix.UtimesNanoAt(dir, name, ts, unix.AT_SYMLINK_NOFOLLOW)
		})
	case syscall.S_IFREG:
		return s.file(e)
	default:
		if err := s.at(e, func(dir int, name string) error { return unix.Mknodat(dir, name, kind|0o600, int(e.Rdev)) }); err != nil {
			return err
		}
		return s.attributes(e)
	}
}

// at calls fn with the directory of an entry and its name there.
func (s *DirSink) at(e *ExportEntry, fn func(dir int, name string) error) error {
	d, err := s.root.Open(filepath.Dir(e.Path))
	if err != nil {
		return err
	}
	defer d.Close()
	if err := fn(int(d.Fd()), filepath.Base(e.Path)); err != nil {
		return &os.PathError{Op: "export", Path: e.Path, Err: err}
	}
	return nil
}

func (s *DirSink) file(e *ExportEntry) error {
	f, err := s.root.OpenFile(e.Path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = fill(backingFile{fd: int(f.Fd())}, e.ref, e.Size)
	for name, value := range e.Xattrs {
		if xerr := owned(unix.Fsetxattr(int(f.Fd()), name, value, 0)); err == nil && xerr != nil {
			err = fmt.Errorf("extended attribute %s: %w", name, xerr)
		}
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return &os.PathError{Op: "export", Path: e.Path, Err: err}
	}
	return s.attributes(e)
}

// attributes sets owner, permissions and time, in this order: a new owner costs
// set-user-id bits, and everything is a change.
func (s *DirSink) attributes(e *ExportEntry) error {
	if err := owned(s.root.Lchown(e.Path, int(e.UID), int(e.GID))); err != nil {
		return err
	}
	err := s.at(e, func(dir int, name string) error { return unix.Fchmodat(dir, name, e.Mode&0o7777, 0) })
	if err != nil {
		return err
	}
	return s.root.Chtimes(e.Path, time.Time{}, e.Mtime)
}

// owned forgives that somebody without privilege cannot give files away.
func owned(err error) error {
	if os.Geteuid() != 0 && errors.Is(err, unix.EPERM) {
		return nil
	}
	return err
}

// Finish gives directories their attributes, the deepest first, which writing
// into them would change. The sink is not used any more.
func (s *DirSink) Finish() error {
	defer s.root.Close()
	for i := len(s.dirs) - 1; i >= 0; i-- {
		e := s.dirs[i]
		for name, value := range e.Xattrs {
			if !strings.HasPrefix(name, "user.") && os.Geteuid() != 0 {
				continue
			}
			d, err := s.root.Open(e.Path)
			if err != nil {
				return err
			}
			err = unix.Fsetxattr(int(d.Fd()), name, value, 0)
			d.Close()
			if err != nil {
				return &os.PathError{Op: "setxattr " + name, Path: e.Path, Err: err}
			}
		}
		if err := s.attributes(e); err != nil {
			return err
		}
	}
	return nil
}
