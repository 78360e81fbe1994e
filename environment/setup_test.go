package environment

import (
	"context"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/notes"
	"github.com/git-env/git-env/runtime"
)

func TestRecipe(t *testing.T) {
	base := recipe{Version: 1, Repo: "r", Image: "i", Vars: []string{"A=1"}, Secrets: []string{"S"}, Steps: []string{"a", "b", "c"}}
	seen := map[string]string{}
	for what, r := range map[string]recipe{
		"itself":        base,
		"another repo":  {1, "q", "i", []string{"A=1"}, []string{"S"}, []string{"a", "b", "c"}},
		"another image": {1, "r", "j", []string{"A=1"}, []string{"S"}, []string{"a", "b", "c"}},
		"another value": {1, "r", "i", []string{"A=2"}, []string{"S"}, []string{"a", "b", "c"}},
		"no secret":     {1, "r", "i", []string{"A=1"}, nil, []string{"a", "b", "c"}},
		"another order": {1, "r", "i", []string{"A=1"}, []string{"S"}, []string{"b", "a", "c"}},
		"joined":        {1, "r", "i", []string{"A=1"}, []string{"S"}, []string{"a", "b\nc", "c"}},
	} {
		id := r.id(2)
		if other, ok := seen[id]; ok {
			t.Errorf("%s is the same as %s", what, other)
		}
		seen[id] = what
		if len(id) > 64 {
			t.Errorf("%s is longer than an id may be", id)
		}
	}
	// What comes after does not matter to what is before.
	if (recipe{1, "r", "i", []string{"A=1"}, []string{"S"}, []string{"a", "b", "d"}}).id(2) != base.id(2) {
		t.Error("a later step changes what the earlier ones make")
	}
	if base.id(3) == base.id(2) || len(base.Steps) != 3 {
		t.Error("the number of steps does not matter")
	}
}

func TestSetupState(t *testing.T) {
	r := newRig(t, nil)
	store := r.e.store
	if v, err := store.SetupOf("e"); v != nil || err != nil {
		t.Fatalf("without a file: %v, %v", v, err)
	}
	if s := newSetup(Settings{}, false); s != nil {
		t.Fatalf("nothing to do is %+v", s)
	}
	s := newSetup(Settings{Setup: []string{"a", "b"}, Install: []string{"c"}}, true)
	if err := durable.MkdirAll(store.EnvDir("e"), 0o700); err != nil {
		t.Fatal(err)
	}
	expect := func(want SetupView, text string) {
		t.Helper()
		if err := store.saveSetup("e", s); err != nil {
			t.Fatal(err)
		}
		got, err := store.SetupOf("e")
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(*got, want) || got.String() != text {
			t.Errorf("got %+v %q, want %+v %q", *got, got, want, text)
		}
	}
	expect(SetupView{State: SetupSkipped, Step: 1, Steps: 3, Stage: StageSetup, Command: "a"}, "3 of 3 steps not run")
	s.Skipped = false
	s.Steps[0].State = SetupCached
	fail := notes.Outcome{Signal: "KILL", Exit: 137}
	s.Steps[1] = SetupStep{StageSetup, "b", SetupFailed, "X", fail}
	expect(SetupView{SetupFailed, 2, 3, StageSetup, "b", "X", fail}, "step 2 of 3 'b', signal KILL")
	if s.rootReady() {
		t.Error("the root filesystem counts as complete")
	}
	s.Steps[1] = SetupStep{Stage: StageSetup, Command: "b", State: SetupDone}
	if !s.rootReady() {
		t.Error("the root filesystem does not count as complete")
	}
	// One that runs does so only as long as somebody watches over it.
	s.Steps[2].State = SetupRunning
	lock, err := durable.TryLock(store.setupLock("e"))
	if err != nil {
		t.Fatal(err)
	}
	running := SetupView{State: SetupRunning, Step: 3, Steps: 3, Stage: StageInstall, Command: "c"}
	expect(running, "step 3 of 3 'c'")
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	running.State = SetupInterrupted
	expect(running, "step 3 of 3 'c'")
	s.Steps[2].State = SetupDone
	expect(SetupView{State: SetupDone, Steps: 3}, "done")
}

// TestTrimPrepared keeps those that were used last.
func TestTrimPrepared(t *testing.T) {
	r := newRig(t, nil)
	r.e.setting.SetupCache = 2
	if err := durable.MkdirAll(r.e.store.preparedDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	for i, id := range []string{"setup-b", "setup-c", "setup-a"} {
		file := r.e.store.preparedFile(id)
		write(t, file, "{}")
		used := time.Unix(int64(1000+i), 0)
		if err := os.Chtimes(file, used, used); err != nil {
			t.Fatal(err)
		}
	}
	b := &removals{}
	if err := r.e.trimPrepared(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if want := []string{"setup-b"}; !reflect.DeepEqual(b.ids, want) {
		t.Errorf("removed %q, want %q", b.ids, want)
	}
	left, err := os.ReadDir(r.e.store.preparedDir())
	if err != nil || len(left) != 2 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// removals is a runtime that only forgets.
type removals struct {
	runtime.Backend
	ids []string
}

func (b *removals) RemoveRootFS(_ context.Context, id string) error {
	b.ids = append(b.ids, id)
	return nil
}
