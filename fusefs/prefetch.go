package fusefs

import (
	"context"
	"io"
	"os"
	"sync"
)

// Read-ahead: who reads one file of a directory reads others of it next. When
// the content of a file had to come from git, its siblings are fetched behind
// it, by one worker with a process of its own, many in one exchange. How many
// grows as a directory is read on.

const (
	// aheadFirst and aheadMost bound the siblings fetched for one read, the first
	// time in a directory and later.
	aheadFirst, aheadMost = 64, 2048
	// aheadBytes bounds their size in bytes, for aheadFirst; it grows with them.
	aheadBytes = 1 << 20
	// aheadSmall and aheadLarge are the sizes in bytes of the files that go first,
	// and of those that go at all.
	aheadSmall, aheadLarge = 64 << 10, 1 << 20
	// aheadLook bounds how many entries of a directory are looked at.
	aheadLook = 8192
	// aheadGroup is how many blobs and bytes one exchange has: a reader who wants
	// one of them waits for those before it.
	aheadGroup, aheadGroupBytes = 64, 512 << 10
	// aheadJobs bounds the directories that wait.
	aheadJobs = 64
	// aheadDirs bounds the directories that are remembered.
	aheadDirs = 4096
)

// aheadWorker fetches siblings for all mounts of a server.
type aheadWorker struct {
	blobs *blobStore
	start sync.Once
	jobs  chan func()
}

func newAheadWorker(b *blobStore) *aheadWorker {
	return &aheadWorker{blobs: b, jobs: make(chan func(), aheadJobs)}
}

// post hands a job to the worker; false when it has enough to do.
func (a *aheadWorker) post(job func()) bool {
	a.start.Do(func() {
		go func() {
			for job := range a.jobs {
				job()
			}
		}()
	})
	select {
	case a.jobs <- job:
		return true
	default:
		return false
	}
}

// aheadState is how far directories were read ahead.
type aheadState struct {
	mu   sync.Mutex
	dirs map[uint64]*aheadDir // guarded by mu
}

type aheadDir struct {
	window  int
	busy    bool
	waited  bool // a reader had to wait in it
	onwards bool // the directories after it are read ahead too

	// Of the directories in it: in how many a reader had to wait, and how many
	// more are read ahead before they are asked for.
	below, credit int
}

// dir returns the state of a directory. mu is held.
func (a *aheadState) dir(ino uint64) *aheadDir {
	d := a.dirs[ino]
	if d == nil {
		if a.dirs == nil || len(a.dirs) >= aheadDirs {
			a.dirs = map[uint64]*aheadDir{}
		}
		d = &aheadDir{window: aheadFirst}
		a.dirs[ino] = d
	}
	return d
}

// openBlob opens the blob of ino, a file of the tree, and reads ahead when it
// came from git.
func (w *workspace) openBlob(ino uint64, id string, size int64) (backingFile, error) {
	f, fetched, err := w.blobs.get(context.Background(), id, size)
	if err == nil && fetched {
		w.readAhead(ino)
	}
	if err != nil {
		return backingFile{}, err
	}
	return backingFile{fd: int(f.Fd()), file: f}, nil
}

// readAhead has the siblings of ino fetched.
func (w *workspace) readAhead(ino uint64) {
	if w.aheadWorker == nil {
		return
	}
	w.mu.RLock()
	n := w.t.nodes[ino]
	if n == nil || n.parent == nil {
		w.mu.RUnlock()
		return
	}
	parent, name, over := n.parent.ino, n.name, n.parent.parent
	w.mu.RUnlock()

	a := &w.ahead
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.dir(parent)
	if d.busy {
		return
	}
	window := d.window
	if over != nil && !d.waited {
		window = a.stream(d, over.ino)
	}
	d.waited = true
	onwards := d.onwards
	d.busy = w.aheadWorker.post(func() {
		all := w.siblings(parent, name, window)
		if onwards && len(all) < window {
			all = append(all, w.following(parent, window-len(all), memoryBytes/8)...)
		}
		w.blobs.fetchMany(all)
		a.mu.Lock()
		d.busy, d.window = false, min(window*8, aheadMost)
		a.mu.Unlock()
	})
}

