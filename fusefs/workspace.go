package fusefs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/fusefs/layer"
)

// workspace is one mounted file system: the FUSE operations (files named
// ops_*) and what the daemon asks about it.
type workspace struct {
	fuse.RawFileSystem // answers ENOSYS to everything that is not here

	spec     MountSpec
	layerDir string
	repairs  []Repair
	objs     Objects
	blobs    *blobStore
	conv     *treeConverter
	fds      *fdCache
	log      *log.Logger
	// aheadWorker fetches what may be read next.
	aheadWorker *aheadWorker

	// gate is held for reading while bytes of a file change and for writing
	// by Dirty and Freeze, which must see each change wholly before or after.
	gate sync.RWMutex
	// shards, by inode, order copy-up against reads and writes.
	shards [64]sync.RWMutex

	mu      sync.RWMutex
	t       *tree          // guarded by mu
	layers  []*layer.Layer // guarded by mu; the last is the top
	scratch []layer.Record // guarded by mu: what commits are made of, one after the other
	barrier uint64         // guarded by mu: a write to a node whose dirtySeq is not above must say so in the log

	cones    map[uint64]*cone // directories with hidden names in or below them; nil when all is shown
	refusals refusals
	quota    *quota // nil for none

	loadMu sync.Mutex
	loads  map[uint64]*fetch // guarded by loadMu: directories being read

	ahead aheadState

	syncMu   sync.Mutex
	unsynced map[uint64]struct{} // guarded by syncMu: inodes written since the last Sync

	holding atomic.Pointer[holding] // nil while the file .git is to be had

	opens  *opens // nil without ProfileIO
	spares *spares
	dev    channel

	// using is held for reading by whoever goes on with a directory after it was
	// read, and for writing to forget directories; before all other locks.
	using   sync.RWMutex
	pruning pruning

	freezeMu sync.Mutex    // one freeze at a time; before gate
	sealed   chan struct{} // guarded by mu: closed when the layers under the top are durable
	sealNow  chan struct{} // guarded by mu: closed when somebody waits for that
}

// shared is what all workspaces of a file server use together.
type shared struct {
	layerDir string
	objs     Objects
	blobs    *blobStore
	conv     *converters
	fds      *fdCache
	log      *log.Logger
	// nodeLimit is from how many nodes on a mount forgets some; 0 for the usual.
	nodeLimit int
	// aheadWorker fetches what may be read next.
	aheadWorker *aheadWorker
}

