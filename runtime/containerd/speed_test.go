package containerd

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/git-env/git-env/runtime"
)

// TestExecSpeed says how long a warm exec takes beside what containerd's own client
// needs for the same, for people to look at.
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
	t.Logf("exec: median %v, best %v; ctr: median %v, best %v", ours[len(ours)/2], ours[0], theirs[len(theirs)/2], theirs[0])
}

// TestStartSpeed says how long a container takes, for people to look at.
func TestStartSpeed(t *testing.T) {
	p := newPlace(t)
	b := p.open(t)
	img := runtime.Image{Host: true, Ref: "host"}
	hostContainer(t, b, "start")
	var creates, starts, removes, forks []time.Duration
	measure := func(list *[]time.Duration, do func()) {
		begin := time.Now()
		do()
		*list = append(*list, time.Since(begin))
	}
	for i := range 7 {
		root := fmt.Sprintf("start%d", i)
		measure(&creates, func() { create(t, b, root, img) })
		stop(t, b, "start")
		measure(&starts, func() { startOn(t, b, "start", root, img) })
		measure(&removes, func() { stop(t, b, "start") })
		measure(&forks, func() { fork(t, b, root, root+"fork") })
		startOn(t, b, "start", root, img)
	}
	for name, list := range map[string][]time.Duration{"create": creates, "start": starts, "remove": removes, "fork": forks} {
		slices.Sort(list)
		t.Logf("%s: median %v, best %v", name, list[len(list)/2], list[0])
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
