package hostpath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ID tells a file or directory from every other one as long as it exists.
type ID struct{ Dev, Ino uint64 }

// Place is a file or directory that is not to be opened, nor what contains it.
type Place struct {
	Path string
	// What it is, for a message: "the home directory".
	What string
	// Below refuses what is in it too.
	Below bool
}

// Rules says what Open refuses.
type Rules struct {
	itself, above, below map[ID]string
	planted              map[ID]string
}

// NewRules looks at the places as they are now. Planted are directories whose
// content is not the user's own doing: a symbolic link in one is not followed. A
// path that does not exist counts as far as it does.
func NewRules(places []Place, planted []string) (*Rules, error) {
	r := &Rules{itself: map[ID]string{}, above: map[ID]string{}, below: map[ID]string{}, planted: map[ID]string{}}
	for _, p := range places {
		if err := r.refuse(p); err != nil {
			return nil, err
		}
	}
	for _, p := range planted {
		id, err := idOf(p)
		if absent(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		r.planted[id] = p
	}
	return r, nil
}

func absent(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) }

func idOf(path string) (ID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return ID{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return id(&st), nil
}

func id(st *unix.Stat_t) ID { return ID{uint64(st.Dev), st.Ino} }

// refuse notes a place, and everything above it by the path given and by the real
// one.
func (r *Rules) refuse(p Place) error {
	paths := []string{filepath.Clean(p.Path)}
	if real, err := filepath.EvalSymlinks(p.Path); err == nil && real != paths[0] {
		paths = append(paths, real)
	}
	for _, path := range paths {
		for at := path; ; at = filepath.Dir(at) {
			found, err := idOf(at)
			switch {
			case absent(err):
			case err != nil:
				return err
			case at == path:
				r.itself[found] = p.What
				if p.Below {
					r.below[found] = p.What
				}
			case r.above[found] == "":
				r.above[found] = p.What
			}
			if at == "/" {
				break
			}
		}
	}
	return nil
}

// Opened is what Open found.
type Opened struct {
	// File is open as a path only (O_PATH); the caller closes it.
	File *os.File
	// Path is without symbolic links.
	Path string
	ID   ID
	Dir  bool
}

// maxLinks is as many as the kernel follows.
const maxLinks = 40

// Open opens a directory or a regular file. Its errors say what is wrong with the
// path in one line.
func Open(path string, r *Rules) (*Opened, error) {
	w := walk{rules: r}
	defer w.close()
	if err := w.root(); err != nil {
		return nil, err
	}
	pending := split(path)
	for links := 0; len(pending) > 0; {
		name := pending[0]
		pending = pending[1:]
		if name == ".." {
			w.up()
			continue
		}
		target, err := w.down(name)
		if err != nil {
			return nil, err
		}
		if target == "" {
			continue
		}
		if links++; links > maxLinks {
			return nil, fmt.Errorf("%s: too many symbolic links", path)
		}
		if filepath.IsAbs(target) {
			w.steps = w.drop(1)
		}
		pending = append(split(target), pending...)
	}
	return w.end()
}

func split(path string) []string {
	var out []string
	for s := range strings.SplitSeq(path, "/") {
		if s != "" && s != "." {
			out = append(out, s)
		}
	}
	return out
}

type step struct {
	fd   int
	name string
	stat unix.Stat_t
}

// walk is a way down from the root, each directory on it held open.
type walk struct {
	rules *Rules
	steps []step
}

func (w *walk) root() error {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/", Err: err}
	}
	return w.push(fd, "")
}

func (w *walk) push(fd int, name string) error {
	s := step{fd: fd, name: name}
	if err := unix.Fstat(fd, &s.stat); err != nil {
		unix.Close(fd)
		return &os.PathError{Op: "stat", Path: w.path() + "/" + name, Err: err}
	}
	w.steps = append(w.steps, s)
	return nil
}

// drop closes all but the first n steps.
func (w *walk) drop(n int) []step {
	for _, s := range w.steps[n:] {
		unix.Close(s.fd)
	}
	return w.steps[:n]
}

func (w *walk) close() { w.steps = w.drop(0) }

func (w *walk) up() {
	if len(w.steps) > 1 {
		w.steps = w.drop(len(w.steps) - 1)
	}
}

func (w *walk) path() string {
	var names []string
	for _, s := range w.steps {
		names = append(names, s.name)
	}
	return filepath.Join("/", filepath.Join(names...))
}

// down goes one step further, or returns where a symbolic link leads.
func (w *walk) down(name string) (target string, err error) {
	at := filepath.Join(w.path(), name)
	fd, err := unix.Openat(w.steps[len(w.steps)-1].fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: at, Err: err}
	}
	if err := w.push(fd, name); err != nil {
		return "", err
	}
	now := &w.steps[len(w.steps)-1].stat
	if now.Mode&unix.S_IFMT != unix.S_IFLNK {
		if what := w.rules.below[id(now)]; what != "" {
			return "", refused(at, "belongs to", what)
		}
		return "", nil
	}
	for _, s := range w.steps {
		if dir := w.rules.planted[id(&s.stat)]; dir != "" {
			return "", fmt.Errorf("%s is a symbolic link that the content of %s brings along; such a link is not followed", at, dir)
		}
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", &os.PathError{Op: "readlink", Path: at, Err: err}
	}
	w.up()
	return string(buf[:n]), nil
}

func refused(path, how, what string) error { return fmt.Errorf("%s %s %s", path, how, what) }

// virtual says whether a file system is the kernel's own affair, wherever it is
// mounted.
func virtual(magic int64) bool {
	switch magic {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC,
		unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC, unix.DEVPTS_SUPER_MAGIC:
		return true
	}
	return false
}

// end looks at where the way has led to.
func (w *walk) end() (*Opened, error) {
	last := w.steps[len(w.steps)-1]
	path, this := w.path(), id(&last.stat)
	if path == "/" {
		return nil, errors.New("/ is all of this machine's files")
	}
	if what := w.rules.itself[this]; what != "" {
		return nil, refused(path, "is", what)
	}
	if what := w.rules.above[this]; what != "" {
		return nil, refused(path, "contains", what)
	}
	mode := last.stat.Mode & unix.S_IFMT
	if mode != unix.S_IFDIR && mode != unix.S_IFREG {
		return nil, fmt.Errorf("%s is neither a directory nor a regular file", path)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(last.fd, &fs); err != nil {
		return nil, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	if virtual(int64(fs.Type)) {
		return nil, fmt.Errorf("%s is on a file system of the kernel's", path)
	}
	w.steps = w.steps[:len(w.steps)-1]
	return &Opened{File: os.NewFile(uintptr(last.fd), path), Path: path, ID: this, Dir: mode == unix.S_IFDIR}, nil
}

// Inside returns what is at path for a process whose root directory is root, such
// as /proc/<pid>/root: links there are followed as the process would.
func Inside(root, path string) (ID, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ID{}, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(dir)
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(dir, strings.TrimPrefix(path, "/"), how)
	if err != nil {
		return ID{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return ID{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return id(&st), nil
}
