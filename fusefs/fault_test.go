package fusefs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// layersOn puts the layers of a rig, unmounted, into a directory.
func (r *rig) layersOn(dir string) {
	r.t.Helper()
	r.unmount()
	layers := filepath.Join(r.dir, "layers")
	must(r.t, os.RemoveAll(layers))
	must(r.t, os.MkdirAll(filepath.Join(dir, "layers"), 0o700))
	must(r.t, os.Symlink(filepath.Join(dir, "layers"), layers))
	r.mount()
}

// A record that the log takes only a part of fails its operation, and nothing
// of it is left; afterwards all is well.
func TestLogTakesHalfARecord(t *testing.T) {
	r := newRig(t, map[string]string{"f": "x", "d/g": "y"})
	must(t, os.WriteFile(r.path("data"), []byte("d"), 0o644))
	for room := range 30 {
		st, err := os.Stat(r.layerFile("l1", "log"))
		must(t, err)
		before := snapshot(t, r.spec.Dir)
		limit := unix.Rlimit{Cur: uint64(st.Size()) + uint64(room), Max: unix.RLIM_INFINITY}
		must(t, unix.Prlimit(r.c.Pid(), unix.RLIMIT_FSIZE, &limit, nil))
		for i := range 3 {
			if err := os.Mkdir(r.path(fmt.Sprintf("dir-%d-%d-with-a-long-name", room, i)), 0o755); !errors.Is(err, unix.EFBIG) {
				t.Fatalf("mkdir with %d bytes left: %v", room, err)
			}
		}
		if err := os.Rename(r.path("f"), r.path("a-name-that-is-far-too-long")); !errors.Is(err, unix.EFBIG) {
			t.Fatalf("rename with %d bytes left: %v", room, err)
		}
		after := snapshot(t, r.spec.Dir)
		before["."], after["."] = seen{}, seen{}
		same(t, "after failing", after, before, seen.plain)
		limit.Cur = unix.RLIM_INFINITY
		must(t, unix.Prlimit(r.c.Pid(), unix.RLIMIT_FSIZE, &limit, nil))
		must(t, os.Mkdir(r.path(fmt.Sprintf("dir-%d-with-a-long-name", room)), 0o755))
	}
	before := snapshot(t, r.spec.Dir)
	r.unmount()
	r.mount()
	same(t, "remount", snapshot(t, r.spec.Dir), before, exact)
	if told := r.c.Repairs(r.spec.ID); len(told) != 0 {
		t.Errorf("told %v", told)
	}
}

// When the disk under the layers fails, operations fail with its error and the
// file server goes on; when it is back so is everything.
func TestDiskFails(t *testing.T) {
	needFuse(t)
	if _, err := os.Stat("/dev/loop-control"); err != nil && os.Getenv("GITENV_TEST_REQUIRE") != "1" {
		t.Skip("needs loop devices")
	}
	disk := t.TempDir()
	image := filepath.Join(disk, "image")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 64<<20))
	at := filepath.Join(disk, "at")
	must(t, os.Mkdir(at, 0o755))
	tool(t, "mkfs.ext4", "-q", image)
	mount := func() { tool(t, "mount", "-o", "loop", image, at) }
	mount()
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r := newRig(t, map[string]string{"f": "x", "d/g": "y"})
	t.Cleanup(func() { _ = r.c.Close() }) // before the disk goes
	r.layersOn(at)
	must(t, os.WriteFile(r.path("kept"), []byte("kept"), 0o644))
	must(t, os.Rename(r.path("d"), r.path("e")))
	must(t, os.WriteFile(r.path("f"), []byte("changed"), 0o644))
	before := snapshot(t, r.spec.Dir)
	shutdown(t, at)

	if err := os.Mkdir(r.path("new"), 0o755); err == nil {
		t.Error("a directory is made on a disk that fails")
	}
	if err := os.WriteFile(r.path("f"), []byte("lost"), 0o644); err == nil {
		t.Error("a file is written on a disk that fails")
	}
	if err := r.c.Sync(t.Context(), r.spec.ID); err == nil {
		t.Error("a sync works on a disk that fails")
	}
	if _, err := os.ReadDir(r.path("e")); err != nil {
		t.Errorf("what is in memory: %v", err)
	}
	if _, err := r.c.Dirty(t.Context(), r.spec.ID, []string{"e"}); err != nil {
		t.Errorf("the file server: %v", err)
	}
	r.unmount()
	if err := r.c.Mount(t.Context(), r.spec); err == nil {
		t.Fatal("a workspace is mounted from a disk that fails")
	}
	must(t, unix.Unmount(at, 0))
	mount()
	r.mount()
	same(t, "the disk is back", snapshot(t, r.spec.Dir), before, exact)
	must(t, os.Mkdir(r.path("new"), 0o755))
	r.unmount()
}

func tool(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// shutdown makes every later access to a file system fail, after writing back
// what is cached, as an ext4 does of itself when its disk fails.
func shutdown(t *testing.T, dir string) {
	t.Helper()
	const extShutdown, flush = 0x8004587d, 0
	f, err := os.Open(dir)
	must(t, err)
	defer f.Close()
	must(t, unix.IoctlSetPointerInt(int(f.Fd()), extShutdown, flush))
}
