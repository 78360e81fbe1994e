package fusefs

import (
	"errors"
	"io"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// backingFile is an open file with the bytes of a node. It is a bare
// descriptor: what package os does beyond the system call, for files that
// might be polled, costs more than the call.
type backingFile struct {
	fd   int
	file *os.File // owner of fd; nil when that is us
}

// openBacking opens the file at path.
func openBacking(path string, flags int, perm uint32) (backingFile, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, perm)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return backingFile{}, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return backingFile{fd: fd}, nil
	}
}

func (b backingFile) close() {
	if b.file != nil {
		b.file.Close()
		return
	}
	unix.Close(b.fd)
}

// ReadAt implements io.ReaderAt.
func (b backingFile) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pread(b.fd, p[done:], off+int64(done))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return done, os.NewSyscallError("pread", err)
		case n == 0:
			return done, io.EOF
		default:
			done += n
		}
	}
	return done, nil
}

// WriteAt implements io.WriterAt.
func (b backingFile) WriteAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pwrite(b.fd, p[done:], off+int64(done))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return done, os.NewSyscallError("pwrite", err)
		case n == 0:
			return done, io.ErrShortWrite
		default:
			done += n
		}
	}
	return done, nil
}

// truncate sets the size. An empty file that is to be empty, as every new one
// that is opened with O_TRUNC, only gets its time: ext4 takes the call for the
// file being replaced, and then writes it to the disk when it is closed.
func (b backingFile) truncate(size int64) error {
	var st unix.Stat_t
	if size == 0 && unix.Fstat(b.fd, &st) == nil && st.Size == 0 && st.Blocks == 0 {
		return b.touch()
	}
	return os.NewSyscallError("ftruncate", retry(func() error { return unix.Ftruncate(b.fd, size) }))
}

// backingTime are the arguments of utimensat that set a modification time.
func backingTime(at int64) [2]unix.Timespec {
	return [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(at)}
}

// touch sets the modification time to the present.
func (b backingFile) touch() error {
	ts := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_NOW}}
	return b.utimens(&ts)
}

// setMtime sets the modification time.
func (b backingFile) setMtime(at int64) error {
	ts := backingTime(at)
	return b.utimens(&ts)
}

func (b backingFile) utimens(ts *[2]unix.Timespec) error {
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(b.fd), 0, uintptr(unsafe.Pointer(ts)), 0, 0, 0)
	if errno != 0 {
		return os.NewSyscallError("utimensat", errno)
	}
	return nil
}

func (b backingFile) sync() error {
	return os.NewSyscallError("fsync", retry(func() error { return unix.Fsync(b.fd) }))
}

func retry(fn func() error) error {
	for {
		if err := fn(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// fdCache keeps backing files open, since the kernel never tells us about
// open and close. It holds at most max files that nobody is using.
type fdCache struct {
	max int

	mu   sync.Mutex
	refs map[fdKey]*fdRef // guarded by mu, as is everything in them
	idle fdRef            // head of the ring of those without users, oldest next
	n    int              // how many are in the ring
}

// fdKey names a backing file: of an inode, in a layer or (noData) its blob.
type fdKey struct {
	w     *workspace
	ino   uint64
	layer int16
}

// fdRef is an open backing file that stays open until released.
type fdRef struct {
	backingFile
	key        fdKey
	users      int
	gone       bool // dropped while in use
	prev, next *fdRef
}

func newFdCache(max int) *fdCache {
	c := &fdCache{max: max, refs: map[fdKey]*fdRef{}}
	c.idle.prev, c.idle.next = &c.idle, &c.idle
	return c
}

// get returns the open file for key and counts one more user, or nil.
func (c *fdCache) get(key fdKey) *fdRef {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.refs[key]
	if r != nil {
		c.use(r)
	}
	return r
}

// has reports whether the file for key is open.
func (c *fdCache) has(key fdKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refs[key] != nil
}

func (c *fdCache) use(r *fdRef) {
	r.users++
	c.unlink(r)
}

// unlink takes r out of the ring, if it is there.
func (c *fdCache) unlink(r *fdRef) {
	if r.next == nil {
		return
	}
	r.prev.next, r.next.prev = r.next, r.prev
	r.prev, r.next = nil, nil
	c.n--
}

// put adds an open file, unless another one was faster, and returns the one
// to use.
func (c *fdCache) put(key fdKey, f backingFile) *fdRef {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.refs[key]; r != nil {
		f.close()
		c.use(r)
		return r
	}
	r := &fdRef{backingFile: f, key: key, users: 1}
	c.refs[key] = r
	return r
}

// release ends the use of a file that get or put returned.
func (c *fdCache) release(r *fdRef) {
	if f, last := c.leave(r); last {
		f.close() // not with the lock: it may write
	}
}

// leave is release but for closing what has to be closed.
func (c *fdCache) leave(r *fdRef) (backingFile, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.users--
	switch {
	case r.users > 0:
		return backingFile{}, false
	case r.gone:
		return r.backingFile, true
	}
	last := c.idle.prev
	r.prev, r.next = last, &c.idle
	last.next, c.idle.prev = r, r
	c.n++
	if c.n <= c.max {
		return backingFile{}, false
	}
	old := c.idle.next
	c.evict(old)
	return old.backingFile, true
}

// evict takes r out of the cache and reports whether the caller may close it
// now; else its last user does.
func (c *fdCache) evict(r *fdRef) bool {
	delete(c.refs, r.key)
	c.unlink(r)
	r.gone = true
	return r.users == 0
}

// drop closes the file for key.
func (c *fdCache) drop(key fdKey) {
	c.mu.Lock()
	r := c.refs[key]
	idle := r != nil && c.evict(r)
	c.mu.Unlock()
	if idle {
		r.close()
	}
}

// dropAll closes the files of a workspace.
func (c *fdCache) dropAll(w *workspace) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, r := range c.refs {
		if key.w == w && c.evict(r) {
			r.close()
		}
	}
}
