package fusefs

import (
	"fmt"
	"math"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/git-env/git-env/fusefs/layer"
)

// sealAfter is how long a frozen layer is not made durable, unless that is asked
// for. A crash in that time finds a layer that is not marked as sealed.
const sealAfter = 2 * time.Second

// Frozen is what Client.Freeze did.
type Frozen struct {
	// Sealed is the layer that was the top and never changes any more.
	Sealed string
	// Pause is how long writes to the workspace had to wait, that of writes
	// under way included, for which the freeze waited itself.
	Pause time.Duration
}

// Stack describes the layers of a mount.
type Stack struct {
	// Logs are the sizes in bytes of the layers' logs, bottom to top. When the
	// last one is 0 nothing has changed since the last freeze: what is seen is
	// what the layers under the top say.
	Logs []int64
	// Nodes is how many files and directories the layers tell of or somebody
	// has looked at.
	Nodes int
}

// freeze answers Client.Freeze: the top layer gets sealed and an empty one
// put on it. Open files go on: the next write to each copies its bytes up.
//
// Nothing changes a layer that is not the top: whoever writes bytes looks
// which layer is the top while it holds the gate (tryModify), whoever appends
// a record or sets a time does so under mu. A copy-up that began before may
// still make a data file in the frozen layer, which no record tells of, and
// then takes it away. What a process wrote into a shared mapping and the kernel
// has not passed on yet is in the new top when it comes: see Client.Flush.
func (w *workspace) freeze(newTop string) (Frozen, error) {
	if w.spec.ReadOnly {
		return Frozen{}, syscall.EROFS
	}
	path, err := w.newLayerPath(newTop)
	if err != nil {
		return Frozen{}, err
	}
	w.freezeMu.Lock()
	defer w.freezeMu.Unlock()
	if err := w.freezable(); err != nil {
		return Frozen{}, err
	}
	w.mu.RLock()
	fresh := layer.Meta{ID: newTop, Parent: w.top().Meta().ID, StartSeq: w.t.seq, FirstIno: w.t.nextIno}
	w.mu.RUnlock()
	top, _, err := openLayer(path, true, true, fresh)
	if err != nil {
		return Frozen{}, err
	}
	if err := top.Replay(func(*layer.Record) error { return syscall.EEXIST }); err != nil {
		top.Close()
		return Frozen{}, fmt.Errorf("layer %s is not empty: %w", newTop, err)
	}

	begin := time.Now()
	w.gate.Lock()
	if err := w.freezable(); err != nil {
		w.gate.Unlock()
		top.Close()
		return Frozen{}, err
	}
	w.mu.Lock()
	old, before, sealed, hurry := w.top(), w.sealed, make(chan struct{}), w.sealNow
	id := old.Meta().ID
	w.sealed = sealed
	unused, _ := w.takeSpares()
	w.layers = append(w.layers, top)
	w.t.layer = int16(len(w.layers) - 1)
	w.quota.setLog(top.Size())
	w.mu.Unlock()
	w.gate.Unlock()
	pause := time.Since(begin)

	// It is frozen now. Making that durable may keep the disk busy for a while,
	// and whoever froze it has more to do there: that goes first.
	go func() {
		defer close(sealed)
		removeSpares(old, unused)
		select {
		case <-time.After(sealAfter):
		case <-hurry:
		}
		<-before
		err := old.Seal()
		if cerr := old.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			w.log.Printf("%s: sealing layer %s: %v", w.spec.ID, id, err)
		}
	}()
	return Frozen{Sealed: id, Pause: pause}, nil
}

// frozenMeanwhile is what link says of a file without a name whose bytes are
// in a frozen layer: giving it a name says that they are in the top one.
const frozenMeanwhile = fuse.Status(syscall.EXDEV)

// unnamedUp copies the bytes of a file without a name up.
func (w *workspace) unnamedUp(ino uint64) fuse.Status {
	ino = w.inoOf(ino)
	sh := w.shard(ino)
	sh.Lock()
	defer sh.Unlock()
	w.mu.RLock()
	n := w.t.nodes[ino]
	up := n == nil || n.data == noData || n.data == w.t.layer
	w.mu.RUnlock()
	if up {
		return fuse.OK
	}
	_, st := w.copyUp(n, math.MaxInt64, piece{})
	return st
}

// stack answers Client.Stack.
func (w *workspace) stack() Stack {
	w.mu.RLock()
	defer w.mu.RUnlock()
	s := Stack{Nodes: len(w.t.nodes)}
	for _, l := range w.layers {
		s.Logs = append(s.Logs, l.Size())
	}
	return s
}
