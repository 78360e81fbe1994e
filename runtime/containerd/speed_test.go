package containerd

import (
	"slices"
	"testing"
	"time"

	"github.com/git-env/git-env/runtime"
)

// TestExecSpeed compares a warm exec with what containerd's own client needs for
// the same, side by side.
func TestExecSpeed(t *testing.T) {
	p := newPlace(t)
	b := p.open(t)
	c := hostContainer(t, b, "speed")
	ctr := containerdBinary(t, "ctr")
	var ours, theirs []time.Duration
	for range 15 {
		begin := time.Now()
		if r := try(t, c, runtime.ExecSpec{Args: []string{"true"}}); r.err != nil || r.exit.Code != 0 {
			t.Fatalf("%+v", r)
		}
		ours = append(ours, time.Since(begin))
		begin = time.Now()
		run(t, ctr, "-n", namespace, "-a", b.socket, "task", "exec", "--exec-id", nextExec(), "speed", "true")
		theirs = append(theirs, time.Since(begin))
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	our, their := ours[len(ours)/2], theirs[len(theirs)/2]
	t.Logf("median exec: %v; ctr: %v", our, their)
	if our > their {
		t.Errorf("exec takes %v, ctr %v", our, their)
	}
}

func TestScanSpeed(t *testing.T) {
	for _, tree := range hostTrees() {
		begin := time.Now()
		hidden, err := scanHidden(tree)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %v, %d hidden", tree, time.Since(begin), len(hidden))
	}
	begin := time.Now()
	etc, err := scanEtc("/etc")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("/etc: %v, %d entries", time.Since(begin), len(etc))
}
