package fusefs

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestCalls makes the same call on the same files in a workspace and in a plain
// directory, for every call, file, kind of path and caller of the tables below:
// error and effect on all files around must be the same. There are many
// combinations: a random choice runs, all of them with GITENV_TEST_ALL=1.
func TestCalls(t *testing.T) {
	share := 0.01
	if testing.Short() {
		share = 0.003
	}
	if os.Getenv("GITENV_TEST_ALL") == "1" {
		share = 1
	}
	for i, kind := range kinds {
		t.Run(kind, func(t *testing.T) { runCalls(t, kind, share, uint64(i)) })
	}
}

// who makes a call.
type who struct {
	name     string
	uid, gid int
	groups   []int
}

var callers = []who{
	{name: "root"},
	{name: "owner", uid: 1000, gid: 1000},
	{name: "group", uid: 2000, gid: 2000, groups: []int{1000, 77}},
	{name: "other", uid: 3000, gid: 3000},
}

// prepare makes the files of dir that a call then meets: those of the tree, or
// what writeFiles makes of them, with other owners and modes, and some more.
func prepare(t testing.TB, dir string) {
	t.Helper()
	p := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"", "f", "x", "empty", "suid", "d", "full", "full/f", "noexec", "noexec/f", "ro", "ro/f", "sticky", "sgid", "sticky/mine"} {
		must(t, os.Lchown(p(name), 1000, 1000))
	}
	must(t, os.Mkdir(p("d/empty"), 0o755))
	must(t, os.Chown(p("d/empty"), 1000, 1000))
	must(t, os.Lchown(p("sticky/theirs"), 3000, 3000))
	for name, mode := range map[string]uint32{
		"": 0o777, "f": 0o664, "suid": 0o6775, "ro": 0o555, "noexec": 0o644, "sticky": 0o1777, "sgid": 0o2777, "sticky/mine": 0o666,
	} {
		must(t, unix.Chmod(p(name), mode))
	}
	must(t, os.Chown(p("sgid"), 1000, 77))
	must(t, unix.Mkfifo(p("fifo"), 0o644))
	must(t, unix.Mknod(p("sock"), unix.S_IFSOCK|0o644, 0))
	must(t, unix.Link(p("f"), p("twin")))
}

var callFiles = map[string]string{
	"f": "content", "x": "#!/bin/sh\n", "empty": "", "suid": "#!suid", "d/keep": "", "full/f": "f",
	"noexec/f": "f", "ro/f": "f", "sticky/mine": "m", "sticky/theirs": "t", "sgid/f": "f",
	"l": "->f", "ld": "->full", "dangling": "->nowhere", "loop": "->loop",
}

// callPaths are what calls are made on, relative to the prepared directory.
var callPaths = []string{
	"f", "x", "empty", "suid", "twin", "d", "d/empty", "full", "full/f", "noexec", "noexec/f", "ro", "ro/f", "ro/new",
	"sticky/mine", "sticky/theirs", "sticky/new", "sgid", "sgid/f", "sgid/new", "l", "ld", "ld/f", "dangling", "loop", "loop/f",
	"fifo", "sock", "new", "new/new", "f/new", "d/", "f/", "new/", "ld/", "l/", ".", "d/.", "d/empty/..", "full/../f",
	strings.Repeat("n", 255), strings.Repeat("n", 256), "d/" + strings.Repeat("n", 255), "d/" + strings.Repeat("n", 256),
	strings.Repeat("d/../", 700) + "f", strings.Repeat("d/../", 900) + "f", "\xff\xfe\n",
}

// call is one system call; it gets two absolute paths and has its arguments in
// its name.
type call struct {
	name string
	two  bool
	do   func(a, b string) error
}

