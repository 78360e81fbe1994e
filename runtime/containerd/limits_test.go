package containerd

import (
	"errors"
	"path/filepath"
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

func TestLimitFiles(t *testing.T) {
	for name, test := range map[string]struct{ groups, memory, memoryEvents, pids, pidsEvents string }{
		"version 2": {"0::/git-env/a:b\n",
			"git-env/a:b/memory.max", "git-env/a:b/memory.events", "git-env/a:b/pids.max", "git-env/a:b/pids.events"},
		"version 1": {"4:memory,x:/git-env/a\n3:pids:/git-env/a\n1:name=systemd:/git-env/a\n",
			"memory/git-env/a/memory.limit_in_bytes", "memory/git-env/a/memory.oom_control", "pids/git-env/a/pids.max", "pids/git-env/a/pids.events"},
		"hybrid": {"4:memory:/a\n0::/u\n", "memory/a/memory.limit_in_bytes", "memory/a/memory.oom_control", "u/pids.max", "u/pids.events"},
	} {
		at := func(file string) string { return cgroupRoot + "/" + file }
		want := limitFiles{at(test.memory), at(test.memoryEvents), at(test.pids), at(test.pidsEvents)}
		if got := limitFilesIn(test.groups); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	for content, want := range map[string]int64{"max\n": 0, "9223372036854771712\n": 0, "512\n": 512, "": 0, "x": 0} {
		writeFile(t, file, content, 0o600)
		if got := limitIn(file); got != want {
			t.Errorf("%q: %d", content, got)
		}
	}
	writeFile(t, file, "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", 0o600)
	if got := countIn(file, "oom_kill"); got != 3 {
		t.Errorf("%d kills", got)
	}
	if got := countIn(filepath.Join(dir, "none"), "max") + limitIn(filepath.Join(dir, "none")); got != 0 {
		t.Errorf("%d from nothing", got)
	}
}
