package fusefs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// killsWanted is how many kills TestKills does; GITENV_TEST_KILLS says otherwise.
const killsWanted = 60

const (
	killWorkers = 3
	killBatch   = 40 // kills with one stack of layers
)

// TestKills kills the file server, the daemon or both at random moments while
// workers change their part of a workspace and it is frozen now and then. What
// a worker has done it does in a plain directory too. After each kill the
// workspace has all of that; what was under way is done or not, a write of
// several pages perhaps to a part; and nothing else is different. Nobody hangs
// and no mount is left.
func TestKills(t *testing.T) {
	wanted := killsWanted
	if n, err := strconv.Atoi(os.Getenv("GITENV_TEST_KILLS")); err == nil {
		wanted = n
	}
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("GITENV_TEST_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("%d kills, seed %d", wanted, seed)
	files := map[string]string{}
	for w := range killWorkers {
		for _, name := range []string{"a", "d/a", "d/e/b", "e/f", "d/e/f/a"} {
			files[fmt.Sprintf("w%d/%s", w, name)] = name + " of the tree"
		}
	}
	r := newRig(t, files)
	r.unmount()
	must(t, r.c.Close())
	k := &killer{t: t, r: r, rand: rand.New(rand.NewPCG(seed, 0))}
	began := time.Now()
	for k.kills < wanted && !t.Failed() {
		k.batch(min(killBatch, wanted-k.kills))
		if k.kills%1000 == 0 {
			t.Logf("%d kills, %d operations, %d done and %d under way when killed, %d freezes; %v",
				k.kills, k.ops, k.done, k.undone, k.freezes, time.Since(began).Round(time.Second))
		}
	}
	t.Logf("%d kills of a file server, %d of a daemon, %d of both; %d operations; of those under way %d were done, %d not, %d in part; %d freezes, %d marks; %v",
		k.kinds[killServer], k.kinds[killDaemon], k.kinds[killBoth], k.ops, k.done, k.undone, k.partial, k.freezes, k.marks, time.Since(began).Round(time.Second))
	r.start()
	r.mount()
}

const (
	killServer = iota
	killDaemon
	killBoth
)

type killer struct {
	t     *testing.T
	r     *rig
	rand  *rand.Rand
	plain string

	kills, ops, done, undone, partial, freezes, marks int
	kinds                                             [3]int
}

// batch begins with an empty stack of layers and kills n times.
func (k *killer) batch(n int) {
	t := k.t
	k.plain = filepath.Join(k.r.dir, "plain")
	must(t, os.RemoveAll(k.plain))
	git(t, k.r.dir, "clone", "-q", k.r.repo, k.plain)
	must(t, os.RemoveAll(filepath.Join(k.plain, ".git")))
	must(t, os.RemoveAll(filepath.Join(k.r.dir, "layers")))
	k.r.spec.Layers = []string{fmt.Sprintf("b%d", k.kills)}
	workers := make([]*killWorker, killWorkers)
	for i := range workers {
		workers[i] = &killWorker{name: fmt.Sprintf("w%d", i), rand: rand.New(rand.NewPCG(k.rand.Uint64(), 1)), roots: [2]string{k.r.spec.Dir, k.plain}}
	}
	for range n {
		if k.rand.IntN(4) > 0 {
			k.killServer(workers)
		} else {
			k.killDaemon(workers)
		}
		if t.Failed() {
			return
		}
	}
	// What the last one left.
	k.r.start()
	k.r.mount()
	k.check(workers)
	must(t, k.r.c.Close())
	if _, err := os.Stat(filepath.Join(k.r.dir, "lost")); err == nil {
		t.Error("something was salvaged, although no log was damaged")
	}
}

// killServer runs workers on a file server of ours and kills that.
func (k *killer) killServer(workers []*killWorker) {
	t := k.t
	k.r.start()
	k.r.mount()
	k.check(workers)
	pid := k.r.c.Pid()
	go k.disturb(k.rand.IntN(6))
	k.work(workers, func() {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	})
	freed(t, "the client", k.r.c.Done())
	k.killed(killServer)
}

// disturb freezes or marks the workspace while it is in use.
func (k *killer) disturb(what int) {
	ctx, c, id := context.Background(), k.r.c, k.r.spec.ID
	switch what {
	case 0, 1:
		k.freezes++
		top := fmt.Sprintf("b%d-%d", k.kills, len(k.r.spec.Layers))
		k.r.spec.Layers = append(k.r.spec.Layers, top)
		_, _ = c.Freeze(ctx, id, top)
	case 2:
		k.marks++
		if d, err := c.Dirty(ctx, id, []string{""}); err == nil {
			_ = c.Mark(ctx, id, d.Seq, "c")
		}
	}
}

// killDaemon runs workers on a file server of a daemon and kills that, or both.
func (k *killer) killDaemon(workers []*killWorker) {
	t := k.t
	exe, err := os.Executable()
	must(t, err)
	spec, err := json.Marshal(k.r.spec)
	must(t, err)
	daemon := exec.Command(exe, "daemon", k.r.dir, string(spec))
	daemon.Stderr = os.Stderr
	out, err := daemon.StdoutPipe()
	must(t, err)
	must(t, daemon.Start())
	var server, watchdog int
	if _, err := fmt.Fscan(out, &server, &watchdog); err != nil {
		t.Fatal(err)
	}
	k.check(workers)
	kind := killDaemon + k.rand.IntN(2)
	k.work(workers, func() {
		if kind == killBoth {
			must(t, syscall.Kill(server, syscall.SIGKILL))
		}
		must(t, daemon.Process.Kill())
	})
	_ = daemon.Wait()
	for deadline := time.Now().Add(30 * time.Second); running(server) || running(watchdog); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("running: file server %v, watchdog %v", running(server), running(watchdog))
		}
	}
	k.killed(kind)
}

