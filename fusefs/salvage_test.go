package fusefs

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/git-env/git-env/fusefs/layer"
)

func (r *rig) layerFile(id, name string) string { return filepath.Join(r.dir, "layers", id, name) }

// damage changes bytes of a log where find is.
func damage(t *testing.T, path, find string, flip int) {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	at := bytes.Index(data, []byte(find))
	if at < 0 {
		t.Fatalf("no %q in %s", find, path)
	}
	data[at+flip] ^= 0x55
	must(t, os.WriteFile(path, data, 0o600))
}

// Damage in a log costs what it hit and is told once; content that lost its
// name is kept.
func TestDamagedLog(t *testing.T) {
	r := newRig(t, map[string]string{"base": "b"})
	must(t, os.WriteFile(r.path("before"), []byte("1"), 0o644))
	must(t, os.WriteFile(r.path("victim"), []byte("lost and found"), 0o644))
	must(t, os.Mkdir(r.path("dir"), 0o755))
	must(t, os.WriteFile(r.path("dir/inside"), []byte("also"), 0o644))
	must(t, os.WriteFile(r.path("gone"), []byte("g"), 0o644))
	must(t, os.Remove(r.path("gone")))
	must(t, os.WriteFile(r.path("after"), []byte("2"), 0o644))
	must(t, os.Rename(r.path("before"), r.path("moved")))
	r.unmount()
	for _, name := range []string{"victim", "dir"} {
		damage(t, r.layerFile("l1", "log"), name, 0)
	}
	data, err := os.ReadFile(r.layerFile("l1", "log"))
	must(t, err)
	at := bytes.LastIndex(data, []byte("gone"))
	data[at] ^= 1
	must(t, os.WriteFile(r.layerFile("l1", "log"), data, 0o600))

	r.mount()
	wantFile(t, r.path("moved"), "1")
	wantFile(t, r.path("after"), "2")
	wantFile(t, r.path("base"), "b")
	if names, err := os.ReadDir(r.spec.Dir); err != nil || len(names) != 4 { // with .git
		t.Errorf("names %v %v", names, err)
	}
	told := r.c.Repairs(r.spec.ID)
	if len(told) != 1 || told[0].Parts != 3 || told[0].Names != 1 || len(told[0].Files) != 2 {
		t.Fatalf("told %+v", told)
	}
	if s := told[0].String(); !strings.Contains(s, "l1") || !strings.Contains(s, "2 file(s)") {
		t.Errorf("said %q", s)
	}
	var found []string
	for _, f := range told[0].Files {
		data, err := os.ReadFile(f)
		must(t, err)
		found = append(found, string(data))
	}
	if all := strings.Join(found, " "); all != "lost and found also" && all != "also lost and found" {
		t.Errorf("kept %q", found)
	}
	if !strings.HasSuffix(told[0].Files[0]+told[0].Files[1], "-inside") && !strings.Contains(told[0].Files[0], "-inside") {
		t.Errorf("the name that is known is not in %q", told[0].Files)
	}

	// Again it is the same and not told. Going on works.
	before := snapshot(t, r.spec.Dir)
	must(t, os.WriteFile(r.path("gone"), []byte("new"), 0o644))
	must(t, os.Mkdir(r.path("dir"), 0o755))
	r.unmount()
	r.mount()
	if again := r.c.Repairs(r.spec.ID); len(again) != 0 {
		t.Errorf("told again: %+v", again)
	}
	wantFile(t, r.path("gone"), "new")
	must(t, os.Remove(r.path("gone")))
	must(t, os.Remove(r.path("dir")))
	after := snapshot(t, r.spec.Dir)
	before["."], after["."] = seen{}, seen{} // its times
	same(t, "remount", after, before, exact)
	for _, f := range told[0].Files {
		if _, err := os.Stat(f); err != nil {
			t.Error(err)
		}
	}
}

// Whatever happens to the bytes of the logs, the workspace can be mounted,
// walked and used, and looks the same at the next mount.
func TestAnyDamage(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { anyDamage(t, seed) })
	}
}

