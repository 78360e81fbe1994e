package fusefs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/fusefs/layer"
)

// merge replaces the layers from i to j, j not included, by one.
func (r *rig) merge(i, j int, out string) {
	r.t.Helper()
	must(r.t, merge(r.mergeOptions(i, j, out)))
	for _, id := range r.spec.Layers[i:j] {
		must(r.t, layer.Remove(filepath.Join(r.dir, "layers", id)))
	}
	r.spec.Layers = slices.Concat(r.spec.Layers[:i], []string{out}, r.spec.Layers[j:])
}

func (r *rig) mergeOptions(i, j int, out string) MergeOptions {
	exe, err := os.Executable()
	must(r.t, err)
	return MergeOptions{
		Exe: exe, LayerDir: filepath.Join(r.dir, "layers"), Tree: r.spec.Tree,
		Below: r.spec.Layers[:i], Run: r.spec.Layers[i:j], Out: out,
	}
}

// TestRandomMerge does random operations with freezes among them on a workspace
// and a plain directory. At random points a random run of layers is merged: the
// workspace must be the same to the last time stamp, and so must be what is dirty.
func TestRandomMerge(t *testing.T) {
	seeds := 6
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomMerge(t, uint64(seed)) })
	}
}

func randomMerge(t *testing.T, seed uint64) {
	files := map[string]string{"a": "a", "b": "#!b", "d/a": "da", "d/e/a": "dea", "d/e/f/a": "deep", "l": "->a", "e/b": ""}
	for i := range 20 {
		files[fmt.Sprintf("d/many/f%d", i)] = fmt.Sprint(i)
	}
	r := newRig(t, files)
	plain := filepath.Join(t.TempDir(), "plain")
	if out, err := exec.Command("git", "clone", "-q", r.repo, plain).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	must(t, os.RemoveAll(filepath.Join(plain, ".git")))
	z := &randomizer{Rand: rand.New(rand.NewPCG(seed, 9)), r: r, roots: [2]string{r.spec.Dir, plain}}
	z.base = gitFiles(snapshot(t, plain))
	for i := range 1000 {
		what, errs := z.step()
		if !errors.Is(errs[0], errs[1]) && (errs[0] != nil || errs[1] != nil) {
			t.Fatalf("step %d: %s: workspace %v, plain %v", i, what, errs[0], errs[1])
		}
		if z.IntN(25) == 0 {
			r.freezeOn(fmt.Sprint("top", i))
		}
		if z.IntN(60) == 0 {
			seq := r.checkDirty("dirty", z.base)
			if z.IntN(2) == 0 {
				must(t, r.c.Mark(context.Background(), "m", seq, "c"))
				z.base = gitFiles(snapshot(t, r.spec.Dir))
			}
		}
		if n := len(r.spec.Layers); i%100 == 99 && n > 1 {
			from := z.IntN(n - 1)
			z.mergeAndCompare(from, from+1+z.IntN(n-1-from), fmt.Sprint("merged", i))
		}
		if t.Failed() {
			t.Fatalf("after step %d", i)
		}
	}
}

func (z *randomizer) mergeAndCompare(from, to int, out string) {
	t, r := z.r.t, z.r
	t.Helper()
	before := snapshot(t, r.spec.Dir)
	same(t, "plain", before, snapshot(t, z.roots[1]), seen.plain)
	_, dirty := r.dirtyFiles()
	r.unmount()
	layers := filepath.Join(r.dir, "layers")
	n, paths, err := OfflineDirty(layers, r.spec.Layers, 1000)
	must(t, err)
	r.merge(from, to, out)
	n2, paths2, err := OfflineDirty(layers, r.spec.Layers, 1000)
	must(t, err)
	if n != n2 || !slices.Equal(paths, paths2) {
		t.Errorf("%s: offline: %d dirty %q, before %d %q", out, n2, paths2, n, paths)
	}
	r.mount()
	same(t, out, snapshot(t, r.spec.Dir), before, exact)
	if _, now := r.dirtyFiles(); !reflect.DeepEqual(now, dirty) {
		t.Errorf("%s: dirty %v, before %v", out, now, dirty)
	}
	r.checkDirty(out, z.base)
}

// What several layers have changed over and over is short when it is merged,
// hard links and removed files of the tree included, by the process that does
// it for the daemon.
func TestMerge(t *testing.T) {
	r := newRig(t, map[string]string{"d/lower": "lower", "gone": "x", "moved/f": "y"})
	for i := range 4 {
		for range 50 {
			must(t, os.WriteFile(r.path("again"), []byte(fmt.Sprint(i)), 0o644))
			must(t, os.Chmod(r.path("again"), 0o600))
			must(t, os.WriteFile(r.path("temporary"), nil, 0o644))
			must(t, os.Remove(r.path("temporary")))
		}
		r.freezeOn(fmt.Sprint("top", i))
	}
	must(t, os.Link(r.path("again"), r.path("d/linked")))
	must(t, os.Remove(r.path("gone")))
	must(t, os.Rename(r.path("moved"), r.path("d/moved")))
	must(t, unix.Setxattr(r.path("d/lower"), "user.x", []byte("v"), 0))
	r.freezeOn("top")
	must(t, os.WriteFile(r.path("later"), []byte("z"), 0o644))
	before := snapshot(t, r.spec.Dir)
	stack, err := r.c.Stack(context.Background(), "m")
	must(t, err)
	var logs int64
	for _, n := range stack.Logs {
		logs += n
	}
	must(t, Merge(context.Background(), r.mergeOptions(0, 5, "merged")))

	// Who has the old layers mounted sees no change, to the time of the last.
	must(t, unix.Mount("", r.spec.Dir, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, ""))
	same(t, "live", snapshot(t, r.spec.Dir), before, exact)
	r.unmount()
	for _, id := range r.spec.Layers[:5] {
		must(t, layer.Remove(filepath.Join(r.dir, "layers", id)))
	}
	old := r.spec.Layers[:5]
	r.spec.Layers = []string{"merged", "top"}
	r.mount()
	same(t, "remount", snapshot(t, r.spec.Dir), before, exact)
	if stack, err = r.c.Stack(context.Background(), "m"); err != nil || stack.Logs[0]*10 > logs {
		t.Errorf("log of %d bytes, before %d, %v", stack.Logs[0], logs, err)
	}
	l, err := layer.Open(filepath.Join(r.dir, "layers", "merged"), false)
	must(t, err)
	if m := l.Meta(); !slices.Equal(m.Replaces, old) || m.Version != layer.Version || !m.Sealed {
		t.Errorf("meta %+v", m)
	}
	n := 0
	must(t, l.DataFiles(func(uint64) error { n++; return nil }))
	if n != 1 {
		t.Errorf("%d data files", n)
	}
}

// A layer that lost a part is not merged, and nothing is left of the attempt.
func TestMergeOfDamaged(t *testing.T) {
	r := newRig(t, nil)
	must(t, os.WriteFile(r.path("f"), []byte("x"), 0o644))
	r.freezeOn("top")
	must(t, os.WriteFile(r.path("g"), []byte("x"), 0o644))
	r.unmount()
	log := filepath.Join(r.dir, "layers", "l1", "log")
	st, err := os.Stat(log)
	must(t, err)
	must(t, os.Truncate(log, st.Size()-3))
	if err := Merge(context.Background(), r.mergeOptions(0, 1, "merged")); !errors.Is(err, ErrDamagedRun) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(filepath.Join(r.dir, "layers", "merged")); !os.IsNotExist(err) {
		t.Errorf("left: %v", err)
	}
	r.mount()
}
