package fusefs

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// newBlobHash returns the hash of a blob that is to have the id, before its
// content. It only has to tell damage: git has looked for collisions.
func newBlobHash(id string, size int64) hash.Hash {
	var h hash.Hash
	if len(id) == 2*sha1.Size {
		h = sha1.New()
	} else {
		h = sha256.New()
	}
	h.Write(strconv.AppendInt([]byte("blob "), size, 10))
	h.Write([]byte{0})
	return h
}

func hashBlob(id string, data []byte) string {
	h := newBlobHash(id, int64(len(data)))
	h.Write(data)
	return sum(h)
}

func sum(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// check returns the file of a blob when it is there and right, else nil; damage
// is logged. It reads all of it, at the speed of the hash, which is above that
// of most disks. For a large one the result is noted at the file, so that the
// next server need not.
func (b *blobStore) check(id string, size int64) *os.File {
	path := b.path(id)
	f, err := openSized(path, size)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		if size <= smallBlob || !isChecked(f) {
			if err = b.verify(f, id, size); err == nil && size > smallBlob {
				go b.noteChecked(id, size)
			}
		}
	}
	if err != nil {
		b.log.Printf("cached blob %s is damaged (%v): asking git for it again", id, err)
		if f != nil {
			f.Close()
		}
		return nil
	}
	b.noteUse(f)
	b.used()
	return f
}

// useGrain is how exactly it is known when a file was used last.
const useGrain = time.Hour

// noteUse notes, at most once in a server's life, that a file is used; also
// where the file system does not keep access times by itself.
func (b *blobStore) noteUse(f *os.File) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err == nil && time.Since(time.Unix(st.Atim.Unix())) < useGrain {
		return
	}
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_OMIT}}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, f.Name(), now, 0); err != nil && err != unix.ENOENT {
		b.log.Printf("blob cache: %s: %v", f.Name(), err)
	}
}

func (b *blobStore) verify(f *os.File, id string, size int64) error {
	h := newBlobHash(id, size)
	// ReadAt, since whoever uses the file may share its offset.
	if _, err := io.CopyBuffer(h, io.NewSectionReader(f, 0, size), make([]byte, min(size+1, 256<<10))); err != nil {
		return err
	}
	if got := sum(h); got != id {
		return fmt.Errorf("its content is that of %s", got)
	}
	return nil
}

// checkedAttr holds what a large file looked like when its content was found
// to be right and was on the disk.
const checkedAttr = "user.git-env.checked"

// looks tells a file that was changed from one that was not.
func looks(f *os.File) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d %d %d", st.Ino, st.Size, st.Mtim.Nano()), nil
}

func isChecked(f *os.File) bool {
	now, err := looks(f)
	if err != nil {
		return false
	}
	buf := make([]byte, 128)
	n, err := unix.Fgetxattr(int(f.Fd()), checkedAttr, buf)
	return err == nil && string(buf[:n]) == now
}

// noteChecked makes a large file, which is right, durable and says so. Where
// that cannot be said the next server checks it again.
func (b *blobStore) noteChecked(id string, size int64) {
	f, err := openSized(b.path(id), size)
	if err != nil {
		return // evicted
	}
	defer f.Close()
	as, err := looks(f)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		_ = unix.Fsetxattr(int(f.Fd()), checkedAttr, []byte(as), 0)
	}
}

// lostSize is the size of a blob that git does not have: that of the cached
// copy, when it is right. Otherwise the file is shown with one byte, so that
// reading it fails rather than finds it empty, and the others of its directory
// can be read.
func (b *blobStore) lostSize(id string) int64 {
	st, err := os.Lstat(b.path(id))
	if err == nil {
		if f := b.check(id, st.Size()); f != nil {
			f.Close()
			b.setGood(id)
			b.log.Printf("git does not have blob %s any more: it is served from the cache; 'git fsck' tells more", id)
			return st.Size()
		}
	}
	b.log.Printf("git does not have blob %s, and it is not in the cache: reading it fails; 'git fsck' tells more", id)
	return 1
}
