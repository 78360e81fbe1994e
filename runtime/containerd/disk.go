package containerd

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// touch makes an empty file, and the directory it is in when that is missing.
func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		f, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	}
	if err != nil {
		return err
	}
	return f.Close()
}

func isEmpty(dir string) (bool, error) {
	f, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, err = f.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

// copyDirMeta gives dst the mode, owner and times of src, both directories.
func copyDirMeta(src, dst string) error {
	var st unix.Stat_t
	if err := unix.Lstat(src, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: src, Err: err}
	}
	return applyMeta(dst, &st)
}

func sameDirMeta(a, b string) (bool, error) {
	var sa, sb unix.Stat_t
	if err := unix.Lstat(a, &sa); err != nil {
		return false, &os.PathError{Op: "lstat", Path: a, Err: err}
	}
	if err := unix.Lstat(b, &sb); err != nil {
		return false, &os.PathError{Op: "lstat", Path: b, Err: err}
	}
	return sa.Mode == sb.Mode && sa.Uid == sb.Uid && sa.Gid == sb.Gid, nil
}

// applyMeta sets owner, mode and times of a path from a stat, without following
// a final symbolic link.
func applyMeta(path string, st *unix.Stat_t) error {
	if err := unix.Lchown(path, int(st.Uid), int(st.Gid)); err != nil {
		return &os.PathError{Op: "lchown", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(path, st.Mode&0o7777); err != nil {
			return &os.PathError{Op: "chmod", Path: path, Err: err}
		}
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "utimes", Path: path, Err: err}
	}
	return nil
}

// newLayerID is a random name.
func newLayerID() string {
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // never fails
	return hex.EncodeToString(raw[:])
}