func calls() []call {
	var all []call
	one := func(name string, do func(a string) error) {
		all = append(all, call{name: name, do: func(a, _ string) error { return do(a) }})
	}
	two := func(name string, do func(a, b string) error) {
		all = append(all, call{name: name, two: true, do: do})
	}
	for _, mode := range []uint32{0, 0o644, 0o755, 0o1777, 0o2755, 0o4755, 0o6777} {
		one(fmt.Sprintf("chmod %o", mode), func(a string) error { return unix.Chmod(a, mode) })
	}
	for _, o := range [][2]int{{-1, -1}, {1000, 1000}, {1000, -1}, {-1, 1000}, {-1, 77}, {-1, 2000}, {2000, 2000}, {-1, 3000}, {0, 0}} {
		one(fmt.Sprintf("chown %d:%d", o[0], o[1]), func(a string) error { return unix.Chown(a, o[0], o[1]) })
		one(fmt.Sprintf("lchown %d:%d", o[0], o[1]), func(a string) error { return unix.Lchown(a, o[0], o[1]) })
	}
	for _, mode := range []uint32{0o777, 0o1750, 0o2755} {
		one(fmt.Sprintf("mkdir %o", mode), func(a string) error { return unix.Mkdir(a, mode) })
		one(fmt.Sprintf("mkfifo %o", mode), func(a string) error { return unix.Mkfifo(a, mode) })
	}
	for _, mode := range []uint32{unix.S_IFREG | 0o6755, unix.S_IFSOCK | 0o666, unix.S_IFCHR | 0o600, unix.S_IFBLK | 0o600, unix.S_IFDIR | 0o755} {
		one(fmt.Sprintf("mknod %o", mode), func(a string) error { return unix.Mknod(a, mode, int(unix.Mkdev(1, 3))) })
	}
	for name, flags := range map[string]int{
		"r": unix.O_RDONLY, "w": unix.O_WRONLY, "rw": unix.O_RDWR, "trunc": unix.O_WRONLY | unix.O_TRUNC, "rtrunc": unix.O_RDONLY | unix.O_TRUNC,
		"creat": unix.O_CREAT | unix.O_WRONLY, "excl": unix.O_CREAT | unix.O_EXCL | unix.O_RDWR, "creattrunc": unix.O_CREAT | unix.O_TRUNC | unix.O_RDWR,
		"dir": unix.O_DIRECTORY, "nofollow": unix.O_NOFOLLOW, "path": unix.O_PATH, "tmpfile": unix.O_TMPFILE | unix.O_RDWR,
		"append": unix.O_APPEND | unix.O_WRONLY, "noatime": unix.O_NOATIME, "creatdir": unix.O_CREAT | unix.O_DIRECTORY,
	} {
		one("open "+name, func(a string) error { return openClose(a, flags, nil) })
	}
	one("write", func(a string) error { return openClose(a, unix.O_WRONLY, []byte("xy")) })
	one("append", func(a string) error { return openClose(a, unix.O_WRONLY|unix.O_APPEND, []byte("xy")) })
	one("fallocate", func(a string) error { return withFile(a, func(fd int) error { return unix.Fallocate(fd, 0, 0, 100) }) })
	one("punch", func(a string) error {
		return withFile(a, func(fd int) error {
			return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096)
		})
	})
	for _, size := range []int64{0, 3, 100000, -1} {
		one(fmt.Sprintf("truncate %d", size), func(a string) error { return unix.Truncate(a, size) })
		one(fmt.Sprintf("ftruncate %d", size), func(a string) error {
			return withFile(a, func(fd int) error { return unix.Ftruncate(fd, size) })
		})
	}
	one("unlink", unix.Unlink)
	one("rmdir", unix.Rmdir)
	one("readlink", func(a string) error { _, err := unix.Readlink(a, make([]byte, 100)); return err })
	one("stat", func(a string) error { var st unix.Stat_t; return unix.Stat(a, &st) })
	one("symlink", func(a string) error { return unix.Symlink("target", a) })
	one("symlink long", func(a string) error { return unix.Symlink(strings.Repeat("t", 4095), a) })
	one("symlink too long", func(a string) error { return unix.Symlink(strings.Repeat("t", 4096), a) })
	for _, mode := range []uint32{unix.R_OK, unix.W_OK, unix.X_OK} {
		one(fmt.Sprintf("access %d", mode), func(a string) error { return unix.Faccessat(unix.AT_FDCWD, a, mode, unix.AT_EACCESS) })
	}
	now, omit := unix.Timespec{Nsec: unix.UTIME_NOW}, unix.Timespec{Nsec: unix.UTIME_OMIT}
	for name, ts := range map[string][]unix.Timespec{
		"now": {now, now}, "omit": {omit, omit}, "set": {{Sec: 1, Nsec: 2}, {Sec: 3, Nsec: 999999999}}, "old": {{Sec: -5, Nsec: 7}, {Sec: -1 << 31}},
		"late": {{Sec: 1 << 32}, {Sec: 1<<33 + 5, Nsec: 1}}, "now omit": {now, omit}, "omit set": {omit, {Sec: 9}}, "set omit": {{Sec: 9}, omit},
		"bad": {{Nsec: 1 << 30}, {}},
	} {
		one("utimens "+name, func(a string) error { return unix.UtimesNanoAt(unix.AT_FDCWD, a, ts, 0) })
		one("lutimens "+name, func(a string) error { return unix.UtimesNanoAt(unix.AT_FDCWD, a, ts, unix.AT_SYMLINK_NOFOLLOW) })
	}
	one("setxattr", func(a string) error { return unix.Setxattr(a, "user.a", []byte("v"), 0) })
	one("lsetxattr", func(a string) error { return unix.Lsetxattr(a, "user.a", []byte("v"), 0) })
	one("setxattr replace", func(a string) error { return unix.Setxattr(a, "user.a", []byte("v"), unix.XATTR_REPLACE) })
	one("setxattr trusted", func(a string) error { return unix.Setxattr(a, "trusted.a", []byte("v"), 0) })
	one("setxattr bad", func(a string) error { return unix.Setxattr(a, "nonsense.a", []byte("v"), 0) })
	one("setxattr none", func(a string) error { return unix.Setxattr(a, "user.", []byte("v"), 0) })
	one("getxattr", func(a string) error { _, err := unix.Getxattr(a, "user.none", nil); return err })
	one("removexattr", func(a string) error { return unix.Removexattr(a, "user.none") })
	two("link", unix.Link)
	two("link follow", func(a, b string) error {
		return unix.Linkat(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.AT_SYMLINK_FOLLOW)
	})
	two("rename", unix.Rename)
	for name, flags := range map[string]uint{"noreplace": unix.RENAME_NOREPLACE, "exchange": unix.RENAME_EXCHANGE, "both": unix.RENAME_NOREPLACE | unix.RENAME_EXCHANGE} {
		two("rename "+name, func(a, b string) error {
			return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, flags)
		})
	}
	slices.SortFunc(all, func(a, b call) int { return strings.Compare(a.name, b.name) })
	return all
}

