package fusefs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

type rawDirent struct {
	ino  uint64
	off  int64
	name string
}

// parseDirents decodes what getdents64 returns.
func parseDirents(b []byte) (all []rawDirent) {
	for len(b) > 19 {
		n := binary.NativeEndian.Uint16(b[16:])
		name, _, _ := bytes.Cut(b[19:n], []byte{0})
		all = append(all, rawDirent{binary.NativeEndian.Uint64(b), int64(binary.NativeEndian.Uint64(b[8:])), string(name)})
		b = b[n:]
	}
	return all
}

// While entries come and go, a stream has every entry that stays exactly once,
// and no entry twice.
func TestStreamWhileChanging(t *testing.T) {
	const stay, others = 400, 400
	files := map[string]string{}
	for i := range stay {
		files[fmt.Sprintf("d/stay%d", i)] = "x"
	}
	for i := range others {
		files[fmt.Sprintf("d/goes%d", i)] = "x"
	}
	eachKind(t, files, func(t *testing.T, r *rig, dir string) {
		dir = filepath.Join(dir, "d")
		z := rand.New(rand.NewPCG(7, 7))
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err)
		defer unix.Close(fd)
		seen := map[string]int{}
		buf := make([]byte, 500) // a few entries at a time
		gone, made := 0, 0
		var places []int64
		for {
			n, err := unix.Getdents(fd, buf)
			must(t, err)
			if n == 0 {
				break
			}
			for _, e := range parseDirents(buf[:n]) {
				seen[e.name]++
				places = append(places, e.off)
			}
			for range 3 {
				switch z.IntN(3) {
				case 0:
					if gone < others {
						must(t, os.Remove(filepath.Join(dir, fmt.Sprintf("goes%d", gone))))
						gone++
					}
				case 1:
					if made < others {
						must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("new%d", made)), nil, 0o644))
						made++
					}
				case 2:
					if gone < others {
						must(t, os.Rename(filepath.Join(dir, fmt.Sprintf("goes%d", gone)), filepath.Join(dir, fmt.Sprintf("renamed%d", gone))))
						gone++
					}
				}
			}
		}
		for name, n := range seen {
			if n != 1 {
				t.Errorf("%s is there %d times", name, n)
			}
		}
		for i := range stay {
			if seen[fmt.Sprintf("stay%d", i)] == 0 {
				t.Errorf("stay%d is missing", i)
			}
		}
		// A place that was told is a place to go back to.
		mid := len(places) / 2
		_, err = unix.Seek(fd, places[mid], unix.SEEK_SET)
		must(t, err)
		rest := 0
		for {
			n, err := unix.Getdents(fd, buf)
			must(t, err)
			if n == 0 {
				break
			}
			rest += len(parseDirents(buf[:n]))
		}
		if rest == 0 || rest > stay+3*others {
			t.Errorf("%d entries after the middle", rest)
		}
		// From the start, a stream shows what is there now.
		_, err = unix.Seek(fd, 0, unix.SEEK_SET)
		must(t, err)
		entries := map[string]bool{}
		for {
			n, err := unix.Getdents(fd, buf)
			must(t, err)
			if n == 0 {
				break
			}
			for _, e := range parseDirents(buf[:n]) {
				entries[e.name] = true
			}
		}
		now, err := os.ReadDir(dir)
		must(t, err)
		if len(entries) != len(now)+2 || len(now) != stay+others-gone+made+renamedIn(now) {
			t.Errorf("%d entries in the stream, %d in a new one; %d gone, %d made", len(entries), len(now), gone, made)
		}
	})
}

func renamedIn(entries []os.DirEntry) (n int) {
	for _, e := range entries {
		if len(e.Name()) > 7 && e.Name()[:7] == "renamed" {
			n++
		}
	}
	return n
}

// A directory with very many entries, from the tree and new.
func TestLargeDirectory(t *testing.T) {
	const n = 100000
	files := n
	if testing.Short() {
		files = n / 20
	}
	r := newRig(t, map[string]string{"f": "x"})
	r.unmount()
	r.spec.Tree = wideTree(t, r.repo, files)
	r.mount()
	dirs := []string{"wide", "new"}
	must(t, os.Mkdir(r.path("new"), 0o755))
	for i := range files / 10 {
		must(t, unix.Link(r.path("wide/f0"), r.path(fmt.Sprintf("new/f%d", i))))
	}
	for i, want := range []int{files, files / 10} {
		d, err := os.Open(r.path(dirs[i]))
		must(t, err)
		names, err := d.Readdirnames(0)
		must(t, err)
		d.Close()
		seen := map[string]bool{}
		for _, name := range names {
			seen[name] = true
		}
		if len(names) != want || len(seen) != want {
			t.Errorf("%s: %d entries, %d different ones, want %d", dirs[i], len(names), len(seen), want)
		}
	}
	for _, i := range []int{0, 1, files / 2, files - 1} {
		wantFile(t, r.path(fmt.Sprintf("wide/f%d", i)), "x")
	}
	if got := lstat(t, r.path("wide/f0")).Nlink; got != uint64(files/10+1) {
		t.Errorf("%d links", got)
	}
	if _, err := os.Lstat(r.path(fmt.Sprintf("wide/f%d", files))); !os.IsNotExist(err) {
		t.Errorf("%v", err)
	}
	must(t, os.RemoveAll(r.path("new")))
}
