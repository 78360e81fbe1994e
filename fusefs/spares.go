package fusefs

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/fusefs/layer"
)

// Making the data file of a new file is what the first write to it costs most
// of: the file system below has to make an inode and a name. Whoever makes many
// files waits for that each time, while the other processors have nothing to
// do. So when many are made, data files of some more are made ahead, with the
// inode numbers that the next ones then get.
//
// One that no write has reached is empty and has spareTime: that says that its
// time is not that of the file. What is left over is removed when nobody has
// made a file for a while, when the layer is frozen, at the end, and after a
// crash by the next mount, as all data files of inodes that no record knows.

const (
	// spareAfter is from how many new files within spareIdle on it is done.
	spareAfter = 32
	// spareBatch is how many are made at a time, when there are fewer than
	// spareBatch left.
	spareBatch = 64
	spareIdle  = time.Second
)

// spareTime is the modification time of a data file that was made ahead, in
// seconds since 1970: whole ones, which every file system keeps.
const spareTime = 1

// isSpare reports whether a data file is as it was made ahead.
func isSpare(st *unix.Stat_t) bool { return st.Size == 0 && st.Mtim == unix.Timespec{Sec: spareTime} }

// spares are the data files of a workspace that were made ahead.
type spares struct {
	inos    []uint64      // guarded by workspace.mu: in the top layer
	made    int           // guarded by workspace.mu: new files since somebody looked
	since   time.Time     // guarded by workspace.mu: of the first of them, while not running
	running bool          // guarded by workspace.mu
	low     chan struct{} // more are wanted
	quit    chan struct{}
	wg      sync.WaitGroup
}

func newSpares() *spares {
	return &spares{low: make(chan struct{}, 1), quit: make(chan struct{})}
}

// newFileIno is the number that the next new file gets, and whether there is a
// data file already. The caller takes it with tookFileIno. mu is held.
func (w *workspace) newFileIno() (uint64, bool) {
	if s := w.spares; len(s.inos) > 0 {
		return s.inos[len(s.inos)-1], true
	}
	return w.t.nextIno, false
}

// tookFileIno says that a new file got the number. mu is held.
func (w *workspace) tookFileIno(spare bool) {
	s := w.spares
	if spare {
		s.inos = s.inos[:len(s.inos)-1]
	}
	s.made++
	switch {
	case s.running:
		if len(s.inos) < spareBatch {
			select {
			case s.low <- struct{}{}:
			default:
			}
		}
	case s.made == 1:
		s.since = time.Now()
	case s.made >= spareAfter:
		if time.Since(s.since) > spareIdle {
			s.made = 0
			return
		}
		s.running = true
		s.wg.Add(1)
		go w.keepSpares()
	}
}

// keepSpares makes data files ahead until no new ones were made for a while.
func (w *workspace) keepSpares() {
	s := w.spares
	defer s.wg.Done()
	idle := time.NewTimer(spareIdle)
	defer idle.Stop()
	more := true
	for {
		if more {
			more = w.makeSpares()
		}
		select {
		case <-s.low:
			continue
		case <-idle.C:
			w.mu.Lock()
			if s.made > 0 {
				s.made, more = 0, true
				w.mu.Unlock()
				idle.Reset(spareIdle)
				continue
			}
		case <-s.quit:
			w.mu.Lock()
		}
		inos, top := w.takeSpares()
		s.running = false
		w.mu.Unlock()
		removeSpares(top, inos)
		return
	}
}

// makeSpares makes data files until there are enough, and reports whether it
// may be tried again.
func (w *workspace) makeSpares() bool {
	s := w.spares
	for {
		w.mu.Lock()
		if len(s.inos) >= spareBatch {
			w.mu.Unlock()
			return true
		}
		top, first := w.top(), w.t.nextIno
		w.t.nextIno += spareBatch
		w.mu.Unlock()
		var inos []uint64
		var err error
		for ino := first + spareBatch; ino > first && err == nil; { // the last is taken first
			ino--
			if err = makeSpare(top.DataPath(ino)); err == nil {
				inos = append(inos, ino)
			}
		}
		w.mu.Lock()
		frozen := w.top() != top
		if !frozen {
			s.inos = append(inos, s.inos...)
		}
		w.mu.Unlock()
		if frozen {
			removeSpares(top, inos)
		}
		if err != nil {
			return false // whoever makes a file meets the reason
		}
	}
}

func makeSpare(path string) error {
	f, err := createData(path, unix.O_EXCL)
	if err != nil {
		return err
	}
	defer f.close()
	err = f.utimens(&[2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: spareTime}})
	if err != nil {
		_ = unix.Unlink(path)
	}
	return err
}

// takeSpares returns what was made ahead in the top layer: it is not to be used
// any more. mu is held.
func (w *workspace) takeSpares() ([]uint64, *layer.Layer) {
	s := w.spares
	inos := s.inos
	s.inos, s.made = nil, 0
	return inos, w.top()
}

// removeSpares removes data files that nobody took. One that stays does no
// harm.
func removeSpares(l *layer.Layer, inos []uint64) {
	for _, ino := range inos {
		_ = unix.Unlink(l.DataPath(ino))
	}
}

// close removes what was made ahead.
func (s *spares) close() {
	close(s.quit)
	s.wg.Wait()
}
