package containerd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/git-env/git-env/internal/ocitest"
	"github.com/git-env/git-env/runtime"
)

// forEachImage runs a test on the host image and on an OCI image.
func forEachImage(t *testing.T, test func(t *testing.T, b *Backend, img runtime.Image)) {
	for _, kind := range []string{"host", "oci"} {
		t.Run(kind, func(t *testing.T) {
			p := newPlace(t)
			p.StateDir = filepath.Join(p.StateDir, "a directory: with a long, awkward name\\", "env")
			ref := "host"
			if kind == "oci" {
				r := registryWith(t, "box:1", ocitest.Config{Layers: [][]ocitest.File{
					{{Name: "opt/"}, {Name: "usr/"}, {Name: "opt/from-image", Data: []byte("image\n")}}, {{Name: "usr/two", Data: []byte("2\n")}}}})
				ref = r.Ref("box:1")
			}
			b := p.open(t)
			img, err := b.Resolve(testContext(t), ref, nil)
			if err != nil {
				t.Fatal(err)
			}
			test(t, b, img)
		})
	}
}

func registryWith(t testing.TB, repository string, config ocitest.Config) *ocitest.Registry {
	t.Helper()
	r := ocitest.NewRegistry()
	t.Cleanup(r.Close)
	img, err := ocitest.Image(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Push(repository, img); err != nil {
		t.Fatal(err)
	}
	return r
}

func create(t testing.TB, b *Backend, id string, img runtime.Image) {
	t.Helper()
	if err := b.CreateRootFS(testContext(t), id, img); err != nil {
		t.Fatal(err)
	}
}

func fork(t testing.TB, b *Backend, src, dst string) {
	t.Helper()
	if err := b.ForkRootFS(testContext(t), src, dst, runtime.Image{}); err != nil {
		t.Fatal(err)
	}
}

func stop(t testing.TB, b *Backend, id string) {
	t.Helper()
	if err := b.Remove(testContext(t), id); err != nil {
		t.Fatal(err)
	}
}

func TestRootFSPersistsAndForks(t *testing.T) {
	forEachImage(t, func(t *testing.T, b *Backend, img runtime.Image) {
		create(t, b, "a", img)
		if err := b.CreateRootFS(testContext(t), "a", img); !errors.Is(err, runtime.ErrExists) {
			t.Errorf("again: %v", err)
		}
		a := startOn(t, b, "ca", "a", img)
		sh(t, a, "echo one >/usr/file; mkdir -p /opt/dir; echo x >/opt/dir/x; echo r >/root/r; chmod 700 /opt; rm -f /opt/from-image")
		stop(t, b, "ca")
		// While it stands still: in no time, however much there is.
		begin := time.Now()
		fork(t, b, "a", "b")
		t.Logf("fork: %v", time.Since(begin))
		a = startOn(t, b, "ca", "a", img)
		bc := startOn(t, b, "cb", "b", img)
		for _, c := range []runtime.Container{a, bc} {
			if got := sh(t, c, "cat /usr/file /opt/dir/x /root/r; stat -c %a /opt; ls /opt"); !strings.HasPrefix(got, "one\nx\nr\n700\ndir") || strings.Contains(got, "from-image") {
				t.Errorf("%s: %q", c.ID(), got)
			}
		}
		sh(t, a, "echo two >/usr/file; rm -r /opt/dir; echo a >/only-a")
		sh(t, bc, "test ! -e /only-a && grep one /usr/file && test -e /opt/dir/x; rm /root/r; echo b >/opt/b")
		sh(t, a, "test -e /root/r && test ! -e /opt/b")
		// While it runs: hard links, attributes, whiteouts and holes are kept.
		sh(t, a, "echo h >/opt/h1; ln /opt/h1 /opt/h2; ln -s /opt/h1 /opt/s; mknod /opt/fifo p; dd if=/dev/zero of=/opt/sparse bs=1 count=1 seek=10000000 2>/dev/null; chown 1234:5678 /opt/h1")
		begin = time.Now()
		fork(t, b, "a", "c")
		t.Logf("fork while running: %v", time.Since(begin))
		cc := startOn(t, b, "cc", "c", img)
		if got := sh(t, cc, "cat /usr/file /only-a; stat -c '%h %u %g' /opt/h2; readlink /opt/s; test -p /opt/fifo; test ! -e /opt/dir; stat -c %s /opt/sparse; du -k /opt/sparse | cut -f1"); !strings.HasPrefix(got, "two\na\n2 1234 5678\n/opt/h1\n10000001\n") || len(got) > 60 {
			t.Errorf("%q", got)
		}
		diff := map[string]byte{}
		if err := b.DiffRootFS(testContext(t), "c", func(c runtime.RootChange) error {
			diff[c.Path] = c.Status
			return nil
		}); err != nil {
			t.Errorf("diff: %v", err)
		}
		for path, want := range map[string]byte{"/opt/h1": 'A', "/only-a": 'A', "/usr/file": 'A', "/opt/dir": 0, "/opt/dir/x": 0, "/root/r": 'A'} {
			if diff[path] != want {
				t.Errorf("diff of %s: %q, want %q", path, diff[path], want)
			}
		}
		if from, ok := diff["/opt/from-image"]; ok != !img.Host || ok && from != 'D' {
			t.Errorf("diff of what the image had: %q %v", from, ok)
		}
		if !a.Running(testContext(t)) || sh(t, a, "cat /only-a") != "a" {
			t.Error("the source was disturbed")
		}
		if err := b.RemoveRootFS(testContext(t), "a"); err == nil {
			t.Error("removed under a running container")
		}
		for _, id := range []string{"ca", "cb", "cc"} {
			stop(t, b, id)
		}
		removeAll(t, b, "a", "a", "b")
		cc = startOn(t, b, "cc", "c", img)
		sh(t, cc, "grep two /usr/file")
		stop(t, b, "cc")
		removeAll(t, b, "c")
		assertNoLayers(t, b)
	})
}

func removeAll(t testing.TB, b *Backend, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := b.RemoveRootFS(testContext(t), id); err != nil {
			t.Errorf("remove %s: %v", id, err)
		}
	}
}

