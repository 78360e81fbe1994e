package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// copyTops copies the writable layers of a root filesystem. Nothing may change
// them meanwhile. They are full of what a container made: no name is followed.
func copyTops(ctx context.Context, src, tmp string, overlays []overlay) error {
	t := &treeCopier{ctx: ctx, links: make(map[inode]string)}
	for _, o := range overlays {
		from, to := filepath.Join(src, o.Name), filepath.Join(tmp, "top", o.Name)
		if err := t.children(from, to); err != nil {
			return fmt.Errorf("copy layer: %w", err)
		}
		var st unix.Stat_t
		if err := unix.Lstat(from, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: from, Err: err}
		}
		if err := t.meta(from, to, &st); err != nil {
			return err
		}
	}
	return nil
}

// CopyTree implements runtime.Backend.
func (b *Backend) CopyTree(ctx context.Context, src, dst string) error {
	t := &treeCopier{ctx: ctx, links: make(map[inode]string)}
	return t.entry(src, dst)
}

type inode struct{ dev, ino uint64 }

// treeCopier copies trees faithfully: modes, owners, times, extended attributes
// (overlayfs keeps its own there), whiteouts and other devices, hard links.
type treeCopier struct {
	ctx   context.Context
	links map[inode]string // first copy of files with several names
}

func (t *treeCopier) children(src, dst string) error {
	names, err := readNames(src)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := t.entry(filepath.Join(src, name), filepath.Join(dst, name)); err != nil {
			return err
		}
	}
	return nil
}

func (t *treeCopier) entry(src, dst string) error {
	if err := t.ctx.Err(); err != nil {
		return context.Cause(t.ctx)
	}
	var st unix.Stat_t
	if err := unix.Lstat(src, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: src, Err: err}
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && st.Nlink > 1 {
		key := inode{uint64(st.Dev), st.Ino}
		if first, ok := t.links[key]; ok {
			return os.Link(first, dst)
		}
		t.links[key] = dst
	}
	var err error
	switch kind {
	case unix.S_IFDIR:
		if err = os.Mkdir(dst, 0o700); err == nil {
			err = t.children(src, dst)
		}
	case unix.S_IFREG:
		err = copyFile(src, dst)
	case unix.S_IFLNK:
		var target string
		if target, err = os.Readlink(src); err == nil {
			err = os.Symlink(target, dst)
		}
	default:
		err = unix.Mknod(dst, st.Mode, int(st.Rdev))
	}
	if err != nil {
		return fmt.Errorf("copy %s: %w", src, err)
	}
	return t.meta(src, dst, &st)
}

// meta copies attributes; extended ones first, for a mode may forbid nothing to
// root but changing the owner clears capabilities.
func (t *treeCopier) meta(src, dst string, st *unix.Stat_t) error {
	if err := unix.Lchown(dst, int(st.Uid), int(st.Gid)); err != nil {
		return &os.PathError{Op: "lchown", Path: dst, Err: err}
	}
	if err := copyXattrs(src, dst); err != nil {
		return err
	}
	return applyMeta(dst, st)
}

func copyXattrs(src, dst string) error {
	names, err := listXattrs(src)
	if err != nil {
		return err
	}
	for _, name := range names {
		value := make([]byte, 256)
		n, err := unix.Lgetxattr(src, name, value)
		if errors.Is(err, unix.ERANGE) {
			if n, err = unix.Lgetxattr(src, name, nil); err == nil {
				value = make([]byte, n)
				n, err = unix.Lgetxattr(src, name, value)
			}
		}
		if err == nil {
			err = unix.Lsetxattr(dst, name, value[:n], 0)
		}
		if err != nil && !errors.Is(err, unix.ENODATA) {
			return &os.PathError{Op: "copy attribute " + name, Path: src, Err: err}
		}
	}
	return nil
}

func listXattrs(path string) ([]string, error) {
	buf := make([]byte, 1024)
	n, err := unix.Llistxattr(path, buf)
	if errors.Is(err, unix.ERANGE) {
		buf = make([]byte, 64<<10)
		n, err = unix.Llistxattr(path, buf)
	}
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "listxattr", Path: path, Err: err}
	}
	var names []string
	for start, i := 0, 0; i < n; i++ {
		if buf[i] == 0 {
			names = append(names, string(buf[start:i]))
			start = i + 1
		}
	}
	return names, nil
}

// copyFile copies a regular file, sharing its blocks where the file system can.
func copyFile(src, dst string) error {
	in, err := os.OpenFile(src, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NOATIME, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	if err := unix.IoctlFileClone(int(out.Fd()), int(in.Fd())); err != nil {
		if err := copyData(in, out); err != nil {
			out.Close()
			return err
		}
	}
	return out.Close()
}

// copyData copies what is not a hole.
func copyData(in, out *os.File) error {
	info, err := in.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if err := out.Truncate(size); err != nil {
		return err
	}
	for pos := int64(0); pos < size; {
		data, err := unix.Seek(int(in.Fd()), pos, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // nothing but a hole up to the end
		}
		end := size
		if err != nil {
			data = pos // this file system does not tell holes
		} else if end, err = unix.Seek(int(in.Fd()), data, unix.SEEK_HOLE); err != nil {
			end = size
		}
		if _, err := in.Seek(data, io.SeekStart); err != nil {
			return err
		}
		if _, err := out.Seek(data, io.SeekStart); err != nil {
			return err
		}
		n, err := io.CopyN(out, in, end-data)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n == 0 {
			return nil
		}
		pos = data + n
	}
	return nil
}
