package fusefs

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// dataFiles lists the data files of a layer and what of them is empty.
func (r *rig) dataFiles(id string) (all, empty int) {
	r.t.Helper()
	names, err := filepath.Glob(filepath.Join(r.dir, "layers", id, "data", "*", "*"))
	must(r.t, err)
	for _, name := range names {
		if st, err := os.Stat(name); err == nil {
			all++
			if st.Size() == 0 {
				empty++
			}
		}
	}
	return all, empty
}

// makeMany makes files until some data files are made ahead: every third one
// stays empty, and beside them are directories and links.
func (r *rig) makeMany(dir string) (files int) {
	r.t.Helper()
	must(r.t, os.Mkdir(r.path(dir), 0o755))
	eventually(r.t, func() bool {
		for range 60 {
			name := r.path(fmt.Sprintf("%s/f%d", dir, files))
			data := []byte(name)
			if files%3 == 0 {
				data = nil
			}
			must(r.t, os.WriteFile(name, data, 0o644))
			if files%20 == 0 {
				must(r.t, os.Mkdir(name+".d", 0o755))
				must(r.t, os.Symlink("f", name+".l"))
			}
			files++
		}
		_, empty := r.dataFiles(r.spec.Layers[len(r.spec.Layers)-1])
		return empty > spareBatch/2
	})
	for i := range 60 { // these have theirs
		must(r.t, os.WriteFile(r.path(fmt.Sprintf("%s/g%d", dir, i)), nil, 0o644))
	}
	return files + 60
}

// Data files that were made ahead show nowhere: not in times, not after a
// crash, not in a frozen layer.
func TestSpares(t *testing.T) {
	t.Run("left alone", func(t *testing.T) {
		r := newRig(t, map[string]string{"f": "x"})
		files := r.makeMany("d")
		before := snapshot(t, r.spec.Dir)
		eventually(t, func() bool {
			all, _ := r.dataFiles("l1")
			return all <= files
		})
		r.unmount()
		r.mount()
		same(t, "mounted again", snapshot(t, r.spec.Dir), before, exact)
		must(t, os.WriteFile(r.path("d/g1"), []byte("late"), 0o644))
		if data, err := os.ReadFile(r.path("d/g1")); err != nil || string(data) != "late" {
			t.Errorf("written later: %q %v", data, err)
		}
		must(t, os.RemoveAll(r.path("d")))
		eventually(t, func() bool {
			all, _ := r.dataFiles("l1")
			return all == 0
		})
	})
	t.Run("deleted", func(t *testing.T) {
		r := newRig(t, map[string]string{"f": "x"})
		r.makeMany("d")
		must(t, os.RemoveAll(r.path("d")))
		eventually(t, func() bool {
			all, _ := r.dataFiles("l1")
			return all == 0
		})
	})
	t.Run("killed", func(t *testing.T) {
		r := newRig(t, map[string]string{"f": "x"})
		files := r.makeMany("d")
		before := snapshot(t, r.spec.Dir)
		must(t, syscall.Kill(r.c.Pid(), syscall.SIGKILL))
		<-r.c.Done()
		r.start()
		r.mount()
		if all, _ := r.dataFiles("l1"); all > files {
			t.Errorf("%d data files for %d files", all, files)
		}
		same(t, "after the kill", snapshot(t, r.spec.Dir), before, exact)
	})
	t.Run("frozen", func(t *testing.T) {
		r := newRig(t, map[string]string{"f": "x"})
		first := r.makeMany("d")
		before := snapshot(t, r.spec.Dir)
		r.freezeOn("l2")
		second := r.makeMany("e")
		eventually(t, func() bool {
			one, _ := r.dataFiles("l1")
			two, _ := r.dataFiles("l2")
			return one <= first && two <= second
		})
		r.fork([]string{"l1"}, "l3", func(dir string) {
			same(t, "the fork", snapshot(t, dir), before, exact)
			must(t, os.WriteFile(filepath.Join(dir, "d/f0"), []byte("fork"), 0o644))
		})
		must(t, os.WriteFile(r.path("d/f3"), []byte("here"), 0o644))
		r.fork([]string{"l1"}, "l4", func(dir string) {
			same(t, "another fork", snapshot(t, dir), before, exact)
		})
	})
}

// Files made by many at once each have a number and content of their own.
func TestSparesConcurrent(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	const makers, each = 8, 150
	errs := make(chan error, makers)
	for m := range makers {
		go func() {
			dir := r.path(fmt.Sprintf("d%d", m))
			err := os.Mkdir(dir, 0o755)
			for i := 0; i < each && err == nil; i++ {
				name := filepath.Join(dir, fmt.Sprint(i))
				err = os.WriteFile(name, []byte(name), 0o644)
			}
			errs <- err
		}()
	}
	for i := range 5 {
		r.freezeOn(fmt.Sprintf("t%d", i))
	}
	for range makers {
		must(t, <-errs)
	}
	seen := map[uint64]string{}
	for m := range makers {
		for i := range each {
			name := r.path(fmt.Sprintf("d%d/%d", m, i))
			data, err := os.ReadFile(name)
			if err != nil || string(data) != name {
				t.Fatalf("%s: %q %v", name, data, err)
			}
			var st syscall.Stat_t
			must(t, syscall.Lstat(name, &st))
			if other := seen[st.Ino]; other != "" {
				t.Fatalf("%s and %s have the same inode", name, other)
			}
			seen[st.Ino] = name
		}
	}
}
