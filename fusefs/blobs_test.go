package fusefs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// cached is the path of the cached blob of a file's content.
func (r *rig) cached(content string) string {
	id := hashBlob(strings.Repeat("0", len(r.spec.Tree)), []byte(content))
	return filepath.Join(r.dir, "blobs", id[:2], id[2:])
}

// keep brings the blobs of files' contents into the cache.
func (r *rig) keep(contents ...string) {
	r.t.Helper()
	var blobs []Blob
	for _, c := range contents {
		path := r.cached(c)
		blobs = append(blobs, Blob{filepath.Base(filepath.Dir(path)) + filepath.Base(path), int64(len(c))})
	}
	done, err := r.c.Hydrate(context.Background(), blobs)
	if err != nil || done.Failed > 0 {
		r.t.Fatalf("hydrate: %+v, %v", done, err)
	}
}

// restart has the mount served by a new server.
func (r *rig) restart() {
	r.t.Helper()
	must(r.t, r.c.Close())
	r.start()
	r.mount()
}

// object is the path of the loose object of a file's content.
func (r *rig) object(content string) string {
	path := r.cached(content)
	return filepath.Join(r.repo, ".git/objects", filepath.Base(filepath.Dir(path)), filepath.Base(path))
}

// rewrite changes a file that nobody may write to, as damage does.
func rewrite(t *testing.T, path string, change func(*os.File) error) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	must(t, change(f))
	must(t, f.Close())
}

// Damage to a cached blob is noticed by the next server and undone.
func TestDamagedCache(t *testing.T) {
	small, large := "hello world\n", strings.Repeat("0123456789abcdef", smallBlob/16+5)
	r := newRig(t, map[string]string{"small": small, "large": large})
	for name, damage := range map[string]func(f *os.File) error{
		"bit flip":  func(f *os.File) error { _, err := f.WriteAt([]byte("X"), 3); return err },
		"truncated": func(f *os.File) error { return f.Truncate(5) },
		"longer": func(f *os.File) error {
			_, err := f.Seek(0, 2)
			_, err2 := f.Write([]byte("x"))
			return errors.Join(err, err2)
		},
		"emptied": func(f *os.File) error { return f.Truncate(0) },
		"zeroed": func(f *os.File) error {
			st, err := f.Stat()
			_, err2 := f.WriteAt(make([]byte, st.Size()), 0)
			return errors.Join(err, err2)
		},
	} {
		r.keep(small)
		wantFile(t, r.path("small"), small)
		wantFile(t, r.path("large"), large)
		must(t, r.c.Close())
		for _, content := range []string{small, large} {
			rewrite(t, r.cached(content), damage)
		}
		r.start()
		r.mount()
		for file, content := range map[string]string{"small": small, "large": large} {
			if data, err := os.ReadFile(r.path(file)); err != nil || string(data) != content {
				t.Errorf("%s: %s: %d bytes, %v", name, file, len(data), err)
			}
			if data, err := os.ReadFile(r.cached(content)); err != nil || string(data) != content {
				t.Errorf("%s: %s: not repaired: %d bytes, %v", name, file, len(data), err)
			}
		}
	}
}

// What git lost is served from the cache as long as that is right, and takes
// nothing else with it.
func TestObjectLost(t *testing.T) {
	r := newRig(t, map[string]string{"d/kept": "kept\n", "d/lost": "lost\n", "d/other": "other\n"})
	r.keep("kept\n")
	must(t, r.c.Close())
	must(t, os.Remove(r.object("kept\n")))
	must(t, os.Remove(r.object("lost\n")))
	r.start()
	r.mount()
	wantFile(t, r.path("d/kept"), "kept\n")
	wantFile(t, r.path("d/other"), "other\n")
	if data, err := os.ReadFile(r.path("d/lost")); !errors.Is(err, syscall.EIO) {
		t.Errorf("lost: %q, %v", data, err)
	}
	r.unmount()
	rewrite(t, r.cached("kept\n"), func(f *os.File) error { return f.Truncate(1) })
	r.restart()
	if data, err := os.ReadFile(r.path("d/kept")); !errors.Is(err, syscall.EIO) {
		t.Errorf("lost and damaged: %q, %v", data, err)
	}
	wantFile(t, r.path("d/other"), "other\n")
}

// A damaged object of git fails the file alone, read ahead or not.
func TestObjectDamaged(t *testing.T) {
	r := newRig(t, map[string]string{"d/a": "aaa\n", "d/b": "bbb\n", "d/c": "ccc\n"})
	path := r.object("bbb\n")
	must(t, os.Remove(path))
	must(t, os.WriteFile(path, []byte("garbage"), 0o444))
	wantFile(t, r.path("d/a"), "aaa\n")
	if data, err := os.ReadFile(r.path("d/b")); !errors.Is(err, syscall.EIO) {
		t.Errorf("damaged: %q, %v", data, err)
	}
	wantFile(t, r.path("d/c"), "ccc\n")
	must(t, r.c.Close())
	must(t, os.Remove(path))
	git(t, r.repo, "-c", "core.bare=false", "hash-object", "-w", r.tempFile("bbb\n"))
	r.start()
	r.mount()
	wantFile(t, r.path("d/b"), "bbb\n")
}

