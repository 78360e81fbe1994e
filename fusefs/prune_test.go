package fusefs

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pruneTestDirs  = 40
	pruneTestFiles = 50
	pruneTestLimit = 600
)

func newPruneRig(t *testing.T) *rig {
	t.Helper()
	files := map[string]string{}
	for d := range pruneTestDirs {
		for f := range pruneTestFiles {
			files[fmt.Sprintf("top/d%d/sub/f%d", d, f)] = fmt.Sprint(d, f)
		}
	}
	return newRigLimited(t, files, pruneTestLimit)
}

func newRigLimited(t *testing.T, files map[string]string, limit int) *rig {
	t.Helper()
	r := newRig(t, files)
	must(t, r.c.Close())
	r.nodeLimit = limit
	r.start()
	r.mount()
	return r
}

// inodes returns the inode number of every path.
func inodesBelow(t *testing.T, dir string) map[string]uint64 {
	t.Helper()
	all := map[string]uint64{}
	must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		all[path] = st.Ino
		return nil
	}))
	return all
}

func (r *rig) nodes() int {
	r.t.Helper()
	s, err := r.c.Stack(context.Background(), "m")
	must(r.t, err)
	return s.Nodes
}

// A walk through a large tree leaves a bounded number of nodes behind, and what
// was forgotten is the same when it comes back.
func TestNodesAreBounded(t *testing.T) {
	r := newPruneRig(t)
	must(t, os.WriteFile(r.path("top/d3/sub/f7"), []byte("changed"), 0o644))
	must(t, os.Remove(r.path("top/d4/sub/f8")))
	must(t, os.WriteFile(r.path("top/d5/sub/new"), []byte("new"), 0o644))
	open, err := os.Open(r.path("top/d0/sub/f0"))
	must(t, err)
	defer open.Close()
	before := inodesBelow(t, r.spec.Dir)
	if want := pruneTestDirs*(pruneTestFiles+2) + 2; len(before) < want {
		t.Fatalf("%d paths", len(before))
	}
	eventually(t, func() bool {
		return r.nodes() <= pruneTestLimit
	})
	after := inodesBelow(t, r.spec.Dir)
	if len(after) != len(before) {
		t.Errorf("%d paths, before %d", len(after), len(before))
	}
	for path, ino := range before {
		if after[path] != ino {
			t.Errorf("%s: inode %x, before %x", path, after[path], ino)
		}
	}
	var st unix.Stat_t
	must(t, unix.Fstat(int(open.Fd()), &st))
	if st.Ino != before[r.path("top/d0/sub/f0")] {
		t.Error("an open file became another one")
	}
	for path, want := range map[string]string{"top/d3/sub/f7": "changed", "top/d5/sub/new": "new", "top/d9/sub/f9": "9 9"} {
		if got, err := os.ReadFile(r.path(path)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if _, err := os.Lstat(r.path("top/d4/sub/f8")); !os.IsNotExist(err) {
		t.Errorf("a removed file is back: %v", err)
	}
	if st.Nlink != 1 {
		t.Errorf("link count %d", st.Nlink)
	}
}

// Nobody who looks, lists, makes or removes files meanwhile notices.
func TestPruneUnderUse(t *testing.T) {
	r := newPruneRig(t)
	var wg sync.WaitGroup
	stop := time.Now().Add(4 * time.Second)
	for worker := range 4 {
		wg.Go(func() {
			for i := worker; time.Now().Before(stop); i++ {
				dir := r.path(fmt.Sprintf("top/d%d/sub", i%pruneTestDirs))
				entries, err := os.ReadDir(dir)
				if err != nil || len(entries) < pruneTestFiles {
					t.Errorf("%s: %d entries, %v", dir, len(entries), err)
					return
				}
				for f := range pruneTestFiles {
					if got, err := os.ReadFile(fmt.Sprintf("%s/f%d", dir, f)); err != nil || string(got) != fmt.Sprint(i%pruneTestDirs, f) {
						t.Errorf("%s/f%d: %q, %v", dir, f, got, err)
						return
					}
				}
				if i%10 == 0 {
					name := fmt.Sprintf("%s/new%d", dir, worker)
					if err := os.WriteFile(name, nil, 0o644); err != nil {
						t.Error(err)
						return
					}
					if err := os.Remove(name); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}
