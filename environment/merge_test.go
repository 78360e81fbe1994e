package environment

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAdoptOne(t *testing.T) {
	made := map[string][]string{"m1": {"a", "b"}, "m2": {"a", "b", "c"}, "m3": {"d"}, "m4": {"d"}}
	for in, want := range map[string]string{
		"a b top":    "m1 top",
		"a b c top":  "m2 top",
		"m1 c top":   "m2 top",
		"a b c":      "m1 c", // the top stays
		"b c top":    "",
		"x b top":    "",
		"m2 top":     "",
		"m3 top":     "",
		"x a b y d ": "x m1 y d ",
		"top":        "",
	} {
		if got := strings.Join(adoptOne(strings.Split(in, " "), made), " "); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

// Merging again and again writes what is large rarely and keeps stacks flat.
func TestPlanMerge(t *testing.T) {
	e := &Engine{}
	e.merging.made, e.merging.tried = map[string][]string{}, map[string]bool{}
	sizes := []int64{100 << 20}
	stack := []string{"base"}
	var written, added int64
	for i := range 2000 {
		stack, sizes = append(stack, fmt.Sprint("l", i)), append(sizes, 1000)
		added += 1000
		from, to := e.planMerge(stack, sizes, 0)
		if to == from {
			continue
		}
		if to != len(stack) || to-from < 2 {
			t.Fatalf("from %d to %d of %d", from, to, len(stack))
		}
		var sum int64
		for _, s := range sizes[from:to] {
			sum += s
		}
		written += sum
		stack, sizes = append(stack[:from:from], fmt.Sprint("m", i)), append(sizes[:from:from], sum)
		if len(stack) > maxDepth {
			t.Fatalf("%d layers after a merge", len(stack))
		}
	}
	if written > added*12 {
		t.Errorf("%d bytes written for %d", written, added)
	}
	if from, to := e.planMerge([]string{"a", "b"}, []int64{100, 2 * longLog}, 1000); from != 1 || to != 2 {
		t.Errorf("a long log: from %d to %d", from, to)
	}
	if from, to := e.planMerge([]string{"a", "b"}, []int64{100, 2 * longLog}, 100000); from != to {
		t.Errorf("a log of many files: from %d to %d", from, to)
	}
}

// deepen makes forks of forks, each of which differs from the one before.
func (r *rig) deepen(n int) (last string) {
	r.t.Helper()
	v := r.env("e0")
	for i := range n {
		write(r.t, filepath.Join(v.st.Workspace, fmt.Sprintf("ignored%d", i)), fmt.Sprintln(i))
		last = fmt.Sprint("e", i+1)
		r.fork(fmt.Sprint("e", i), last)
		v = r.up(last)
	}
	return last
}

// settle waits until no layers are being merged or removed.
func (r *rig) settle() { r.e.merging.wg.Wait() }

func (r *rig) hasAll(name string, n int) {
	r.t.Helper()
	v := r.up(name)
	for i := range n {
		data, err := os.ReadFile(filepath.Join(v.st.Workspace, fmt.Sprintf("ignored%d", i)))
		if string(data) != fmt.Sprintln(i) {
			r.t.Errorf("%s: ignored%d: %q, %v", name, i, data, err)
		}
	}
}

func (r *rig) suspend(name string) *Env {
	r.t.Helper()
	v, err := r.e.env(name)
	if err != nil {
		r.t.Fatal(err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.suspend(r.t.Context(), true); err != nil {
		r.t.Fatal(err)
	}
	return v
}

func (r *rig) layers() []string {
	r.t.Helper()
	found, err := os.ReadDir(r.e.layerDir())
	if err != nil {
		r.t.Fatal(err)
	}
	var names []string
	for _, d := range found {
		names = append(names, d.Name())
	}
	return names
}

// Forks of forks stay flat: their layers are merged beside them, shared by all,
// and those that nobody needs any more go.
func TestMergeForks(t *testing.T) {
	needFuse(t)
	r := newRig(t, map[string]string{".gitignore": "ignored*\n"})
	const n = 14
	last := r.deepen(n)
	r.settle()
	for i := range n + 1 {
		v := r.suspend(fmt.Sprint("e", i))
		if len(v.st.Layers) > maxDepth+3 {
			t.Errorf("%s has %d layers", v.st.Name, len(v.st.Layers))
		}
	}
	r.settle()
	st, err := r.e.store.Load(last)
	if err != nil {
		t.Fatal(err)
	}
	if len(st.Layers) > maxDepth+1 {
		t.Errorf("the last one has %d layers", len(st.Layers))
	}
	if !slices.ContainsFunc(st.Layers, func(l string) bool { return strings.HasPrefix(l, mergedPrefix) }) {
		t.Errorf("nothing was merged: %q", st.Layers)
	}
	r.hasAll(last, n)
	r.hasAll("e3", 3)
	for i := range n {
		r.suspend(fmt.Sprint("e", i))
		if _, err := r.delete(fmt.Sprint("e", i), true); err != nil {
			t.Fatal(err)
		}
	}
	r.hasAll(last, n)
	r.suspend(last)
	if _, err := r.delete(last, true); err != nil {
		t.Fatal(err)
	}
	r.settle()
	if left := r.layers(); len(left) > 0 {
		t.Errorf("layers left: %q", left)
	}
}

// However far merging got when everything was killed, the next daemon has all
// that was written and removes what is rubbish.
func TestMergeKilled(t *testing.T) {
	needFuse(t)
	r := newRig(t, map[string]string{".gitignore": "ignored*\n"})
	const n = 10
	last := r.deepen(n)
	r.settle()
	var merged string
	for _, l := range r.layers() {
		if strings.HasPrefix(l, mergedPrefix) {
			merged = l
		}
	}
	if merged == "" {
		t.Fatal("nothing was merged")
	}
	// Half of one; and one that is complete and that nobody names yet.
	half := filepath.Join(r.e.layerDir(), mergedPrefix+"half")
	write(t, filepath.Join(half, "log"), "x")
	r.crash()
	r.open()
	if _, err := os.Lstat(half); !os.IsNotExist(err) {
		t.Errorf("half a layer is there: %v", err)
	}
	if !slices.Contains(r.layers(), merged) {
		t.Errorf("the merged layer is gone: %q", r.layers())
	}
	r.hasAll(last, n)
	st, err := r.e.store.Load(last)
	if err != nil {
		t.Fatal(err)
	}
	if len(st.Layers) > maxDepth+1 {
		t.Errorf("it has %d layers", len(st.Layers))
	}
	r.settle()
	// The merged one is named, and what it replaces is there still.
	r.crash()
	r.open()
	r.hasAll(last, n)
	for _, e := range []string{"e0", "e5", "e9"} {
		r.hasAll(e, int(e[1]-'0'))
	}
}

// A log that is much longer than what it says is replaced.
func TestMergeLongLog(t *testing.T) {
	needFuse(t)
	r := newRig(t, map[string]string{".gitignore": "ignored*\n"})
	v := r.env("e")
	write(t, filepath.Join(v.st.Workspace, "ignored0"), "0\n")
	long := strings.Repeat("x", 200)
	for i := 0; ; i++ {
		if st, err := os.Stat(filepath.Join(r.e.layerDir(), v.st.top(), "log")); err != nil || st.Size() > longLog {
			break
		}
		for j := range 200 {
			path := filepath.Join(v.st.Workspace, "ignored"+long)
			if err := os.Chmod(filepath.Join(v.st.Workspace, "ignored0"), os.FileMode(0o600+j%2)); err != nil {
				t.Fatal(err)
			}
			write(t, path, "")
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	old := v.st.top()
	r.suspend("e")
	r.hasAll("e", 1)
	r.settle()
	r.suspend("e")
	r.settle()
	r.hasAll("e", 1)
	if slices.Contains(r.layers(), old) {
		t.Errorf("the old layer is there: %q", v.st.Layers)
	}
	var size int64
	for _, l := range v.st.Layers {
		if st, err := os.Stat(filepath.Join(r.e.layerDir(), l, "log")); err == nil {
			size += st.Size()
		}
	}
	if size > 10000 {
		t.Errorf("logs of %d bytes", size)
	}
}
