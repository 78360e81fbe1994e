package fusefs

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bound keeps the files of a blobStore within a number of bytes. What was used
// the longest ago goes first, by the time at which a server opened it first.
// It costs nothing per read: what was added is counted, and only a pass, in the
// background, looks at the files.
type bound struct {
	max     int64        // bytes; 0 for any number
	total   atomic.Int64 // bytes counted
	limit   atomic.Int64 // a total above it starts a pass
	passing atomic.Bool
	last    atomic.Int64 // when a pass ended, in nanoseconds
}

// passPause is how long a pass that could not do enough, because too much was
// open, is not followed by another one without a reason.
const passPause = 10 * time.Second

func (b *bound) init(max int64) {
	b.max = max
	b.limit.Store(-1) // the first use starts one: nothing is counted yet
}

// onDisk is about what a file of size bytes takes.
func onDisk(size int64) int64 { return (size + 4095) &^ 4095 }

// CacheSize returns how many bytes of ServerOptions.BlobCache a blob takes.
func CacheSize(size int64) int64 { return onDisk(size) }

// CacheRoom returns how many bytes of blobs stay in a cache with a bound of max
// bytes, once there was more.
func CacheRoom(max int64) int64 { return max - max/10 }

// added counts a file that was made in the store.
func (b *blobStore) added(size int64) {
	b.total.Add(onDisk(size))
	b.used()
}

// used starts a pass when there is too much.
func (b *blobStore) used() {
	if b.max <= 0 {
		return
	}
	total := b.total.Load()
	due := total > b.limit.Load() || total > b.max && now()-b.last.Load() > int64(passPause)
	if due && b.passing.CompareAndSwap(false, true) {
		go b.pass()
	}
}

type cachedFile struct {
	path string
	size int64
	used int64
}

// pass counts the files and removes the oldest ones if they are too many.
func (b *blobStore) pass() {
	defer b.passing.Store(false)
	before := b.total.Load()
	files, total := b.scan()
	if total > b.max {
		// A bit more, so that the next file does not start the next pass.
		enough := CacheRoom(b.max)
		slices.SortFunc(files, func(a, c cachedFile) int { return cmp.Compare(a.used, c.used) })
		for _, f := range files {
			if total <= enough {
				break
			}
			if b.evict(f.path) {
				total -= f.size
			}
		}
	}
	// What was added meanwhile may be counted twice, until the next pass.
	after := b.total.Add(total - before)
	if after > b.max {
		after += b.max / 16
	}
	b.limit.Store(max(b.max, after))
	b.last.Store(now())
}

// staleAge is how old a temporary file is when nobody is writing it any more.
const staleAge = time.Hour

func (b *blobStore) scan() (files []cachedFile, total int64) {
	dirs, err := os.ReadDir(b.dir)
	if err != nil {
		b.log.Printf("blob cache: %v", err)
	}
	for _, d := range dirs {
		dir := filepath.Join(b.dir, d.Name())
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // not a directory, or gone
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			var st unix.Stat_t
			if unix.Lstat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
				continue
			}
			if strings.HasPrefix(e.Name(), ".") {
				if time.Since(time.Unix(st.Ctim.Unix())) > staleAge {
					_ = os.Remove(path)
				}
				continue
			}
			size := onDisk(st.Size)
			files = append(files, cachedFile{path, size, st.Atim.Nano()})
			total += size
		}
	}
	return files, total
}

// evict removes a file unless somebody, here or in another process, has it
// open: the lease says so, and keeps everybody from opening it until it is gone.
func (b *blobStore) evict(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, syscall.F_WRLCK); err == unix.EAGAIN {
		return false
	}
	// Without leases an open file goes too, which does it no harm.
	if id := filepath.Base(filepath.Dir(path)) + filepath.Base(path); isBlobID(id) {
		b.forget(id)
	}
	return os.Remove(path) == nil
}

// isBlobID tells the file of a blob from one that was made of it.
func isBlobID(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}