func openClose(path string, flags int, write []byte) error {
	fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o4664)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if write != nil {
		_, err = unix.Write(fd, write)
	}
	return err
}

func withFile(path string, fn func(fd int) error) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return fn(fd)
}

// as makes fn's calls as somebody else. The thread is not used again.
func as(w who, fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and it ends with the goroutine
		done <- func() error {
			groups := make([]uint32, len(w.groups)+1)
			for i, g := range w.groups {
				groups[i] = uint32(g)
			}
			// On this thread alone, unlike the functions of package syscall.
			if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(w.groups)), uintptr(unsafe.Pointer(&groups[0])), 0); errno != 0 {
				return fmt.Errorf("becoming %s: %w", w.name, errno)
			}
			for _, s := range [][4]uintptr{
				{unix.SYS_SETRESGID, uintptr(w.gid), uintptr(w.gid), uintptr(w.gid)},
				{unix.SYS_SETRESUID, uintptr(w.uid), uintptr(w.uid), uintptr(w.uid)},
			} {
				if _, _, errno := unix.RawSyscall(s[0], s[1], s[2], s[3]); errno != 0 {
					return fmt.Errorf("becoming %s: %w", w.name, errno)
				}
			}
			return fn()
		}()
	}()
	return <-done
}

// state is what is below dir, with what a call can change.
type state map[string]string

