package fusefs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Seeds that once found a bug stay here.
var randomSeeds = []uint64{1, 2, 3, 4, 5, 6, 7, 8}

// TestRandom does the same random operations on a workspace and on a plain
// directory: every result and in the end everything visible must be equal.
// On the way the workspace is remounted, frozen and committed.
func TestRandom(t *testing.T) {
	seeds := randomSeeds
	if testing.Short() {
		seeds = seeds[:2]
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomRun(t, seed, 1500) })
	}
}

type randomizer struct {
	*rand.Rand
	r     *rig
	roots [2]string // workspace, plain
	base  map[string]gitFile
	// counts is whether the plain file system counts links of directories.
	counts bool
}

func randomRun(t *testing.T, seed uint64, ops int) {
	files := map[string]string{"a": "a", "b": "#!b", "d/a": "da", "d/e/a": "dea", "d/e/f/a": "deep", "l": "->a", "e/b": ""}
	for i := range 20 {
		files[fmt.Sprintf("d/many/f%d", i)] = fmt.Sprint(i)
	}
	r := newRig(t, files)
	plain := filepath.Join(t.TempDir(), "plain")
	if out, err := exec.Command("git", "clone", "-q", r.repo, plain).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if err := os.RemoveAll(filepath.Join(plain, ".git")); err != nil {
		t.Fatal(err)
	}
	z := &randomizer{Rand: rand.New(rand.NewPCG(seed, 0)), r: r, roots: [2]string{r.spec.Dir, plain}}
	z.counts = countsLinks(t, plain)
	z.base = gitFiles(snapshot(t, plain))
	for i := range ops {
		what, errs := z.step()
		if !errors.Is(errs[0], errs[1]) && (errs[0] != nil || errs[1] != nil) {
			t.Fatalf("step %d: %s: workspace %v, plain %v", i, what, errs[0], errs[1])
		}
		if i%300 == 299 {
			z.interlude(i)
		}
		if t.Failed() {
			t.Fatalf("after step %d", i)
		}
	}
}

// interlude compares, and lets something happen that must not be visible.
func (z *randomizer) interlude(i int) {
	t := z.r.t
	before := snapshot(t, z.roots[0])
	norm := seen.plain
	if !z.counts {
		norm = seen.uncounted
	}
	same(t, "plain", before, snapshot(t, z.roots[1]), norm)
	seq := z.r.checkDirty("dirty", z.base)
	switch z.IntN(4) {
	case 0:
		z.r.unmount()
		z.r.mount()
		same(t, "remount", snapshot(t, z.roots[0]), before, exact)
	case 1:
		id := fmt.Sprintf("top%d", i)
		if _, err := z.r.c.Freeze(context.Background(), z.r.spec.ID, id); err != nil {
			t.Fatal(err)
		}
		z.r.spec.Layers = append(z.r.spec.Layers, id)
		same(t, "freeze", snapshot(t, z.roots[0]), before, exact)
	case 2:
		if err := z.r.c.Mark(context.Background(), z.r.spec.ID, seq, "c"); err != nil {
			t.Fatal(err)
		}
		z.base = gitFiles(before)
	}
	z.r.checkDirty("dirty later", z.base)
	if n, paths, err := OfflineDirty(filepath.Join(z.r.dir, "layers"), z.r.spec.Layers, 10); err != nil {
		t.Errorf("OfflineDirty: %d %q %v", n, paths, err)
	}
}

func (z *randomizer) name() string {
	names := []string{"a", "b", "d", "e", "f", "l", "\xff\n", "many"}
	path := names[z.IntN(len(names))]
	for range z.IntN(4) {
		path = filepath.Join(path, names[z.IntN(len(names))])
	}
	return path
}

// step does one operation in both places.
func (z *randomizer) step() (string, [2]error) {
	a, b := z.name(), z.name()
	size, off := z.IntN(20000), int64(z.IntN(30000))
	data := bytes.Repeat([]byte{byte('a' + z.IntN(26))}, z.IntN(9000))
	mode := uint32(z.IntN(0o1000)) | 0o600
	flags := []uint{0, 0, 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE}[z.IntN(5)]
	ops := []struct {
		name string
		do   func(root string) error
	}{
		{"mkdir", func(root string) error { return unix.Mkdir(filepath.Join(root, a), mode|0o700) }},
		{"rmdir", func(root string) error { return unix.Rmdir(filepath.Join(root, a)) }},
		{"unlink", func(root string) error { return unix.Unlink(filepath.Join(root, a)) }},
		{"symlink", func(root string) error { return unix.Symlink(b, filepath.Join(root, a)) }},
		{"link", func(root string) error { return unix.Link(filepath.Join(root, a), filepath.Join(root, b)) }},
		{"mkfifo", func(root string) error { return unix.Mkfifo(filepath.Join(root, a+"fifo"), mode) }},
		{"rename", func(root string) error {
			return unix.Renameat2(unix.AT_FDCWD, filepath.Join(root, a), unix.AT_FDCWD, filepath.Join(root, b), flags)
		}},
		{"create", func(root string) error { return writeAt(filepath.Join(root, a), data, 0, os.O_CREATE|os.O_TRUNC) }},
		{"pwrite", func(root string) error { return writeAt(filepath.Join(root, a), data, off, 0) }},
		{"append", func(root string) error { return writeAt(filepath.Join(root, a), data, 0, os.O_APPEND) }},
		{"truncate", func(root string) error {
			return onFile(root, a, func(p string) error { return unix.Truncate(p, int64(size)) })
		}},
		{"chmod", func(root string) error {
			return onFile(root, a, func(p string) error { return unix.Chmod(p, mode) })
		}},
		{"chown", func(root string) error { return unix.Lchown(filepath.Join(root, a), size%3, int(off%3)) }},
		{"utimes", func(root string) error {
			ts := []unix.Timespec{{Sec: int64(size)}, {Sec: off, Nsec: 5}}
			return unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(root, a), ts, unix.AT_SYMLINK_NOFOLLOW)
		}},
		{"setxattr", func(root string) error {
			return onFile(root, a, func(p string) error { return unix.Setxattr(p, "user.x", data[:min(len(data), 99)], 0) })
		}},
		{"removexattr", func(root string) error {
			return onFile(root, a, func(p string) error { return unix.Removexattr(p, "user.x") })
		}},
		{"rmtree", func(root string) error {
			if size%8 != 0 {
				return nil
			}
			return os.RemoveAll(filepath.Join(root, a))
		}},
	}
	op := ops[z.IntN(len(ops))]
	var errs [2]error
	for i, root := range z.roots {
		err := op.do(root)
		var errno syscall.Errno
		if errors.As(err, &errno) {
			err = errno
		}
		errs[i] = err
	}
	return fmt.Sprintf("%s %q %q", op.name, a, b), errs
}

// onFile does not follow symbolic links: they would lead to host files.
func onFile(root, name string, fn func(path string) error) error {
	path := filepath.Join(root, name)
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err
	}
	if st.Mode&syscall.S_IFMT == syscall.S_IFLNK {
		return nil
	}
	return fn(path)
}

func writeAt(path string, data []byte, off int64, flags int) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|flags, 0o644)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	n := 0
	if flags&os.O_APPEND != 0 {
		n, err = unix.Write(fd, data)
	} else {
		n, err = unix.Pwrite(fd, data, off)
	}
	if err == nil && n < len(data) {
		err = unix.EINTR // by the death of the file server, say
	}
	return err
}