func (k *killer) killed(kind int) {
	k.kills++
	k.kinds[kind]++
	if m, err := findMount(k.r.spec.Dir); m != nil || err != nil {
		k.t.Fatalf("kill %d: a mount is left: %v %v", k.kills, m, err)
	}
}

// work lets the workers work, calls kill at some moment and waits for them.
func (k *killer) work(workers []*killWorker, kill func()) {
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Go(func() { w.run() })
	}
	time.Sleep(time.Duration(k.rand.IntN(6000)) * time.Microsecond) // any moment will do
	kill()
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	freed(k.t, "a worker", ended)
	for _, w := range workers {
		k.ops += w.ops
		w.ops = 0
		if w.wrong != "" {
			k.t.Fatalf("kill %d: %s: %s", k.kills, w.name, w.wrong)
		}
	}
}

// check compares what there is with what the workers did.
func (k *killer) check(workers []*killWorker) {
	for _, w := range workers {
		switch w.check(k.t) {
		case isDone:
			k.done++
		case isUndone:
			k.undone++
		case isPartial:
			k.partial++
		}
		if k.t.Failed() {
			k.t.Fatalf("after kill %d, of %v; under way was: %s", k.kills, k.r.spec.Layers, w.what)
		}
		w.pending = nil
	}
}

// killWorker changes the directory of its name in a workspace and, when that is
// done, in a plain directory.
type killWorker struct {
	name  string
	rand  *rand.Rand
	roots [2]string // workspace, plain
	ops   int
	wrong string

	// What was under way when the file server died, nil for nothing; what it
	// writes to, if it does.
	pending func(root string) error
	what    string
	writes  string
}

