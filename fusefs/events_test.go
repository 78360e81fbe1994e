package fusefs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// watcher collects what inotify tells.
type watcher struct {
	t    *testing.T
	fd   int
	what map[int32]string // the name of a watch
}

func newWatcher(t *testing.T) *watcher {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return &watcher{t: t, fd: fd, what: map[int32]string{}}
}

func (w *watcher) watch(path, name string) {
	w.t.Helper()
	wd, err := unix.InotifyAddWatch(w.fd, path, unix.IN_CREATE|unix.IN_MODIFY|unix.IN_ATTRIB|unix.IN_CLOSE_WRITE|
		unix.IN_DELETE|unix.IN_MOVED_FROM|unix.IN_MOVED_TO|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF)
	must(w.t, err)
	w.what[int32(wd)] = name
}

var eventNames = map[uint32]string{
	unix.IN_CREATE: "create", unix.IN_MODIFY: "modify", unix.IN_ATTRIB: "attrib", unix.IN_CLOSE_WRITE: "close",
	unix.IN_DELETE: "delete", unix.IN_MOVED_FROM: "from", unix.IN_MOVED_TO: "to", unix.IN_DELETE_SELF: "gone",
	unix.IN_MOVE_SELF: "moved", unix.IN_IGNORED: "ignored",
}

// events returns what happened since the last time.
func (w *watcher) events() (all []string) {
	w.t.Helper()
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(w.fd, buf)
		if errors.Is(err, unix.EAGAIN) {
			return all
		}
		must(w.t, err)
		for b := buf[:n]; len(b) > 0; {
			wd, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
			size := binary.NativeEndian.Uint32(b[12:])
			name := string(bytes.TrimRight(b[unix.SizeofInotifyEvent:][:size], "\x00"))
			all = append(all, fmt.Sprintf("%s %s %s", w.what[wd], eventNames[mask&^unix.IN_ISDIR], name))
			b = b[unix.SizeofInotifyEvent+size:]
		}
	}
}

// What changes through the mount is told to who watches: also what is copied up
// by the change, and what is watched from before it.
func TestInotify(t *testing.T) {
	files := map[string]string{"f": "content", "big": string(bytes.Repeat([]byte("x"), 100000)), "gone": "x", "d/f": "in d"}
	everywhere(t, files, func(t *testing.T, dir string) {
		p := func(name string) string { return filepath.Join(dir, name) }
		w := newWatcher(t)
		w.watch(dir, "dir")
		w.watch(p("big"), "big")
		w.watch(p("gone"), "gone")
		w.watch(p("d"), "d")
		step := func(what string, err error, want ...string) {
			t.Helper()
			must(t, err)
			if got := w.events(); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		write := func(path string) error { return openClose(path, unix.O_WRONLY, []byte("y")) }
		step("write", write(p("f")), "dir modify f", "dir close f")
		step("write to what is watched", write(p("big")), "dir modify big", "big modify ", "dir close big", "big close ")
		step("again", write(p("big")), "dir modify big", "big modify ", "dir close big", "big close ")
		step("truncate", os.Truncate(p("big"), 5), "dir modify big", "big modify ")
		step("chmod", os.Chmod(p("f"), 0o600), "dir attrib f")
		step("create", openClose(p("new"), unix.O_CREAT|unix.O_WRONLY, []byte("y")), "dir create new", "dir modify new", "dir close new")
		step("mkdir", os.Mkdir(p("nd"), 0o755), "dir create nd")
		step("link", os.Link(p("f"), p("twin")), "dir create twin")
		step("rename", os.Rename(p("f"), p("g")), "dir from f", "dir to g")
		step("rename what is watched", os.Rename(p("big"), p("d/big")), "dir from big", "d to big", "big moved ")
		step("write under the new name", write(p("d/big")), "d modify big", "big modify ", "d close big", "big close ")
		step("rename over", os.Rename(p("new"), p("g")), "dir from new", "dir to g")
		step("remove", os.Remove(p("g")), "dir delete g")
		step("rmdir", os.Remove(p("nd")), "dir delete nd")
		step("remove what is watched", os.Remove(p("gone")), "gone attrib ", "gone gone ", "gone ignored ", "dir delete gone")
		step("in a directory", write(p("d/f")), "d modify f", "d close f")
	})
}