func anyDamage(t *testing.T, seed uint64) {
	r := newRig(t, map[string]string{"a": "a", "b": "b", "d/a": "da", "d/e/f/a": "deep", "e/b": "x"})
	z := &randomizer{Rand: rand.New(rand.NewPCG(seed, 9)), r: r, roots: [2]string{r.spec.Dir, t.TempDir()}}
	for i := range 600 {
		z.step()
		if i == 300 {
			z.freeze("l2")
		}
	}
	r.unmount()
	whole := map[string][]byte{}
	for _, id := range r.spec.Layers {
		data, err := os.ReadFile(r.layerFile(id, "log"))
		must(t, err)
		whole[id] = data
	}
	for round := range 8 {
		for id, data := range whole {
			must(t, os.WriteFile(r.layerFile(id, "log"), z.spoil(data), 0o600))
		}
		sealed, err := os.ReadFile(r.layerFile("l1", "log"))
		must(t, err)
		r.mount()
		before := snapshot(t, r.spec.Dir)
		must(t, os.WriteFile(r.path(fmt.Sprint("new", round)), []byte("n"), 0o644))
		must(t, os.Remove(r.path(fmt.Sprint("new", round))))
		r.unmount()
		r.mount()
		after := snapshot(t, r.spec.Dir)
		before["."], after["."] = seen{}, seen{}
		same(t, "the next mount", after, before, exact)
		r.unmount()
		if _, _, err := OfflineDirty(filepath.Join(r.dir, "layers"), r.spec.Layers, 10); err != nil {
			t.Error(err)
		}
		if now, err := os.ReadFile(r.layerFile("l1", "log")); err != nil || !bytes.Equal(now, sealed) {
			t.Errorf("the log of a sealed layer changed: %v", err)
		}
	}
	r.mount()
}

// spoil returns a copy of data with something done to it.
func (z *randomizer) spoil(data []byte) []byte {
	data = bytes.Clone(data)
	for range 1 + z.IntN(4) {
		from := z.IntN(len(data))
		n := min(1+z.IntN(300), len(data)-from)
		switch z.IntN(4) {
		case 0:
			data[from] ^= 1 << z.IntN(8)
		case 1:
			clear(data[from : from+n])
		case 2:
			data = append(data[:from], data[from+n:]...)
		case 3:
			copy(data[from:from+n], data[z.IntN(from+1):]) // other records, perhaps
		}
	}
	return data
}

// A layer that lost its description gets it again; one that lost its log is
// damaged, and nothing is made in its place.
func TestMissingLayerParts(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x"})
	must(t, os.WriteFile(r.path("one"), []byte("1"), 0o644))
	r.freezeTo("l2")
	must(t, os.WriteFile(r.path("two"), []byte("2"), 0o644))
	before := snapshot(t, r.spec.Dir)
	r.unmount()
	must(t, os.Remove(r.layerFile("l1", "meta")))
	must(t, os.WriteFile(r.layerFile("l2", "meta"), []byte("{"), 0o600))
	if n, _, err := OfflineDirty(filepath.Join(r.dir, "layers"), r.spec.Layers, 10); n != 2 || err != nil {
		t.Errorf("offline: %d dirty, %v", n, err)
	}
	r.mount()
	same(t, "rebuilt", snapshot(t, r.spec.Dir), before, exact)
	if told := r.c.Repairs(r.spec.ID); len(told) != 2 || told[0].Meta == "" || told[1].Meta == "" {
		t.Errorf("told %+v", told)
	}
	r.unmount()
	r.mount()
	if told := r.c.Repairs(r.spec.ID); len(told) != 0 {
		t.Errorf("told again %+v", told)
	}
	r.unmount()
	for _, id := range []string{"l1", "l2"} {
		log := r.layerFile(id, "log")
		must(t, os.Rename(log, log+".away"))
		if err := r.c.Mount(t.Context(), r.spec); !errors.Is(err, layer.ErrDamaged) || !strings.Contains(err.Error(), id) {
			t.Errorf("without the log of %s: %v", id, err)
		}
		if _, err := os.Stat(log); err == nil {
			t.Errorf("a new log of %s was made", id)
		}
		must(t, os.Rename(log+".away", log))
	}
	must(t, os.Rename(filepath.Dir(r.layerFile("l1", "log")), filepath.Join(r.dir, "away")))
	if err := r.c.Mount(t.Context(), r.spec); !errors.Is(err, layer.ErrDamaged) {
		t.Errorf("without a layer: %v", err)
	}
	must(t, os.Rename(filepath.Join(r.dir, "away"), filepath.Dir(r.layerFile("l1", "log"))))
	r.mount()
	same(t, "with everything", snapshot(t, r.spec.Dir), before, exact)
}

func (r *rig) freezeTo(id string) {
	r.t.Helper()
	if _, err := r.c.Freeze(r.t.Context(), r.spec.ID, id); err != nil {
		r.t.Fatal(err)
	}
	r.spec.Layers = append(r.spec.Layers, id)
}

func (z *randomizer) freeze(id string) { z.r.freezeTo(id) }
