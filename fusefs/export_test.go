package fusefs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func (r *rig) export(layers []string, last bool, dir string) {
	r.t.Helper()
	sink, err := NewDirSink(dir)
	must(r.t, err)
	must(r.t, Export(context.Background(), r.exportOptions(layers, last), sink.Put))
	must(r.t, sink.Finish())
}

func (r *rig) exportOptions(layers []string, last bool) ExportOptions {
	spec := r.spec
	spec.Layers = layers
	return ExportOptions{
		GitDir: filepath.Join(r.repo, ".git"), BlobDir: filepath.Join(r.dir, "blobs"),
		LayerDir: filepath.Join(r.dir, "layers"), Spec: spec, Layer: last,
	}
}

// exported is seen without what an export does not keep.
func exported(s seen) seen {
	s.ino, s.ctime = 0, 0
	if s.Mode&unix.S_IFMT == unix.S_IFDIR {
		s.Nlink, s.Size = 0, 0
	}
	return s
}

// TestExport exports workspaces after random operations, and single layers, which
// put on what is below by the rules of OCI layers must give what is above.
func TestExport(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { testExport(t, seed) })
	}
}

func testExport(t *testing.T, seed uint64) {
	files := map[string]string{"a": "a", "b": "#!b", "d/a": "da", "d/e/a": "dea", "d/e/f/a": "deep", "l": "->a", "e/b": ""}
	r := newRig(t, files)
	plain := filepath.Join(t.TempDir(), "plain")
	must(t, os.Mkdir(plain, 0o755))
	z := &randomizer{Rand: rand.New(rand.NewPCG(seed, 7)), r: r, roots: [2]string{r.spec.Dir, plain}}
	dir := filepath.Join(r.dir, "out")
	must(t, os.Mkdir(dir, 0o755))
	before := filepath.Join(dir, "0")
	r.export(nil, false, before)
	for i := range 5 {
		for range 100 {
			z.step()
		}
		sealed := r.spec.Layers
		r.freezeOn(fmt.Sprint("top", i))
		now := filepath.Join(dir, fmt.Sprint(i+1))
		r.export(sealed, false, now)
		same(t, "exported", snapshot(t, now), snapshot(t, r.spec.Dir), exported)
		one := filepath.Join(dir, fmt.Sprint("layer", i))
		r.export(sealed, true, one)
		putOn(t, before, one)
		same(t, "put on", snapshot(t, before), snapshot(t, now), func(s seen) seen {
			s = exported(s)
			s.Nlink, s.mtime = 0, 0 // names in lower layers cannot be linked to, nor be told of
			if s.Mode&unix.S_IFMT == unix.S_IFDIR {
				s.Xattr = "" // unpacking does not take them away
			}
			return s
		})
		if t.Failed() {
			t.Fatalf("after layer %d", i)
		}
		must(t, os.RemoveAll(before))
		before = now
	}
}

// putOn puts an exported layer on a directory as a container runtime does.
func putOn(t *testing.T, dir, layer string) {
	t.Helper()
	var marks []string
	err := filepath.WalkDir(layer, func(path string, d fs.DirEntry, err error) error {
		must(t, err)
		rel, _ := filepath.Rel(layer, path)
		if name := d.Name(); strings.HasPrefix(name, whiteout) {
			marks = append(marks, rel)
		}
		return nil
	})
	must(t, err)
	for _, m := range marks {
		at, name := filepath.Dir(m), filepath.Base(m)
		if name == opaque {
			must(t, os.RemoveAll(filepath.Join(dir, at)))
		} else {
			must(t, os.RemoveAll(filepath.Join(dir, at, strings.TrimPrefix(name, whiteout))))
		}
	}
	err = filepath.WalkDir(layer, func(path string, d fs.DirEntry, err error) error {
		must(t, err)
		rel, _ := filepath.Rel(layer, path)
		old, err := os.Lstat(filepath.Join(dir, rel))
		if err == nil && (!d.IsDir() || !old.IsDir()) && !strings.HasPrefix(d.Name(), whiteout) {
			must(t, os.RemoveAll(filepath.Join(dir, rel)))
		}
		return nil
	})
	must(t, err)
	out, err := exec.Command("sh", "-c", `cd "$0" && tar --xattrs --exclude '.wh.*' -cf - . | tar --xattrs -xpf - -C "$1"`, layer, dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestExportTar(t *testing.T) {
	r := newRig(t, map[string]string{"tree": "x", "gone": "y", "d/f": "z"})
	must(t, os.Remove(r.path("gone")))
	must(t, os.WriteFile(r.path("new"), []byte("new"), 0o640))
	must(t, os.Link(r.path("new"), r.path("second")))
	must(t, os.Chmod(r.path("d/f"), 0o600))
	must(t, unix.Mkfifo(r.path("fifo"), 0o600))
	sealed := r.spec.Layers
	r.freezeOn("top")
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	must(t, Export(context.Background(), r.exportOptions(sealed, true), TarSink(w)))
	must(t, w.Close())
	var names []string
	for rd := tar.NewReader(&b); ; {
		h, err := rd.Next()
		if err != nil {
			break
		}
		names = append(names, fmt.Sprintf("%s %c %o %s", h.Name, h.Typeflag, h.Mode, h.Linkname))
	}
	want := []string{"./ 5 755 ", ".wh.gone 0 600 ", "d/ 5 755 ", "d/f 0 600 ", "fifo 6 600 ", "new 0 640 ", "second 1 640 new"}
	if strings.Join(names, "|") != strings.Join(want, "|") {
		t.Errorf("got %q\nwant %q", names, want)
	}
}

// An export mixes with nothing, is led nowhere, and tells what it cannot tell.
func TestExportRefused(t *testing.T) {
	r := newRig(t, nil)
	full := filepath.Join(r.dir, "full")
	must(t, os.MkdirAll(filepath.Join(full, "x"), 0o755))
	if _, err := NewDirSink(full); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("into a full directory: %v", err)
	}
	must(t, os.Symlink(r.dir, r.path("a")))
	must(t, os.WriteFile(r.path(".wh.x"), nil, 0o644))
	sealed := r.spec.Layers
	r.freezeOn("top")
	if err := Export(context.Background(), r.exportOptions(sealed, true), func(*ExportEntry) error { return nil }); !errors.Is(err, ErrWhiteoutName) {
		t.Errorf("a name like a whiteout: %v", err)
	}
	sink, err := NewDirSink(filepath.Join(r.dir, "out"))
	must(t, err)
	must(t, sink.Put(&ExportEntry{Path: "a", Mode: unix.S_IFLNK | 0o777, Target: r.dir}))
	if err := sink.Put(&ExportEntry{Path: "a/escaped", Mode: unix.S_IFREG | 0o600}); err == nil {
		t.Error("a link was followed")
	}
	must(t, sink.Finish())
	if _, err := os.Lstat(filepath.Join(r.dir, "escaped")); err == nil {
		t.Error("written outside")
	}
}
