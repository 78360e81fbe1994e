package fusefs

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkColdReadAll reads every file of a fresh mount once, in the order of
// the directories, with an empty cache of blobs and then, after a remount by a
// new server, with a full one. It is meant for -benchtime 1x.
func BenchmarkColdReadAll(b *testing.B) {
	const dirs, perDir = 500, 40
	files := map[string]string{}
	rnd := rand.New(rand.NewPCG(1, 2))
	for d := range dirs {
		for f := range perDir {
			text := make([]byte, 0, 8192)
			for len(text) < 200+rnd.IntN(8000) {
				text = fmt.Appendf(text, "line %d of some text\n", rnd.IntN(1000))
			}
			files[fmt.Sprintf("d%03d/e%d/f%02d", d/10, d, f)] = string(text)
		}
	}
	r := newRig(b, files)
	git(b, r.repo, "repack", "-a", "-d", "-q")
	for b.Loop() {
		for _, what := range []string{"cold", "cached"} {
			must(b, r.c.Close())
			if what == "cold" {
				must(b, os.RemoveAll(filepath.Join(r.dir, "blobs")))
			}
			r.start()
			r.mount()
			start := time.Now()
			n, err := readAll(r.spec.Dir)
			if err != nil || n != dirs*perDir+1 {
				b.Fatalf("read %d files: %v", n, err)
			}
			b.ReportMetric(float64(time.Since(start).Milliseconds()), what+"-ms")
		}
	}
}

// readAll reads every regular file below dir and returns how many there are.
func readAll(dir string) (n int, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		_, err = os.ReadFile(path)
		n++
		return err
	})
	return n, err
}
