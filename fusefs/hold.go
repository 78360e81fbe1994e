package fusefs

import (
	"sync"
	"time"
)

// Git on the host finds an environment's git directory through the file .git of
// the mount. While the daemon brings the index over there up to date, whoever
// looks that file up waits, so that nobody compares the workspace with an index of
// yesterday. So does git inside, whose own file is mounted over this one: the
// kernel looks at what is below on the way.

// holdLimit bounds for how long one hold keeps anybody waiting, should the daemon
// be stuck.
const holdLimit = 10 * time.Second

// holding is a time in which the file .git is not to be had.
type holding struct {
	until  time.Time
	ended  chan struct{} // closed at the end
	wanted chan struct{} // closed when somebody waits for that
	once   sync.Once
}

// hold begins or ends such a time.
func (w *workspace) hold(on bool) {
	var next *holding
	if on {
		next = &holding{until: time.Now().Add(holdLimit), ended: make(chan struct{}), wanted: make(chan struct{})}
	}
	if old := w.holding.Swap(next); old != nil {
		close(old.ended)
	}
}

func (w *workspace) held() bool { return w.holding.Load() != nil }

// awaitRelease waits until the file .git may be had, its time is over, or the
// request is given up.
func (w *workspace) awaitRelease(cancel <-chan struct{}) {
	h := w.holding.Load()
	if h == nil {
		return
	}
	t := time.NewTimer(time.Until(h.until))
	defer t.Stop()
	for ; h != nil; h = w.holding.Load() { // perhaps it is held anew
		h.once.Do(func() { close(h.wanted) })
		select {
		case <-h.ended:
		case <-t.C:
			return
		case <-cancel:
			return
		}
	}
}

// awaited waits until somebody waits for the file .git, or need not.
func (w *workspace) awaited() {
	h := w.holding.Load()
	if h == nil {
		return
	}
	t := time.NewTimer(time.Until(h.until))
	defer t.Stop()
	select {
	case <-h.wanted:
	case <-h.ended:
	case <-t.C:
	}
}