// newWorkspace opens the layers of a workspace and reads its root directory.
func newWorkspace(ctx context.Context, spec MountSpec, sh *shared) (*workspace, error) {
	if len(spec.Tree) != 40 && len(spec.Tree) != 64 {
		return nil, fmt.Errorf("bad tree id %q", spec.Tree)
	}
	if err := checkPaths(spec.Paths); err != nil {
		return nil, err
	}
	t, err := newTree(spec.Tree, spec.Time.UnixNano(), spec.UID, spec.GID)
	if err != nil {
		return nil, err
	}
	layers, err := openStack(sh.layerDir, spec.Layers, t, !spec.ReadOnly)
	if err != nil {
		return nil, err
	}
	repairs, err := salvage(sh.layerDir, t.damaged)
	if err != nil {
		closeLayers(layers)
		return nil, err
	}
	t.lenient, t.damaged, t.meant = false, nil, nil
	w := &workspace{
		RawFileSystem: fuse.NewDefaultRawFileSystem(), spec: spec, layerDir: sh.layerDir,
		objs: sh.objs, blobs: sh.blobs, conv: sh.conv.of(spec.Tree), fds: sh.fds, log: sh.log, repairs: repairs, aheadWorker: sh.aheadWorker,
		t: t, layers: layers, barrier: t.seq,
		dev: channel{fd: -1}, pruning: pruning{limit: sh.nodeLimit}, spares: newSpares(), loads: map[uint64]*fetch{}, unsynced: map[uint64]struct{}{}, sealed: make(chan struct{}), sealNow: make(chan struct{}),
	}
	close(w.sealed)
	if w.io() {
		w.opens = newOpens()
		if !spec.ReadOnly {
			// The log is open for writing.
			w.opens.asks, _ = openForWriting(filepath.Join(w.top().Dir(), "log"))
		}
	}
	w.hold(spec.Held)
	if !spec.ReadOnly {
		t.layer = int16(len(layers) - 1)
		w.sweep()
		if spec.Quota > 0 {
			if err := w.countUse(spec.Quota); err != nil {
				w.close()
				return nil, err
			}
		}
	}
	t.orphaned = w.orphaned
	if root := newCone(spec.Paths); root != nil {
		w.cones = map[uint64]*cone{}
		_, err = w.loadCones(ctx, t.root, root)
	}
	if err := errors.Join(err, w.load(ctx, t.root)); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// sweep removes data files of the top layer that belong to nothing: of files
// that were deleted while open, and of a copy-up that did not finish. What may
// be all that is left of a file, since its records are lost, was kept before.
func (w *workspace) sweep() {
	top := w.top()
	err := top.DataFiles(func(ino uint64) error {
		if n := w.t.nodes[ino]; n != nil && n.data == w.t.layer {
			return nil
		}
		return os.Remove(top.DataPath(ino))
	})
	if err != nil {
		w.log.Printf("%s: sweeping layer: %v", w.spec.ID, err)
	}
}

// close releases everything; the mount is gone.
func (w *workspace) close() {
	w.dev.close()
	w.hold(false)
	w.conv.end()
	w.spares.close()
	w.awaitSealed()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fds.dropAll(w)
	for _, l := range w.layers {
		if err := l.Close(); err != nil {
			w.log.Printf("%s: %v", w.spec.ID, err)
		}
	}
}

// awaitSealed waits until everything that was frozen is durable.
func (w *workspace) awaitSealed() {
	w.mu.Lock()
	sealed, now := w.sealed, w.sealNow
	w.sealNow = make(chan struct{})
	w.mu.Unlock()
	close(now)
	<-sealed
}

// top returns the writable layer. mu is held.
func (w *workspace) top() *layer.Layer { return w.layers[len(w.layers)-1] }

func (w *workspace) shard(ino uint64) *sync.RWMutex {
	return &w.shards[(ino^ino>>6^ino>>32)%uint64(len(w.shards))]
}

// commit logs and applies records as one change. mu is held for writing.
func (w *workspace) commit(recs ...layer.Record) fuse.Status {
	w.scratch = recs
	if !w.quota.mayLog(recs) {
		return fuse.Status(errFull)
	}
	if err := w.top().Append(recs...); err != nil {
		w.log.Printf("%s: log: %v", w.spec.ID, err)
		return status(err)
	}
	w.quota.setLog(w.top().Size())
	for i := range recs {
		if err := w.t.apply(&recs[i]); err != nil {
			// Checked before: a bug. The log and the memory now differ.
			w.log.Printf("%s: bug: %v", w.spec.ID, err)
			return fuse.EIO
		}
	}
	return fuse.OK
}

// records returns an empty list of records to be committed before mu is given
// up. mu is held for writing.
func (w *workspace) records() []layer.Record {
	clear(w.scratch) // what is in it may be large
	return w.scratch[:0]
}

// introduce appends the records that make n, and the directories above it,
// known to the log. mu is held.
func (w *workspace) introduce(recs []layer.Record, nodes ...*node) []layer.Record {
	for _, n := range nodes {
		if n == nil || n.flags&known != 0 || introduced(recs, n.ino) {
			continue
		}
		recs = w.introduce(recs, n.parent)
		mode := n.mode
		if n.flags&gitlink != 0 {
			mode = gitlinkMode
		}
		recs = append(recs, layer.Record{
			Kind: layer.KindIntro, Ino: n.ino, Parent: n.parent.ino, Name: n.name,
			Mode: mode, Size: n.size, OID: n.oid[:w.t.oidLen],
		})
	}
	return recs
}

func introduced(recs []layer.Record, ino uint64) bool {
	for i := range recs {
		if recs[i].Kind == layer.KindIntro && recs[i].Ino == ino {
			return true
		}
	}
	return false
}

// orphaned takes care of a node that just lost its last name: it lives on
// while the kernel knows it, since it may be open. mu is held.
func (w *workspace) orphaned(n *node) {
	if n.lookups.Load() <= 0 {
		w.discard(w.release(n))
	} else if n.data != noData {
		w.quota.leaving()
	}
}

// release forgets a node without names. What it returns is the path of its
// bytes, which nothing needs any more; discard it, best without a lock, and drop
// the node from the quota. mu is held.
func (w *workspace) release(n *node) leftover {
	w.t.drop(n)
	l := leftover{key: fdKey{w, n.ino, n.data}}
	if n.data != noData && n.data == w.t.layer && n.flags&(unwritten|spare) != unwritten && !w.spec.ReadOnly {
		l.path = w.top().DataPath(n.ino)
	}
	return l
}

// leftover is what is left of a node that was forgotten.
type leftover struct {
	key  fdKey
	path string // of its bytes in the top layer; "" for none
}

// discard closes and removes what is left of a node.
func (w *workspace) discard(l leftover) {
	w.fds.drop(l.key)
	if l.path != "" {
		if err := unix.Unlink(l.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.log.Printf("%s: removing %s: %v", w.spec.ID, l.path, err)
		}
	}
	w.quota.drop(l.key.ino)
}

// isDotGit reports whether name in directory ino is the file that belongs to
// the mount.
func (w *workspace) isDotGit(ino uint64, name string) bool {
	return ino == rootIno && name == dotGit && w.spec.DotGit != ""
}

// data returns the path of the bytes of n in a layer. mu is held.
func (w *workspace) data(n *node) string { return w.layers[n.data].DataPath(n.ino) }

func (w *workspace) newLayerPath(id string) (string, error) {
	if id == "" || id != filepath.Base(id) || id[0] == '.' {
		return "", fmt.Errorf("bad layer id %q", id)
	}
	return filepath.Join(w.layerDir, id), nil
}

// status turns the error of a backing file or object into what a process
// sees: its errno, or EIO.
func status(err error) fuse.Status {
	if err == nil {
		return fuse.OK
	}
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != unix.ENOENT {
		return fuse.Status(errno)
	}
	return fuse.EIO
}

func now() int64 { return time.Now().UnixNano() }