// times of inodes before a call, to see which of them it changes.
type times map[uint64][2]int64

// lookAll describes what is below dir; the content of what is as it was before
// is left out.
func lookAll(t testing.TB, dir string, before times, counts bool) (state, times) {
	t.Helper()
	s, at := state{}, times{}
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		text := fmt.Sprintf("%o %d:%d", st.Mode, st.Uid, st.Gid)
		if counts || !d.IsDir() {
			text += fmt.Sprintf(" nlink %d", st.Nlink)
		}
		at[st.Ino] = [2]int64{st.Mtim.Nano(), st.Ctim.Nano()}
		if before == nil || before[st.Ino] == at[st.Ino] {
			s[rel] = text
			return nil
		}
		if was, ok := before[st.Ino]; ok && was[0] != at[st.Ino][0] {
			text += " new-mtime"
		}
		if was, ok := before[st.Ino]; ok && was[1] != at[st.Ino][1] {
			text += " new-ctime"
		}
		switch st.Mode & syscall.S_IFMT {
		case syscall.S_IFREG:
			data, err := readQuietly(path)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" size %d %s", st.Size, hex.EncodeToString(data[:min(len(data), 20)]))
		case syscall.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" size %d %.20s", st.Size, target)
		case syscall.S_IFCHR, syscall.S_IFBLK:
			text += fmt.Sprintf(" dev %x", st.Rdev)
		}
		buf := make([]byte, 4096)
		n, err := unix.Llistxattr(path, buf)
		if err != nil {
			return err
		}
		for _, name := range strings.Split(strings.Trim(string(buf[:n]), "\x00"), "\x00") {
			if strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "trusted.") {
				text += " " + name
			}
		}
		if mtime := st.Mtim.Nano(); mtime < 1e18 || mtime > 3e18 {
			text += fmt.Sprintf(" mtime %d", mtime) // set by hand
		}
		if atime := st.Atim.Nano(); atime < 1e18 || atime > 3e18 {
			text += fmt.Sprintf(" atime %d", atime)
		}
		s[rel] = text
		return nil
	}))
	return s, at
}

// readQuietly reads a file without leaving an access time.
func readQuietly(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOATIME, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

type caseRun struct {
	t     *testing.T
	kind  string
	dirs  [2]func() string // workspace, plain: a new directory with callFiles
	at    [2]string
	times [2]times
	fresh bool // nothing was changed in at yet
	// counts is whether the plain file system counts links of directories.
	counts bool
}

func runCalls(t *testing.T, kind string, share float64, seed uint64) {
	c := &caseRun{t: t, kind: kind}
	c.dirs[0] = caseDirs(t, kind)
	plain := filepath.Join(t.TempDir(), "plain")
	openUp(t, plain)
	n := 0
	c.dirs[1] = func() string {
		n++
		dir := filepath.Join(plain, fmt.Sprint(n))
		writeFiles(t, dir, callFiles)
		return dir
	}
	must(t, os.Mkdir(plain, 0o755))
	c.counts = countsLinks(t, plain)
	for i, call := range calls() {
		t.Run(call.name, func(t *testing.T) {
			c.t = t
			c.all(call, share, rand.New(rand.NewPCG(seed, uint64(i))))
		})
	}
}

// all makes a share of all calls.
func (c *caseRun) all(call call, share float64, z *rand.Rand) {
	if call.two && share < 1 {
		share /= 10
	}
	for _, a := range callPaths {
		others := []string{""}
		if call.two {
			others = callPaths
		}
		for _, b := range others {
			for _, w := range callers {
				if z.Float64() < share {
					c.run(call, a, b, w)
				}
			}
		}
	}
}

// openUp lets everybody into the directories above path.
func openUp(t testing.TB, path string) {
	t.Helper()
	for p := filepath.Dir(path); p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
		must(t, os.Chmod(p, 0o755))
	}
}

