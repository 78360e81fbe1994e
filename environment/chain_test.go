package environment

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

// TestForkChain makes forks of forks, each with a change of its own: the last one
// is as shallow as the first ones and has everything. GITENV_TEST_FORKS says how
// many; with -v it prints how long they took.
func TestForkChain(t *testing.T) {
	needFuse(t)
	n, err := strconv.Atoi(os.Getenv("GITENV_TEST_FORKS"))
	if err != nil {
		n = 40
	}
	r := newRig(t, map[string]string{".gitignore": "ignored*\n"})
	v := r.env("e0")
	for i := range 200 {
		write(t, filepath.Join(v.st.Workspace, fmt.Sprintf("ignored/%d", i)), "x")
	}
	var forks, mounts []time.Duration
	for i := range n {
		write(t, filepath.Join(v.st.Workspace, fmt.Sprintf("ignored%d", i)), fmt.Sprintln(i))
		begin := time.Now()
		r.fork(fmt.Sprint("e", i), fmt.Sprint("e", i+1))
		forks = append(forks, time.Since(begin))
		if len(v.st.Layers) > 3*maxDepth {
			t.Fatalf("fork %d has %d layers", i, len(v.st.Layers))
		}
		if i > 0 {
			r.suspend(fmt.Sprint("e", i-1))
		}
		begin = time.Now()
		v = r.up(fmt.Sprint("e", i+1))
		mounts = append(mounts, time.Since(begin))
	}
	r.settle()
	r.suspend(v.name)
	r.settle()
	begin := time.Now()
	r.hasAll(v.name, n)
	t.Logf("mount of the last one and reading %d files: %v, %d layers", n, time.Since(begin), len(v.st.Layers))
	if len(v.st.Layers) > maxDepth+2 {
		t.Errorf("the last one has %d layers", len(v.st.Layers))
	}
	part := min(50, n/2)
	t.Logf("forks, median: the first %v, the last %v", median(forks[:part]), median(forks[n-part:]))
	t.Logf("mounts, median: the first %v, the last %v", median(mounts[:part]), median(mounts[n-part:]))
	t.Logf("%d layers on disk", len(r.layers()))
}

func median(d []time.Duration) time.Duration {
	d = slices.Clone(d)
	slices.Sort(d)
	return d[len(d)/2]
}
