package fusefs

import (
	"context"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The test binary is also the file server, and a daemon to kill.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "fusefs" {
		os.Exit(ServerMain(context.Background(), os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "watchdog" {
		os.Exit(WatchdogMain(context.Background(), os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "daemon" {
		os.Exit(fakeDaemon(os.Args[2:]))
	}
	if len(os.Args) > 2 && os.Args[1] == "pkt-filter" {
		os.Exit(pktFilter(os.Args[2]))
	}
	if len(os.Args) > 1 && os.Args[1] == "lock" {
		os.Exit(lockHelper(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// needFuse skips a test where nothing can be mounted, unless that is required.
func needFuse(t testing.TB) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		f.Close()
	}
	if err == nil && os.Geteuid() == 0 {
		return
	}
	if os.Getenv("GITENV_TEST_REQUIRE") == "1" {
		t.Fatalf("root and /dev/fuse are required: %v", err)
	}
	t.Skip("needs root and /dev/fuse")
}

// overUring is whether mounts under test use io_uring where there is one.
func overUring() bool { return os.Getenv("GITENV_TEST_URING") != "0" }

// rig is a repository with a file server.
type rig struct {
	t    testing.TB
	dir  string
	repo string
	c    *Client
	spec MountSpec
	// blobCache bounds the cache; to be set before start.
	blobCache int64
	nodeLimit int

	watchdog time.Duration // 0 for none
}

func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// newRig makes a repository of the files (a target after "->" makes a
// symbolic link, a leading "#!" an executable), starts a server and mounts.
func newRig(t testing.TB, files map[string]string) *rig {
	t.Helper()
	needFuse(t)
	r := &rig{t: t, dir: t.TempDir()}
	r.repo = filepath.Join(r.dir, "repo")
	git(t, r.dir, "init", "-q", r.repo)
	writeFiles(t, r.repo, files)
	git(t, r.repo, "add", "-A")
	git(t, r.repo, "commit", "-q", "--allow-empty", "-m", "base")
	r.spec = MountSpec{
		ID: "m", Dir: filepath.Join(r.dir, "mnt"), Tree: git(t, r.repo, "rev-parse", "HEAD^{tree}"),
		Time: time.Unix(1700000000, 0), Layers: []string{"l1"}, DotGit: "gitdir: /nowhere\n",
	}
	r.start()
	r.mount()
	t.Cleanup(func() {
		if err := r.c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if m, err := findMount(r.spec.Dir); m != nil || err != nil {
			t.Errorf("mount left behind: %v %v", m, err)
		}
	})
	return r
}

func writeFiles(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "->"); ok {
			err = os.Symlink(target, path)
		} else {
			mode := os.FileMode(0o644)
			if strings.HasPrefix(content, "#!") {
				mode = 0o755
			}
			err = os.WriteFile(path, []byte(content), mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (r *rig) start() {
	r.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	r.c, err = StartServer(context.Background(), ServerOptions{
		Exe: exe, GitDir: filepath.Join(r.repo, ".git"),
		BlobDir: filepath.Join(r.dir, "blobs"), LayerDir: filepath.Join(r.dir, "layers"), Log: serverLog(r.t),
		Uring: overUring(), BlobCache: r.blobCache, NodeLimit: r.nodeLimit,
		Watchdog: r.watchdog, Notices: filepath.Join(r.dir, "notices"),
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) mount() {
	r.t.Helper()
	if err := r.c.Mount(context.Background(), r.spec); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) unmount() {
	r.t.Helper()
	if err := r.c.Unmount(context.Background(), r.spec.ID); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) path(name string) string { return filepath.Join(r.spec.Dir, name) }

// serverLog is where a file server under test reports. It must be a file: the
// server outlives a test run that is cut off.
func testLog(t testing.TB) *log.Logger { return log.New(t.Output(), "", 0) }

func serverLog(t testing.TB) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "fusefs.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			if data, err := os.ReadFile(f.Name()); err == nil && len(data) > 0 {
				t.Logf("file server: %s", data)
			}
		}
		f.Close()
	})
	return f
}
