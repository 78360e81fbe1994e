package fusefs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestConcurrent lets many processes' worth of operations meet freezes, looks
// at the dirty set, marks and syncs. Nothing may hang, and a remount shows
// the same.
func TestConcurrent(t *testing.T) {
	files := map[string]string{}
	for i := range 200 {
		files[fmt.Sprintf("d%d/e%d/f%d", i%3, i%7, i)] = fmt.Sprint(i)
	}
	r := newRig(t, files)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for i := range 6 {
		rnd := rand.New(rand.NewPCG(uint64(i), 1))
		wg.Go(func() {
			for !stop.Load() {
				disturb(r.spec.Dir, rnd)
			}
		})
	}
	ctx := context.Background()
	end := time.Now().Add(3 * time.Second)
	for i := 0; time.Now().Before(end); i++ {
		d, err := r.c.Dirty(ctx, "m", []string{"", "d0", "d1/e1"})
		must(t, err)
		if _, err := r.c.List(ctx, "m", []string{"d0", "d1"}); err != nil {
			t.Error(err)
		}
		if i%3 == 0 {
			must(t, r.c.Mark(ctx, "m", d.Seq, "c"))
		}
		if i%50 == 0 {
			must(t, r.c.Sync(ctx, "m"))
			id := fmt.Sprintf("top%d", i)
			r.spec.Layers = append(r.spec.Layers, id)
			_, err := r.c.Freeze(ctx, "m", id)
			must(t, err)
		}
	}
	stop.Store(true)
	wg.Wait()
	before := snapshot(t, r.spec.Dir)
	_, dirty := r.dirtyFiles()
	r.unmount()
	r.mount()
	same(t, "remount", snapshot(t, r.spec.Dir), before, exact)
	_, again := r.dirtyFiles()
	if len(dirty) != len(again) {
		t.Errorf("%d dirty before the remount, %d after", len(dirty), len(again))
	}
}

// disturb does one random operation. Most fail, which is fine.
func disturb(dir string, rnd *rand.Rand) {
	path := func() string {
		return filepath.Join(dir, fmt.Sprintf("d%d/e%d/f%d", rnd.IntN(4), rnd.IntN(8), rnd.IntN(20)))
	}
	a, b := path(), path()
	switch rnd.IntN(9) {
	case 0:
		unix.Rename(a, b)
	case 1:
		unix.Rename(filepath.Dir(a), filepath.Dir(b))
	case 2:
		unix.Unlink(a)
	case 3:
		unix.Link(a, b)
	case 4:
		os.MkdirAll(filepath.Dir(a), 0o755)
	case 5:
		writeAt(a, make([]byte, rnd.IntN(5000)), int64(rnd.IntN(10000)), os.O_CREATE)
	case 6:
		unix.Truncate(a, int64(rnd.IntN(1000)))
	case 7:
		unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, filepath.Dir(b), unix.RENAME_EXCHANGE)
	case 8:
		os.ReadFile(a)
		os.ReadDir(filepath.Dir(b))
	}
}
