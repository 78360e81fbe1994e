package containerd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/git-env/git-env/runtime"
	"github.com/git-env/git-env/runtime/initproc"
)

// TestMain lets the test binary be the first process of containers.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "init" {
		os.Exit(initproc.Main(os.Args[2:]))
	}
	if len(os.Args) == 2 && os.Args[1] == "reach" {
		os.Exit(reachInit())
	}
	var err error
	if shared, err = os.MkdirTemp("", testPrefix()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := os.RemoveAll(shared); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code == 0 {
		if left := leftovers(); len(left) > 0 {
			fmt.Fprintf(os.Stderr, "left behind:\n%s\n", strings.Join(left, "\n"))
			code = 1
		}
	}
	os.Exit(code)
}

// shared has the data directories of all places, and so what the host images of
// all tests share: scanning the host takes a while. TestMain sets and removes it.
var shared string

// testPrefix begins the name of every temporary directory of this run.
func testPrefix() string { return fmt.Sprintf("gecd%d", os.Getpid()) }

// leftovers looks for what tests must not leave behind.
func leftovers() []string {
	var left []string
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "/"+testPrefix()) {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		if data, err := os.ReadFile(p); err == nil && bytes.Contains(data, []byte("/"+testPrefix())) {
			left = append(left, p+" "+strings.ReplaceAll(string(data), "\x00", " "))
		}
	}
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), testPrefix()+"*"))
	return append(left, dirs...)
}

// need skips where the host cannot run these tests, and fails where it has to.
func need(t testing.TB) {
	t.Helper()
	err := requirements()
	if err == nil {
		return
	}
	if os.Getenv("GITENV_TEST_REQUIRE") == "1" {
		t.Fatalf("required: %v", err)
	}
	t.Skip(err)
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// place is a temporary set of directories with a containerd of its own.
type place struct{ Options }

func newPlace(t testing.TB) place {
	t.Helper()
	need(t)
	dir, err := os.MkdirTemp("", testPrefix()+initials(t.Name()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, d := range []string{dir, filepath.Join(shared, filepath.Base(dir))} {
			if err := os.RemoveAll(d); err != nil {
				t.Errorf("clean up: %v", err)
			}
		}
	})
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return place{Options{
		DataDir: filepath.Join(shared, filepath.Base(dir)), RunDir: filepath.Join(dir, "run"),
		StateDir: filepath.Join(dir, "state"), Exe: exe, Log: testLog{t}, RegistryTimeout: 2 * time.Second,
	}}
}

// initials makes a short name of a test's: paths of sockets are limited.
func initials(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r
		}
		return -1
	}, name)
}

type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("log: %s", bytes.TrimSpace(p))
	return len(p), nil
}

// open opens a Backend that is closed at the end, its containers removed.
func (p place) open(t testing.TB) *Backend {
	t.Helper()
	b, err := Open(testContext(t), p.Options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		ids, err := b.List(ctx, "test", "yes")
		if err != nil && !strings.Contains(err.Error(), "closed") {
			t.Errorf("list: %v", err)
		}
		for _, id := range ids {
			if err := b.Remove(ctx, id); err != nil {
				t.Errorf("remove %s: %v", id, err)
			}
		}
		roots, _ := os.ReadDir(b.roots.dir)
		for _, root := range roots {
			if err := checkID(root.Name()); err == nil {
				if err := b.RemoveRootFS(ctx, root.Name()); err != nil && !strings.Contains(err.Error(), "closed") {
					t.Errorf("remove root filesystem %s: %v", root.Name(), err)
				}
			}
		}
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

// hostContainer starts a container of the host image.
func hostContainer(t testing.TB, b *Backend, id string) runtime.Container {
	t.Helper()
	ctx := testContext(t)
	img, err := b.Resolve(ctx, "host", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.CreateRootFS(ctx, "root-"+id, img); err != nil {
		t.Fatal(err)
	}
	return startOn(t, b, id, "root-"+id, img)
}

func startOn(t testing.TB, b *Backend, id, root string, img runtime.Image) runtime.Container {
	t.Helper()
	c, err := b.Start(testContext(t), runtime.Spec{ID: id, RootFS: root, Image: img, Hostname: "box",
		Labels: map[string]string{"test": "yes"}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

type result struct {
	stdout, stderr string
	exit           runtime.Exit
	err            error
}

var execCounter int

func nextExec() string {
	execCounter++
	return fmt.Sprintf("x%d", execCounter)
}

// try runs a command; result.err is Exec's error.
func try(t testing.TB, c runtime.Container, spec runtime.ExecSpec) result {
	t.Helper()
	if spec.ID == "" {
		spec.ID = nextExec()
	}
	var out, errOut bytes.Buffer
	p, err := c.Exec(testContext(t), spec, runtime.IO{Stdout: &out, Stderr: &errOut})
	if err != nil {
		return result{err: err}
	}
	exit, err := p.Wait()
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	return result{stdout: out.String(), stderr: errOut.String(), exit: exit}
}

// sh runs a shell line that must succeed, and returns what it prints.
func sh(t testing.TB, c runtime.Container, line string) string {
	t.Helper()
	r := try(t, c, runtime.ExecSpec{Args: []string{"sh", "-c", line}})
	if r.err != nil || r.exit.Code != 0 {
		t.Fatalf("%s: %v, exit %+v, stdout %q, stderr %q", line, r.err, r.exit, r.stdout, r.stderr)
	}
	return strings.TrimSpace(r.stdout)
}

func containerdBinary(t testing.TB, name string) string {
	t.Helper()
	path, ok := lookPath(name)
	if !ok {
		t.Fatalf("%s not found", name)
	}
	return path
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}
