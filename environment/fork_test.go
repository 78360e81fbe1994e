package environment

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/git-env/git-env/environment/api"
)

// silent reports to nobody.
type silent struct{}

func (silent) Progress(string, int64, int64) {}
func (silent) Warn(string)                   {}

func (r *rig) fork(from, to string) *api.Created {
	r.t.Helper()
	made, err := r.e.Fork(r.t.Context(), api.Fork{Env: from, Name: to}, silent{})
	if err != nil {
		r.t.Fatal(err)
	}
	return made
}

// A fork of what has not changed since the last fork shares its layers: no
// stack gets deeper by forks alone.
func TestForkOfUnchanged(t *testing.T) {
	needFuse(t)
	r := newRig(t, map[string]string{"f": "x", ".gitignore": "ignored\n"})
	v := r.env("e0")
	write(t, filepath.Join(v.st.Workspace, "ignored"), "kept\n")
	if made := r.fork("e0", "e1"); made.Pause <= 0 {
		t.Errorf("pause %v", made.Pause)
	}
	for i := 1; i < 5; i++ {
		if made := r.fork(fmt.Sprint("e", i), fmt.Sprint("e", i+1)); made.Pause != 0 {
			t.Errorf("fork %d: pause %v", i, made.Pause)
		}
	}
	st, err := r.e.store.Load("e5")
	if err != nil {
		t.Fatal(err)
	}
	if len(st.Layers) != 2 {
		t.Errorf("layers %q", st.Layers)
	}
	if data, err := os.ReadFile(filepath.Join(r.up("e5").st.Workspace, "ignored")); string(data) != "kept\n" {
		t.Errorf("in the last one: %q, %v", data, err)
	}
	write(t, filepath.Join(r.up("e3").st.Workspace, "ignored"), "changed\n")
	if data, err := os.ReadFile(filepath.Join(r.up("e5").st.Workspace, "ignored")); string(data) != "kept\n" {
		t.Errorf("after a change of an ancestor: %q, %v", data, err)
	}
}