// dead reports whether err is that of a mount that nobody serves any more.
func dead(err error) bool {
	for _, e := range []error{unix.ENOTCONN, unix.ECONNABORTED, unix.EIO, unix.ENODEV, unix.EINTR, unix.ECANCELED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (w *killWorker) run() {
	for {
		what, do, writes := w.operation()
		err := do(filepath.Join(w.roots[0], w.name))
		if dead(err) {
			w.what, w.pending, w.writes = what, do, writes
			return
		}
		if _, serr := os.Lstat(filepath.Join(w.roots[0], w.name)); serr != nil {
			// The mount went before the operation began, which then was one on
			// the empty directory underneath.
			w.what, w.pending, w.writes = what, do, writes
			return
		}
		w.ops++
		if plain := do(filepath.Join(w.roots[1], w.name)); !errors.Is(err, plain) && (err != nil || plain != nil) {
			w.wrong = fmt.Sprintf("%s: workspace %v, plain %v", what, err, plain)
			return
		}
	}
}

func (w *killWorker) path() string {
	names := []string{"a", "b", "d", "e", "f"}
	path := names[w.rand.IntN(len(names))]
	for range w.rand.IntN(3) {
		path = filepath.Join(path, names[w.rand.IntN(len(names))])
	}
	return path
}

// operation picks one that is a single request to the file server.
func (w *killWorker) operation() (what string, do func(root string) error, writes string) {
	a, b := w.path(), w.path()
	size, off := int64(w.rand.IntN(20000)), int64(w.rand.IntN(20000))
	data := bytes.Repeat([]byte{byte('a' + w.rand.IntN(26))}, 1+w.rand.IntN(9000))
	mode := uint32(w.rand.IntN(0o1000)) | 0o700
	flags := []uint{0, 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE}[w.rand.IntN(4)]
	ops := []struct {
		name string
		do   func(root string) error
	}{
		{"create", func(root string) error {
			fd, err := unix.Open(filepath.Join(root, a), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, mode)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}},
		{"write", func(root string) error { return writeAt(filepath.Join(root, a), data, off, 0) }},
		{"append", func(root string) error { return writeAt(filepath.Join(root, a), data, 0, os.O_APPEND) }},
		{"truncate", func(root string) error {
			return onFile(root, a, func(p string) error { return unix.Truncate(p, size) })
		}},
		{"mkdir", func(root string) error { return unix.Mkdir(filepath.Join(root, a), mode) }},
		{"rmdir", func(root string) error { return unix.Rmdir(filepath.Join(root, a)) }},
		{"unlink", func(root string) error { return unix.Unlink(filepath.Join(root, a)) }},
		{"symlink", func(root string) error { return unix.Symlink(b, filepath.Join(root, a)) }},
		{"link", func(root string) error { return unix.Link(filepath.Join(root, a), filepath.Join(root, b)) }},
		{"rename", func(root string) error {
			return unix.Renameat2(unix.AT_FDCWD, filepath.Join(root, a), unix.AT_FDCWD, filepath.Join(root, b), flags)
		}},
		{"chmod", func(root string) error {
			return onFile(root, a, func(p string) error { return unix.Chmod(p, mode) })
		}},
		{"chown", func(root string) error { return unix.Lchown(filepath.Join(root, a), int(size%3), int(off%3)) }},
		{"utimes", func(root string) error {
			ts := []unix.Timespec{{Sec: size}, {Sec: off, Nsec: 5}}
			return unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(root, a), ts, unix.AT_SYMLINK_NOFOLLOW)
		}},
		{"setxattr", func(root string) error {
			return onFile(root, a, func(p string) error { return unix.Setxattr(p, "user.x", data[:min(len(data), 99)], 0) })
		}},
	}
	// Writing is what most programs do most.
	i := w.rand.IntN(len(ops) + 6)
	op := ops[i%len(ops)]
	if op.name == "write" || op.name == "append" || op.name == "truncate" {
		writes = a
	}
	return fmt.Sprintf("%s %q %q", op.name, a, b), func(root string) error {
		err := op.do(root)
		var errno syscall.Errno
		if errors.As(err, &errno) {
			return errno
		}
		return err
	}, writes
}

// What became of an operation that was under way.
const (
	isNothing = iota
	isDone
	isUndone
	isPartial
)

// check compares the directory of the worker with its plain one, after doing
// there what was under way, if that was done.
func (w *killWorker) check(t *testing.T) int {
	t.Helper()
	dirs := [2]string{filepath.Join(w.roots[0], w.name), filepath.Join(w.roots[1], w.name)}
	got := snapshot(t, dirs[0])
	if alike(got, snapshot(t, dirs[1])) {
		if w.pending == nil {
			return isNothing
		}
		return isUndone
	}
	if w.pending != nil {
		before, rerr := os.ReadFile(filepath.Join(dirs[1], w.writes))
		_ = w.pending(dirs[1])
		if alike(got, snapshot(t, dirs[1])) {
			return isDone
		}
		if w.writes != "" && rerr == nil && w.tear(dirs, before) && alike(got, snapshot(t, dirs[1])) {
			return isPartial
		}
	}
	same(t, w.name, got, snapshot(t, dirs[1]), seen.plain)
	return isNothing
}

// tear does a write in part, as far as the one in the workspace got.
func (w *killWorker) tear(dirs [2]string, before []byte) bool {
	got, err := os.ReadFile(filepath.Join(dirs[0], w.writes))
	if err != nil {
		return false
	}
	path := filepath.Join(dirs[1], w.writes)
	after, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	n := 0
	for n < len(got) && n < len(after) && got[n] == after[n] {
		n++
	}
	torn := append(bytes.Clone(after[:n]), before[min(n, len(before)):]...)
	if !bytes.Equal(torn, got) {
		return false
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = f.WriteAt(torn, 0)
	return err == nil && f.Truncate(int64(len(torn))) == nil
}

func alike(a, b map[string]seen) bool {
	if len(a) != len(b) {
		return false
	}
	for path, s := range a {
		if o, ok := b[path]; !ok || s.plain() != o.plain() {
			return false
		}
	}
	return true
}