// wanted is a blob to fetch; size is what it takes.
type wanted struct {
	id   string
	size int64
}

// siblings returns the files of directory parent whose content is to be
// fetched: those after name first, small before large.
func (w *workspace) siblings(parent uint64, name string, most int) []wanted {
	w.mu.RLock()
	defer w.mu.RUnlock()
	p := w.t.nodes[parent]
	if p == nil || !p.isDir() {
		return nil
	}
	behind := p.dir.order
	var after []*dirent
	if e := p.dir.ents[name]; e != nil {
		after = p.dir.after(e.cookie)
		behind = p.dir.order[:len(p.dir.order)-len(after)]
	}
	var small, large []wanted
	room := min(aheadBytes*int64(most/aheadFirst), memoryBytes/4) // lest they displace each other
	looked := 0
	for _, part := range [][]*dirent{after, behind} {
		for _, e := range part {
			if looked++; looked > aheadLook || len(small) == most || room <= 0 {
				break
			}
			n := e.n
			if _, ok := w.aheadNode(n); !ok {
				continue
			}
			item := wanted{w.t.oidString(&n.oid), n.size}
			switch {
			case w.blobs.isHere(item.id):
			case n.size <= aheadSmall:
				small = append(small, item)
				room -= n.size
			default:
				large = append(large, item)
			}
		}
	}
	for _, item := range large {
		if len(small) == most || room < item.size {
			break
		}
		small = append(small, item)
		room -= item.size
	}
	return small
}

// fetchMany brings blobs into memory or the cache, many in one exchange.
// What fails is left to whoever reads it.
func (b *blobStore) fetchMany(all []wanted) {
	for len(all) > 0 {
		n, bytes := 0, int64(0)
		for n < len(all) && n < aheadGroup && bytes < aheadGroupBytes {
			bytes += all[n].size
			n++
		}
		if _, err := b.fetchGroup(context.Background(), all[:n], false, nil); err != nil {
			return
		}
		all = all[n:]
	}
}

// fetchGroup brings blobs into the cache that are not there, in one exchange.
// Small ones get a file only with keep, else they go to memory. failed, if
// given, is told of each that git does not give. It returns how many were not
// there.
func (b *blobStore) fetchGroup(ctx context.Context, group []wanted, keep bool, failed func(id string, err error)) (fetched int, err error) {
	var ids []string
	var claims []*fetch
	for _, item := range group {
		if b.isGood(item.id) || !keep && b.memory.has(keyOf(item.id)) || exists(b.path(item.id)) {
			continue
		}
		f, mine := b.claim(item.id)
		if mine && keep && b.fileFromMemory(item.id, item.size) {
			b.settle(item.id, f, nil)
			fetched++
			continue
		}
		if mine {
			ids, claims = append(ids, item.id), append(claims, f)
		}
	}
	if len(ids) == 0 {
		return fetched, nil
	}
	settled := 0
	err = b.objs.Blobs(ctx, ids, func(i int, size int64, content io.Reader, err error) error {
		var volatile bool
		inMemory := !keep && small(size)
		switch {
		case err != nil:
		case inMemory:
			err = b.take(ids[i], size, content, nil)
		default:
			var f *os.File
			if f, volatile, err = b.put(ids[i], size, content); err == nil {
				f.Close()
			}
		}
		if err == nil {
			fetched++
		}
		if err != nil && failed != nil {
			failed(ids[i], err)
		}
		if volatile || err != nil {
			err = errGivenUp // whoever wants it meets, and tells, why
		}
		if inMemory {
			b.arrived(ids[i], claims[i], err)
		} else {
			b.settle(ids[i], claims[i], err)
		}
		claims[i] = nil
		settled++
		if volatile {
			return errGivenUp // there is no room
		}
		return nil
	})
	if settled < len(ids) {
		for i, f := range claims {
			if f != nil {
				b.settle(ids[i], f, errGivenUp)
			}
		}
	}
	return fetched, err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