func (r *rig) tempFile(content string) string {
	path := filepath.Join(r.dir, "temp")
	must(r.t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

// Siblings of what is read come along, small ones into memory.
func TestReadAhead(t *testing.T) {
	files := map[string]string{}
	for i := range 50 {
		files[fmt.Sprintf("d/f%03d", i)] = fmt.Sprintf("content %d\n", i)
	}
	files["d/y"] = strings.Repeat("middle", memoryBlob/4)
	files["d/z"] = strings.Repeat("large", aheadLarge)
	r := newRig(t, files)
	wantFile(t, r.path("d/f000"), "content 0\n")
	await(t, "the last sibling", func() bool { return exists(r.cached(files["d/y"])) })
	must(t, os.Remove(r.object("content 40\n")))
	for name, content := range files {
		if name != "d/z" {
			wantFile(t, r.path(name), content)
		}
	}
	for name, there := range map[string]bool{"d/f040": false, "d/y": true, "d/z": false} {
		if exists(r.cached(files[name])) != there {
			t.Errorf("%s is in the cache: %v", name, !there)
		}
	}
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for start := time.Now(); !done(); time.Sleep(time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatalf("%s: still not", what)
		}
	}
}

// cacheSize is what the files of the cache take.
func (r *rig) cacheSize() (bytes int64) {
	_ = filepath.WalkDir(filepath.Join(r.dir, "blobs"), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				bytes += onDisk(info.Size())
			}
		}
		return nil
	})
	return bytes
}

// The cache stays within its bound while many read far more than that, and
// everybody reads what is right.
func TestCacheBound(t *testing.T) {
	const max = 2 << 20
	content := func(i int) string { return strings.Repeat(fmt.Sprintf("line of file %d\n", i), 5000) }
	files := map[string]string{}
	for i := range 120 {
		files[fmt.Sprintf("d%d/f%d", i%4, i)] = content(i)
	}
	r := newRig(t, files)
	must(t, r.c.Close())
	r.blobCache = max
	r.start()
	r.mount()
	var readers sync.WaitGroup
	for reader := range 4 {
		readers.Go(func() {
			for i := range 120 {
				i = (i + reader*30) % 120
				data, err := os.ReadFile(r.path(fmt.Sprintf("d%d/f%d", i%4, i)))
				if err != nil || string(data) != content(i) {
					t.Errorf("file %d: %d bytes, %v", i, len(data), err)
				}
			}
		})
	}
	readers.Wait()
	r.restart() // closes what is open
	wantFile(t, r.path("d0/f0"), content(0))
	await(t, "eviction", func() bool { return r.cacheSize() <= max })
}

// What somebody has open is not evicted; what was used last is kept.
func TestEviction(t *testing.T) {
	dir := t.TempDir()
	b := newBlobStore(dir, nil, 40<<10, testLog(t))
	var ids []string
	for i := range 20 {
		data := bytes.Repeat([]byte{byte(i)}, 4096)
		id := hashBlob(strings.Repeat("0", 40), data)
		b.passing.Store(true) // none in the background
		f, _, err := b.put(id, 4096, bytes.NewReader(data))
		must(t, err)
		must(t, f.Close())
		b.setGood(id)
		must(t, os.Chtimes(b.path(id), time.Unix(int64(1000+i), 0), time.Unix(1, 0)))
		ids = append(ids, id)
	}
	must(t, os.WriteFile(b.path(ids[3])+".key", make([]byte, 100), 0o444))
	must(t, os.Chtimes(b.path(ids[3])+".key", time.Unix(1, 0), time.Unix(1, 0)))
	open, err := os.Open(b.path(ids[0]))
	must(t, err)
	defer open.Close()
	b.pass()
	var left []int
	for i, id := range ids {
		if exists(b.path(id)) != b.isGood(id) {
			t.Errorf("blob %d: there and known differ", i)
		}
		if exists(b.path(id)) {
			left = append(left, i)
		}
	}
	if got := fmt.Sprint(left); got != "[0 12 13 14 15 16 17 18 19]" {
		t.Errorf("left: %s", got)
	}
	if exists(b.path(ids[3]) + ".key") {
		t.Error("what was made of a blob stays")
	}
	if total := b.total.Load(); total != 9*4096 {
		t.Errorf("%d bytes are counted", total)
	}
}

// Where the cache cannot be written files are read all the same.
func TestCacheFull(t *testing.T) {
	r := newRig(t, map[string]string{"a": strings.Repeat("a", 3<<20), "b": "bbb"})
	must(t, r.c.Close())
	full := t.TempDir()
	must(t, unix.Mount("tmpfs", full, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() {
		if err := unix.Unmount(full, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	must(t, os.RemoveAll(filepath.Join(r.dir, "blobs")))
	must(t, os.Symlink(full, filepath.Join(r.dir, "blobs")))
	r.start()
	r.mount()
	wantFile(t, r.path("a"), strings.Repeat("a", 3<<20))
	wantFile(t, r.path("b"), "bbb")
	must(t, r.c.Close())
	must(t, os.Remove(filepath.Join(r.dir, "blobs")))
	r.start()
	r.mount()
}

// What was read from memory gets a file when it is hydrated.
func TestHydrateFromMemory(t *testing.T) {
	r := newRig(t, map[string]string{"a": "aaa\n"})
	wantFile(t, r.path("a"), "aaa\n")
	if exists(r.cached("aaa\n")) {
		t.Error("a small file that was read is in the cache")
	}
	must(t, os.Remove(r.object("aaa\n"))) // git does not give it any more
	r.keep("aaa\n")
	r.restart()
	wantFile(t, r.path("a"), "aaa\n")
}
