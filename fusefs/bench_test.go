package fusefs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

const (
	benchRounds = 5
	benchOps    = 2000
	benchFiles  = 5000
)

// BenchmarkTransports measures a plain directory, the classic transport and
// io_uring in turn, and reports the median of each figure. It is meant for
// -benchtime 1x.
func BenchmarkTransports(b *testing.B) {
	places := []struct {
		name string
		dir  string
	}{{"plain", b.TempDir()}, {"device", ""}, {"uring", ""}}
	for i := 1; i < len(places); i++ {
		b.Setenv("GITENV_TEST_URING", fmt.Sprint(i-1))
		r := newRig(b, map[string]string{"f": "x"})
		if i == 2 && !r.usesUring() {
			b.Skip("no FUSE over io_uring")
		}
		places[i].dir = r.spec.Dir
	}
	tar := benchTar(b)
	times := map[string][]time.Duration{}
	for b.Loop() {
		for round := range benchRounds {
			for _, p := range places {
				dir := filepath.Join(p.dir, fmt.Sprint("bench", round))
				must(b, os.Mkdir(dir, 0o755))
				for what, took := range benchOnce(b, dir, tar) {
					times[p.name+"/"+what] = append(times[p.name+"/"+what], took)
				}
			}
		}
	}
	for key, all := range times {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds()), key)
	}
}

// benchTar makes an archive of many small files.
func benchTar(b *testing.B) string {
	b.Helper()
	dir := b.TempDir()
	for i := range benchFiles {
		path := filepath.Join(dir, "tree", fmt.Sprintf("d%d/e%d/f%d", i%10, i%100, i))
		must(b, os.MkdirAll(filepath.Dir(path), 0o755))
		must(b, os.WriteFile(path, bytes.Repeat([]byte("some text\n"), i%800), 0o644))
	}
	tar := filepath.Join(dir, "tar")
	benchRun(b, dir, "tar", "cf", tar, "tree")
	return tar
}

func benchRun(b *testing.B, dir string, args ...string) time.Duration {
	b.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	start := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %v: %s", args, err, out)
	}
	return time.Since(start)
}

// benchOnce returns how long one operation or one command took.
func benchOnce(b *testing.B, dir, tar string) map[string]time.Duration {
	took := map[string]time.Duration{}
	each := func(what string, fn func(i int) error) {
		start := time.Now()
		for i := range benchOps {
			if err := fn(i); err != nil {
				b.Fatalf("%s: %v", what, err)
			}
		}
		took[what+"-ns"] = time.Since(start) / benchOps * 1000
	}
	name := func(i int) string { return filepath.Join(dir, fmt.Sprint("n", i)) }
	each("lookup-miss", func(i int) error {
		if _, err := os.Lstat(name(i) + "x"); !os.IsNotExist(err) {
			return fmt.Errorf("stat: %v", err)
		}
		return nil
	})
	each("create", func(i int) error {
		f, err := os.Create(name(i))
		if err == nil {
			err = f.Close()
		}
		return err
	})
	each("unlink", func(i int) error { return os.Remove(name(i)) })
	f, err := os.Create(name(0))
	must(b, err)
	page := make([]byte, 4096)
	each("pwrite", func(i int) error {
		_, err := f.WriteAt(page, int64(i%500)*4096)
		return err
	})
	must(b, f.Close())
	took["untar"] = benchRun(b, dir, "tar", "xf", tar)
	for what, script := range map[string]string{
		"find": "find tree", "stat-all": "ls -lR tree", "grep": "! grep -rq 'nothing like this' tree",
		"read-all": "find tree -type f -print0 | xargs -0 cat | wc -c",
	} {
		benchRun(b, dir, "sh", "-c", script) // warms up
		took[what] = benchRun(b, dir, "sh", "-c", script)
	}
	took["rm"] = benchRun(b, dir, "rm", "-rf", "tree")
	return took
}
