package fusefs

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/internal/conversion"
)

// convertStore keeps converted content as files beside the blobs, shared by all
// mounts: <2 hex>/<rest of the id>.<key>-<size>. The key stands for everything
// that the content depends on besides the blob. The size is in the name so that
// a file which a crash of the machine cut short is known for what it is.
type convertStore struct {
	blobs *blobStore
	temps atomic.Uint64

	mu      sync.Mutex
	shards  map[string]map[uint64]int64 // guarded by mu: sizes by shard and hash of the name, as far as looked at
	fetches map[string]*conversionFetch // guarded by mu
	failed  map[string]failure          // guarded by mu
}

// conversionFetch is a conversion under way.
type conversionFetch struct {
	fetch
	size int64
}

// failure is why a conversion failed, which it is believed to do again for a
// moment: one look at a file asks several times.
type failure struct {
	err   error
	until time.Time
}

const (
	failureTime = time.Second
	maxFailures = 1024
)

func newConvertStore(b *blobStore) *convertStore {
	return &convertStore{
		blobs: b, shards: map[string]map[uint64]int64{}, fetches: map[string]*conversionFetch{}, failed: map[string]failure{},
	}
}

func (s *convertStore) path(id, key string, size int64) string {
	return s.blobs.path(id) + "." + key + "-" + strconv.FormatInt(size, 10)
}

// open returns the content c and its size, converting it when it is not there.
func (s *convertStore) open(ctx context.Context, tree *conversion.Tree, c lowerContent) (*os.File, int64, error) {
	key := c.rule.Key(c.path)
	for attempt := 0; ; attempt++ {
		if size, ok := s.known(c.id, key, c.size); ok {
			f, err := openSized(s.path(c.id, key, size), size)
			if err == nil {
				if c.size < 0 {
					s.touch(f.Name())
				}
				return f, size, nil
			}
			if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errSize) {
				return nil, 0, err
			}
			s.forget(c.id, key)
		}
		if attempt > 1 {
			return nil, 0, errors.New("it goes missing as soon as it is made")
		}
		size, err := s.convert(ctx, tree, c, key)
		if err != nil {
			return nil, 0, err
		}
		if c.size >= 0 && size != c.size {
			return nil, 0, fmt.Errorf("it has %d bytes where it had %d before: mount it again", size, c.size)
		}
	}
}

// known returns the size of a conversion that is believed to be there.
func (s *convertStore) known(id, key string, size int64) (int64, bool) {
	if size >= 0 {
		return size, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	size, ok := s.shard(id)[nameHash(id, key)]
	return size, ok
}

func nameHash(id, key string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(id[2:] + "." + key))
	return h.Sum64()
}

// shard lists the conversions in the directory of id, once. mu is held.
func (s *convertStore) shard(id string) map[uint64]int64 {
	dir := id[:2]
	if m, ok := s.shards[dir]; ok {
		return m
	}
	m := map[uint64]int64{}
	entries, err := os.ReadDir(filepath.Dir(s.blobs.path(id)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return m // it cannot be opened either
	}
	for _, e := range entries {
		rest, tail, ok := strings.Cut(e.Name(), ".")
		key, num, sizes := strings.Cut(tail, "-")
		size, err := strconv.ParseInt(num, 10, 64)
		if ok && rest != "" && sizes && err == nil && size >= 0 {
			m[nameHash(dir+rest, key)] = size
		}
	}
	s.shards[dir] = m
	return m
}

func (s *convertStore) forget(id, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.shard(id), nameHash(id, key))
}

// convert makes a conversion once, however many ask for it at a time.
func (s *convertStore) convert(ctx context.Context, tree *conversion.Tree, c lowerContent, key string) (int64, error) {
	name := c.id + "." + key
	s.mu.Lock()
	if f, ok := s.failed[name]; ok && time.Now().Before(f.until) {
		s.mu.Unlock()
		return 0, f.err
	}
	if f := s.fetches[name]; f != nil {
		s.mu.Unlock()
		<-f.done
		return f.size, f.err
	}
	f := &conversionFetch{fetch: fetch{done: make(chan struct{})}}
	s.fetches[name] = f
	s.mu.Unlock()

	f.size, f.err = s.write(ctx, tree, c, key)
	s.mu.Lock()
	delete(s.fetches, name)
	delete(s.failed, name)
	if f.err != nil {
		if len(s.failed) >= maxFailures {
			clear(s.failed)
		}
		s.failed[name] = failure{f.err, time.Now().Add(failureTime)}
	} else {
		s.shard(c.id)[nameHash(c.id, key)] = f.size
	}
	s.mu.Unlock()
	close(f.done)
	return f.size, f.err
}

func (s *convertStore) write(ctx context.Context, tree *conversion.Tree, c lowerContent, key string) (int64, error) {
	tmp, err := s.temp(filepath.Dir(s.blobs.path(c.id)))
	if err != nil {
		return 0, err
	}
	defer os.Remove(tmp.Name())
	// It is for everybody who waits, not only for the request that came first.
	n, err := tree.Convert(context.WithoutCancel(ctx), c.id, c.path, tmp)
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return 0, err
	}
	if err := os.Rename(tmp.Name(), s.path(c.id, key, n)); err != nil {
		return 0, err
	}
	s.blobs.added(n)
	return n, nil
}

// temp makes a file of the final mode that no other process makes.
func (s *convertStore) temp(dir string) (*os.File, error) {
	name := filepath.Join(dir, fmt.Sprintf(".convert-%d-%d", os.Getpid(), s.temps.Add(1)))
	const flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	f, err := os.OpenFile(name, flags, 0o444)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(name, flags, 0o444)
	}
	return f, err
}

// touch notes that a file is in use, for the bound of the cache.
func (s *convertStore) touch(path string) {
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_OMIT}}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, now, 0); err != nil && err != unix.ENOENT {
		s.blobs.log.Printf("blob cache: %s: %v", path, err)
	}
	s.blobs.used()
}