// assertNoLayers checks that removing everything has left nothing.
func assertNoLayers(t testing.TB, b *Backend) {
	t.Helper()
	for _, dir := range []string{sealedDir, newDir, trashDir} {
		if entries, _ := os.ReadDir(filepath.Join(b.roots.dir, dir)); len(entries) > 0 {
			t.Errorf("%s: %v", dir, entries)
		}
	}
	refs, _ := filepath.Glob(filepath.Join(b.roots.host.dir, "*", "refs", "*"))
	if len(refs) > 0 {
		t.Errorf("claims: %v", refs)
	}
}

func TestForkChain(t *testing.T) {
	forEachImage(t, func(t *testing.T, b *Backend, img runtime.Image) {
		const depth = 50
		create(t, b, "r0", img)
		for i := range depth {
			grow(t, b, i, img)
		}
		begin := time.Now()
		last := fmt.Sprintf("r%d", depth)
		c := startOn(t, b, "c", last, img)
		t.Logf("start on %d layers: %v", depth, time.Since(begin))
		check := "test $(cat /latest) = 40 && test -e /opt/d/0 && test -e /opt/d/40 && test ! -e /opt/gone && ls / | grep -c '^f[0-9]'"
		if got := sh(t, c, check); got != "50" {
			t.Errorf("%q", got)
		}
		stop(t, b, "c")
		// Above the limit the layers are merged, which must not show.
		for i := depth; i < maxSealed+2; i++ {
			grow(t, b, i, img)
		}
		last = fmt.Sprintf("r%d", maxSealed+2)
		c = startOn(t, b, "c", last, img)
		if got := sh(t, c, strings.Replace(check, "= 40", "= 60", 1)); got != fmt.Sprint(maxSealed+2) {
			t.Errorf("after merging: %q", got)
		}
		stop(t, b, "c")
		if st, err := b.roots.load(last); err != nil || len(st.Sealed) != 1 {
			t.Errorf("not merged: %v %v", st, err)
		}
		for i := range maxSealed + 3 {
			removeAll(t, b, fmt.Sprintf("r%d", i))
		}
		assertNoLayers(t, b)
	})
}

