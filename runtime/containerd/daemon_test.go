package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/runtime"
)

func TestDaemonIsSharedAndStopsWithTheLast(t *testing.T) {
	p := newPlace(t)
	first, second := p.open(t), p.open(t)
	pid, err := peerPid(first.socket)
	if err != nil {
		t.Fatal(err)
	}
	if other, _ := peerPid(second.socket); other != pid {
		t.Errorf("two daemons: %d, %d", pid, other)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if _, err := second.Info(testContext(t)); err != nil {
		t.Errorf("stopped under a user: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("it goes on: %v", err)
	}
	if exists(first.socket) {
		t.Error("the socket is still there")
	}
	if _, err := second.Info(testContext(t)); err == nil {
		t.Error("works after Close")
	}
}

// Two sessions may name different run directories for one data directory.
func TestDaemonIsJoinedElsewhere(t *testing.T) {
	p := newPlace(t)
	first := p.open(t)
	p.RunDir += "-other"
	second := p.open(t)
	if first.socket != second.socket {
		t.Errorf("%s, %s", first.socket, second.socket)
	}
	hostContainer(t, second, "j")
	stop(t, first, "j")
}

func TestDaemonStart(t *testing.T) {
	p := newPlace(t)
	p.open(t).Close()
	var times []time.Duration
	for range 7 {
		begin := time.Now()
		b, err := Open(testContext(t), p.Options)
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, time.Since(begin))
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(times)
	t.Logf("containerd up in %v (median of %v)", times[len(times)/2], times)
}

func killDaemon(t testing.TB, b *Backend) {
	t.Helper()
	pid, err := peerPid(b.socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func TestDaemonKilled(t *testing.T) {
	p := newPlace(t)
	p.NoInitExec = true // so that an exec is a request to containerd
	b := p.open(t)
	c := hostContainer(t, b, "k")
	out := &syncBuffer{}
	proc, err := c.Exec(testContext(t), runtime.ExecSpec{ID: nextExec(), Args: []string{"sh", "-c", "echo begin; sleep 1.5; echo end; exit 7"}}, runtime.IO{Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	out.await(t, "begin")
	killDaemon(t, b)
	// The next request starts it again, and finds the container.
	begin := time.Now()
	if got := sh(t, c, "echo still here"); got != "still here" {
		t.Errorf("%q", got)
	}
	t.Logf("exec across a killed containerd: %v", time.Since(begin))
	if exit, err := proc.Wait(); err != nil || exit.Code != 7 || out.String() != "begin\nend\n" {
		t.Errorf("%+v %v %q", exit, err, out.String())
	}
	killDaemon(t, b)
	if ids, err := b.List(testContext(t), "test", "yes"); err != nil || !slices.Equal(ids, []string{"k"}) {
		t.Errorf("%v %v", ids, err)
	}
	killDaemon(t, b)
	other := p.open(t)
	got, err := other.Get(testContext(t), "k")
	if err != nil || got.Pid() != c.Pid() {
		t.Fatalf("%v %v", got, err)
	}
	if out := sh(t, got, "echo $HOME"); out != "/root" {
		t.Errorf("%q", out)
	}
	again, err := b.Start(testContext(t), runtime.Spec{ID: "k", RootFS: "root-k"})
	if err != nil || again.Pid() != c.Pid() {
		t.Errorf("%v %v", again, err)
	}
	killDaemon(t, b)
	stop(t, other, "k")
	if _, err := other.Get(testContext(t), "k"); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func TestShimKilled(t *testing.T) {
	p := newPlace(t)
	b := p.open(t)
	c := hostContainer(t, b, "s")
	sh(t, c, "echo kept >/file")
	proc, err := c.Exec(testContext(t), runtime.ExecSpec{ID: nextExec(), Args: []string{"sleep", "1000"}}, runtime.IO{})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	killShim(t, b, "s")
	exit, err := proc.Wait()
	t.Logf("a killed shim shows after %v", time.Since(begin))
	if err != nil || exit.Signal != "KILL" {
		t.Errorf("%+v %v", exit, err)
	}
	select {
	case <-c.Done():
	case <-time.After(10 * time.Second):
		t.Error("the container outlives its shim")
	}
	c = startOn(t, b, "s", "root-s", runtime.Image{Host: true, Ref: "host"})
	if got := sh(t, c, "cat /file"); got != "kept" {
		t.Errorf("%q", got)
	}
}

// TestEverythingKilled is what a power cut does to processes, seen from inside.
func TestEverythingKilled(t *testing.T) {
	p := newPlace(t)
	b := p.open(t)
	img := runtime.Image{Host: true, Ref: "host"}
	c := hostContainer(t, b, "pc")
	sh(t, c, "echo kept >/file")
	killDaemon(t, b)
	killShim(t, b, "pc")
	if err := unix.Kill(c.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	c = startOn(t, b, "pc", "root-pc", img)
	if got := sh(t, c, "cat /file"); got != "kept" {
		t.Errorf("%q", got)
	}
	// After a reboot the run directory is empty, and no process is left.
	killDaemon(t, b)
	killShim(t, b, "pc")
	if err := unix.Kill(c.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	unmountBelow(t, p.RunDir)
	if err := os.RemoveAll(p.RunDir); err != nil {
		t.Fatal(err)
	}
	other := p.open(t)
	if _, err := other.Get(testContext(t), "pc"); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("%v", err)
	}
	c = startOn(t, other, "pc", "root-pc", img)
	if got := sh(t, c, "cat /file"); got != "kept" {
		t.Errorf("%q", got)
	}
}

func unmountBelow(t testing.TB, dir string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			if err := unix.Unmount(f[4], unix.MNT_DETACH); err != nil {
				t.Errorf("unmount %s: %v", f[4], err)
			}
		}
	}
}

func TestContainersOutliveTheBackend(t *testing.T) {
	p := newPlace(t)
	b := p.open(t)
	c := hostContainer(t, b, "o")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	other := p.open(t)
	again, err := other.Get(testContext(t), "o")
	if err != nil || again.Pid() != c.Pid() {
		t.Fatalf("%v %v", again, err)
	}
	sh(t, again, "true")
}

func TestSocketPathTooLong(t *testing.T) {
	p := newPlace(t)
	p.RunDir = filepath.Join(p.RunDir, strings.Repeat("x", 100))
	if _, err := Open(testContext(t), p.Options); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("%v", err)
	}
}

func killShim(t testing.TB, b *Backend, id string) {
	t.Helper()
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		data, err := os.ReadFile(p)
		if err != nil || !bytes.Contains(data, []byte("containerd-shim")) || !bytes.Contains(data, []byte(b.socket)) || !bytes.Contains(data, []byte("\x00"+id+"\x00")) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(p, "/proc/%d/cmdline", &pid); err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("no shim found")
}

func TestContainerEnds(t *testing.T) {
	p := newPlace(t)
	b := p.open(t)
	c := hostContainer(t, b, "e")
	if !c.Running(testContext(t)) {
		t.Error("not running")
	}
	// Init leaves politely, as soon as it listens: the first one may be too early.
	ended := false
	for deadline := time.Now().Add(20 * time.Second); !ended && time.Now().Before(deadline); {
		if err := unix.Kill(c.Pid(), unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case <-c.Done():
			ended = true
		case <-time.After(50 * time.Millisecond):
		}
	}
	if !ended {
		t.Fatal("init ignores TERM")
	}
	if c.Running(testContext(t)) {
		t.Error("still running")
	}
	if _, err := c.Exec(testContext(t), runtime.ExecSpec{ID: "late", Args: []string{"true"}}, runtime.IO{}); err == nil {
		t.Error("exec in a dead container")
	}
	if _, err := b.Get(testContext(t), "e"); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("%v", err)
	}
	c = startOn(t, b, "e", "root-e", runtime.Image{Host: true, Ref: "host"}) // over the dead one
	sh(t, c, "true")
	if _, err := b.Start(testContext(t), runtime.Spec{ID: "other", RootFS: "root-e"}); err == nil {
		t.Error("two containers on one root filesystem")
	}
	if err := b.Remove(testContext(t), "never-was"); err != nil {
		t.Error(err)
	}
	if _, err := b.Start(testContext(t), runtime.Spec{ID: "x", RootFS: "nothing"}); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func TestManyAtOnce(t *testing.T) {
	p := newPlace(t)
	b := p.open(t)
	img := runtime.Image{Host: true, Ref: "host"}
	create(t, b, "many", img)
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			id := fmt.Sprintf("many%d", i)
			fork(t, b, "many", id)
			c := startOn(t, b, id, id, img)
			r := try(t, c, runtime.ExecSpec{ID: "hello", Args: []string{"sh", "-c", "echo $$ >/id; hostname"}})
			if r.err != nil || r.stdout != "box\n" {
				t.Errorf("%+v", r)
			}
			stop(t, b, id)
			removeAll(t, b, id)
		})
	}
	wg.Wait()
	removeAll(t, b, "many")
	assertNoLayers(t, b)
}

func TestExistingSocket(t *testing.T) {
	p := newPlace(t)
	private := p.open(t)
	other := newPlace(t)
	other.Socket = private.socket
	b := other.open(t)
	info, err := b.Info(testContext(t))
	if err != nil || info.Private || !strings.HasPrefix(info.Version, "1.") && !strings.HasPrefix(info.Version, "2.") && info.Version[0] != 'v' {
		t.Errorf("%+v %v", info, err)
	}
	c := hostContainer(t, b, "x")
	sh(t, c, "true")
	stop(t, b, "x")
	other.Socket = "/no/such.sock"
	var missing *runtime.MissingError
	if _, err := Open(context.Background(), other.Options); !errors.As(err, &missing) || missing.What != "containerd" {
		t.Errorf("%v", err)
	}
}

func TestMissingBinaries(t *testing.T) {
	need(t)
	for _, f := range Check(testContext(t), "") {
		if !f.OK || f.Detail == "" {
			t.Errorf("%+v", f)
		}
	}
	f := checkBinary(testContext(t), "no-such-binary", "containerd")
	if f.OK || !strings.Contains(f.Hint, "apt install containerd") || !strings.Contains(f.Hint, "pacman -S containerd") {
		t.Errorf("%+v", f)
	}
	if f := checkSocket("/no/such.sock"); f.OK {
		t.Errorf("%+v", f)
	}
}

func TestLimits(t *testing.T) {
	p := newPlace(t)
	b := p.open(t)
	ctx := testContext(t)
	img, err := b.Resolve(ctx, "host", nil)
	if err != nil {
		t.Fatal(err)
	}
	create(t, b, "lim", img)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "f"), "mounted\n", 0o644)
	c, err := b.Start(ctx, runtime.Spec{ID: "lim", RootFS: "lim", Image: img, PidsLimit: 40, MemoryBytes: 64 << 20, CPUs: 0.5,
		Hostname: "lim", Env: []string{"V=w"}, Cwd: "/opt", Labels: map[string]string{"test": "yes", "io.git-env.repo": "r"},
		Mounts: []runtime.Mount{{Source: dir, Target: "/workspace"}, {Source: dir, Target: "/mnt/ro", ReadOnly: true}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(t, c, "pwd; echo $V; hostname; cat /workspace/f; echo x >/workspace/g; echo y 2>/dev/null >/mnt/ro/h || echo ro; ls /workspace"); got != "/opt\nw\nlim\nmounted\nro\nf\ng" {
		t.Errorf("%q", got)
	}
	if got := sh(t, c, "(for i in $(seq 60); do sleep 3 & done) 2>&1 | grep -ci 'fork\\|resource' | sed 's/^[1-9].*/limited/'"); got != "limited" {
		t.Errorf("pids: %q", got)
	}
	r := try(t, c, runtime.ExecSpec{Args: []string{"sh", "-c", "head -c 200000000 /dev/zero | tail -c 190000000 | wc -c"}})
	if strings.TrimSpace(r.stdout) == "190000000" {
		t.Error("memory is not limited")
	}
	ids, err := b.List(ctx, "io.git-env.repo", "r")
	if err != nil || !slices.Equal(ids, []string{"lim"}) {
		t.Errorf("%v %v", ids, err)
	}
	if ids, err := b.List(ctx, "io.git-env.repo", "other"); err != nil || len(ids) != 0 {
		t.Errorf("%v %v", ids, err)
	}
}
