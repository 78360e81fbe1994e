package containerd

import (
	"errors"
	"testing"

	"github.com/git-env/git-env/runtime"
)

// TestProcessLimit: a command that cannot be started for lack of processes says so,
// and neither the container nor what runs in it minds.
func TestProcessLimit(t *testing.T) {
	b := newPlace(t).open(t)
	hostContainer(t, b, "limit")
	stop(t, b, "limit")
	const limit = 30
	c, err := b.Start(testContext(t), runtime.Spec{ID: "limit", RootFS: "root-limit", Image: runtime.Image{Host: true, Ref: "host"},
		PidsLimit: limit, MemoryBytes: 256 << 20, Labels: map[string]string{"test": "yes"}})
	if err != nil {
		t.Fatal(err)
	}
	if l := c.Limits(); l != (runtime.Limits{Memory: 256 << 20, Processes: limit}) {
		t.Errorf("%+v", l)
	}
	var procs []runtime.Process
	for len(procs) < limit {
		p, err := c.Exec(testContext(t), runtime.ExecSpec{ID: nextExec(), Args: []string{"sleep", "1000"}}, runtime.IO{})
		if err != nil {
			if !errors.Is(err, runtime.ErrLimit) {
				t.Errorf("%v", err)
			}
			break
		}
		procs = append(procs, p)
	}
	if len(procs) == 0 || len(procs) == limit || c.Limits().Refused == 0 || !c.Running(testContext(t)) {
		t.Fatalf("%d processes, %+v", len(procs), c.Limits())
	}
	if err := procs[0].Close(); err != nil {
		t.Error(err)
	}
	if r := try(t, c, runtime.ExecSpec{Args: []string{"true"}}); r.err != nil || r.exit.Code != 0 {
		t.Errorf("%+v, %v", r, r.err)
	}
	for _, p := range procs {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestIsolation: a level that is not to be had is refused, never lowered.
func TestIsolation(t *testing.T) {
	for asked, want := range map[runtime.Isolation]runtime.Isolation{
		runtime.IsolationAuto: runtime.IsolationBasic, runtime.IsolationBasic: runtime.IsolationBasic,
		runtime.IsolationUser: "", "of tomorrow": "",
	} {
		got, err := isolationOf(asked)
		if got != want || (err == nil) != (want != "") || want == "" && !errors.Is(err, runtime.ErrMissing) {
			t.Errorf("%q: %q, %v", asked, got, err)
		}
	}
}