// grow changes r<i>, as containers do or, faster, from outside, and forks it.
func grow(t *testing.T, b *Backend, i int, img runtime.Image) {
	t.Helper()
	id := fmt.Sprintf("r%d", i)
	if i%10 == 0 {
		c := startOn(t, b, "c", id, img)
		sh(t, c, fmt.Sprintf("echo %d >/f%d; echo %d >/latest; rm -rf /opt/gone; mkdir -p /opt/d; echo %d >/opt/d/%d; test %d = 0 && mkdir /opt/gone && echo x >/opt/gone/x || true", i, i, i, i, i, i))
		stop(t, b, "c")
	} else {
		for _, name := range []string{"root", "opt"} {
			if dir := b.roots.path(id, "top", name); exists(dir) {
				writeFile(t, filepath.Join(dir, fmt.Sprintf("f%d", i)), "x", 0o644)
			}
		}
	}
	fork(t, b, id, fmt.Sprintf("r%d", i+1))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestForkOfUnchangedAddsNoLayer(t *testing.T) {
	p := newPlace(t)
	b := p.open(t)
	img, err := b.Resolve(testContext(t), "host", nil)
	if err != nil {
		t.Fatal(err)
	}
	create(t, b, "src", img)
	for i := range 20 {
		fork(t, b, "src", fmt.Sprintf("f%d", i))
	}
	st, err := b.roots.load("src")
	if err != nil || len(st.Sealed) != 0 {
		t.Errorf("%v %v", st, err)
	}
}

// TestSealRecovers stops a fork at every step of sealing.
func TestSealRecovers(t *testing.T) {
	p := newPlace(t)
	b := p.open(t)
	img, err := b.Resolve(testContext(t), "host", nil)
	if err != nil {
		t.Fatal(err)
	}
	for step := range 4 {
		id := fmt.Sprintf("s%d", step)
		create(t, b, id, img)
		file := b.roots.path(id, "top", "root", "file")
		if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		st, err := b.roots.load(id)
		if err != nil {
			t.Fatal(err)
		}
		st.Sealing = id + ".layer"
		if err := b.roots.save(id, st); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(b.roots.dir, sealedDir), 0o700); err != nil {
			t.Fatal(err)
		}
		if step > 0 {
			if err := os.Rename(b.roots.path(id, "top"), b.roots.sealedPath(st.Sealing)); err != nil {
				t.Fatal(err)
			}
		}
		if step > 1 {
			if err := os.MkdirAll(b.roots.sealedPath(st.Sealing, "refs"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if step > 2 {
			if err := os.MkdirAll(b.roots.path(id, "top", "root"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		c := startOn(t, b, "c"+id, id, img)
		if got := sh(t, c, "cat /file"); got != "x" {
			t.Errorf("step %d: %q", step, got)
		}
		stop(t, b, "c"+id)
		removeAll(t, b, id)
	}
	assertNoLayers(t, b)
}

func TestSweep(t *testing.T) {
	p := newPlace(t)
	b := p.open(t)
	img, err := b.Resolve(testContext(t), "host", nil)
	if err != nil {
		t.Fatal(err)
	}
	create(t, b, "gone", img)
	if err := os.MkdirAll(b.roots.path(trashDir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(b.roots.path("gone"), b.roots.path(trashDir, "gone")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(b.roots.path(newDir, "half", "top"), 0o700); err != nil {
		t.Fatal(err)
	}
	p.open(t)
	assertNoLayers(t, b)
}