// run makes one call in both places. A directory is used until a call changed
// something in it.
func (c *caseRun) run(call call, a, b string, w who) {
	c.t.Helper()
	if !c.fresh {
		for i := range c.at {
			c.at[i] = c.dirs[i]()
			prepare(c.t, c.at[i])
			_, c.times[i] = lookAll(c.t, c.at[i], nil, c.counts)
		}
		c.fresh = true
	}
	var errs [2]error
	var states [2]state
	for i, dir := range c.at {
		errs[i] = as(w, func() error { return call.do(dir+"/"+a, dir+"/"+b) })
		var errno syscall.Errno
		if errors.As(errs[i], &errno) {
			errs[i] = errno
		}
		var at times
		states[i], at = lookAll(c.t, dir, c.times[i], c.counts)
		if !maps.Equal(at, c.times[i]) {
			c.fresh = false
		}
	}
	if errs[0] == nil || errs[1] == nil {
		c.fresh = false
	}
	what := fmt.Sprintf("%s %.60q %.60q as %s", call.name, a, b, w.name)
	if errs[0] != errs[1] {
		c.t.Errorf("%s: %v, plain %v", what, errs[0], errs[1])
		c.fresh = false
	}
	for path := range states[1] {
		if got, want := states[0][path], states[1][path]; got != want {
			c.t.Errorf("%s: %.60q:\n got %s\nwant %s", what, path, got, want)
		}
	}
	for path := range states[0] {
		if _, ok := states[1][path]; !ok {
			c.t.Errorf("%s: %.60q should not be there", what, path)
		}
	}
}

// caseDirs returns a function that gives a new directory of a workspace with
// callFiles, of one kind.
func caseDirs(t *testing.T, kind string) func() string {
	const most, batch = 20000, 300
	r := newRig(t, map[string]string{})
	openUp(t, r.spec.Dir)
	r.unmount()
	r.spec.Tree = repeatedTree(t, r.repo, most)
	r.mount()
	n := 0
	return func() string {
		n++
		dir := r.path(fmt.Sprint("d", n))
		switch kind {
		case "up":
			copyUpAll(t, dir)
		case "upper":
			dir = r.path(fmt.Sprint("u", n))
			writeFiles(t, dir, callFiles)
		case "frozen":
			dir = r.path(fmt.Sprint("z", n))
			if n%batch == 1 {
				for i := range batch {
					writeFiles(t, r.path(fmt.Sprint("z", n+i)), callFiles)
				}
				r.freeze()
			}
		}
		return dir
	}
}

// repeatedTree makes a tree with n directories with callFiles, which takes git
// no more than one.
func repeatedTree(t testing.TB, repo string, n int) string {
	t.Helper()
	writeFiles(t, filepath.Join(repo, "one"), callFiles)
	git(t, repo, "add", "-A")
	one := git(t, repo, "rev-parse", git(t, repo, "write-tree")+":one")
	var list strings.Builder
	for i := range n {
		fmt.Fprintf(&list, "040000 tree %s\td%d\n", one, i+1)
	}
	return makeTree(t, repo, list.String())
}

// wideTree makes a tree with a directory "wide" of n files f0, f1, … that
// contain "x".
func wideTree(t testing.TB, repo string, n int) string {
	t.Helper()
	writeFiles(t, repo, map[string]string{"one": "x"})
	blob := git(t, repo, "hash-object", "-w", "one")
	var list strings.Builder
	for i := range n {
		fmt.Fprintf(&list, "100644 blob %s\tf%d\n", blob, i)
	}
	return makeTree(t, repo, "040000 tree "+makeTree(t, repo, list.String())+"\twide\n")
}

func makeTree(t testing.TB, repo, list string) string {
	t.Helper()
	cmd := exec.Command("git", "mktree")
	cmd.Dir, cmd.Stdin = repo, strings.NewReader(list)
	out, err := cmd.Output()
	must(t, err)
	return strings.TrimSpace(string(out))
}
