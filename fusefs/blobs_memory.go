package fusefs

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// memoryBlob is up to how many bytes a blob is answered from memory, without
	// a file of its own.
	memoryBlob = 64 << 10
	// memoryBytes bounds what blobs take in memory.
	memoryBytes = 32 << 20
	// memoryIdle is after how long without a new blob the memory is given back.
	memoryIdle = 30 * time.Second
)

// blobMemory holds the content of small blobs that came last from git. The
// kernel keeps what it has read, so most are asked for once. They are in a ring,
// where a new one takes the place of the oldest, which costs no allocation and
// leaves nothing to the garbage collector. It is safe for concurrent use.
type blobMemory struct {
	size int64 // of the ring, in bytes

	mu     sync.RWMutex
	ring   []byte               // guarded by mu; nil as long as nothing is in it
	at     map[blobKey]ringSpan // guarded by mu
	order  []ringBlob           // guarded by mu, from first on: oldest first
	first  int                  // guarded by mu
	end    int64                // guarded by mu: where the next one goes
	puts   uint64               // guarded by mu
	failed bool                 // guarded by mu: there is no memory
}

// ringSpan is where a blob is; start counts on from lap to lap.
type ringSpan struct {
	start int64
	size  int32
}

type ringBlob struct {
	key blobKey
	ringSpan
}

func newBlobMemory(size int64) *blobMemory { return &blobMemory{size: size} }

// read copies what a blob has from off on to buf and returns how much that is,
// or false when the blob is not there.
func (m *blobMemory) read(key blobKey, off uint64, buf []byte) (int, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	s, ok := m.at[key]
	if !ok {
		return 0, false
	}
	start := s.start % m.size
	data := m.ring[start : start+int64(s.size)]
	return copy(buf, data[min(off, uint64(len(data))):]), true
}

func (m *blobMemory) has(key blobKey) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, ok := m.at[key]
	return ok
}

// put adds a blob.
func (m *blobMemory) put(key blobKey, data []byte) {
	size := int64(len(data))
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.at[key]; ok || size > m.size || !m.ready() {
		return
	}
	start := m.end
	if start%m.size+size > m.size {
		start += m.size - start%m.size // not around the end
	}
	m.end = start + size
	for m.first < len(m.order) && m.order[m.first].start+m.size < m.end {
		delete(m.at, m.order[m.first].key)
		m.first++
	}
	if m.first > len(m.order)/2 {
		m.order = m.order[:copy(m.order, m.order[m.first:])]
		m.first = 0
	}
	s := ringSpan{start, int32(size)}
	copy(m.ring[start%m.size:], data)
	m.at[key] = s
	m.order = append(m.order, ringBlob{key, s})
	m.puts++
}

// ready makes the ring. mu is held.
func (m *blobMemory) ready() bool {
	if m.ring != nil || m.failed {
		return !m.failed
	}
	ring, err := unix.Mmap(-1, 0, int(m.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		m.failed = true // whoever wants a blob gets it from git
		return false
	}
	m.ring, m.at = ring, map[blobKey]ringSpan{}
	m.releaseLater()
	return true
}

// releaseLater gives the memory back when nothing is added for a while. mu is
// held.
func (m *blobMemory) releaseLater() {
	before := m.puts
	time.AfterFunc(memoryIdle, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.puts != before {
			m.releaseLater()
			return
		}
		m.release()
	})
}

// release forgets all blobs. mu is held.
func (m *blobMemory) release() {
	_ = unix.Munmap(m.ring) // it is ours and whole: there is nothing to fail
	m.ring, m.at, m.order, m.first, m.end = nil, nil, nil, 0, 0
}
