package fusefs

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A write to a file that is not in the top layer changes what it is about and
// nothing else, whatever the size of the file, where the write is, and whether
// the file was read before; also when the file is below a frozen layer.
func TestWriteCopiesUp(t *testing.T) {
	text := func(size int) string { return strings.Repeat("0123456789abcde\n", size/16+1)[:size] }
	sizes := []int{0, 1, 3000, smallCopy, smallCopy + 1, memoryBlob, memoryBlob + 1, 200_000}
	writes := []struct{ off, length int }{{-1, 5}, {0, 1}, {100, 50}, {2990, 20}, {70_000, 10}, {-1, 100_000}}
	files := map[string]string{}
	for _, size := range sizes {
		for i := range writes {
			files[fmt.Sprintf("d%d/f%d", size, i)] = text(size)
		}
	}
	r := newRig(t, files)
	want := map[string][]byte{}
	change := func(fill byte) {
		for _, size := range sizes {
			for i, w := range writes {
				name := fmt.Sprintf("d%d/f%d", size, i)
				old := want[name]
				if old == nil {
					old = []byte(files[name])
				}
				if i == 1 {
					wantFile(t, r.path(name), string(old))
				}
				off, data := w.off, bytes.Repeat([]byte{fill}, w.length)
				if off < 0 {
					off = len(old)
				}
				next := append(make([]byte, 0, off+w.length), old...)
				if grow := off + w.length - len(next); grow > 0 {
					next = append(next, make([]byte, grow)...)
				}
				copy(next[off:], data)
				want[name] = next
				before := time.Now().Add(-time.Second)
				f, err := os.OpenFile(r.path(name), os.O_WRONLY, 0)
				must(t, err)
				_, err = f.WriteAt(data, int64(off))
				must(t, err)
				must(t, f.Close())
				if st, err := os.Stat(r.path(name)); err != nil || st.ModTime().Before(before) || st.Size() != int64(len(next)) {
					t.Errorf("%s: %v, %d bytes, changed %v", name, err, st.Size(), st.ModTime())
				}
			}
		}
	}
	check := func() {
		t.Helper()
		for name, content := range want {
			if data, err := os.ReadFile(r.path(name)); err != nil || !bytes.Equal(data, content) {
				t.Errorf("%s: %d bytes instead of %d, or others, %v", name, len(data), len(content), err)
			}
		}
	}
	change('x')
	check()
	r.freezeOn("l2")
	change('y')
	check()
	r.restart()
	check()
}

// A write that copies up takes the place of a time that was set before.
func TestWriteCopiesUpTime(t *testing.T) {
	r := newRig(t, map[string]string{"old": "some text\n"})
	must(t, os.Chtimes(r.path("old"), time.Unix(1000, 0), time.Unix(1000, 0)))
	must(t, openClose(r.path("old"), unix.O_WRONLY|unix.O_APPEND, []byte("more\n")))
	for range 2 {
		wantFile(t, r.path("old"), "some text\nmore\n")
		if st, err := os.Stat(r.path("old")); err != nil || time.Since(st.ModTime()) > time.Hour {
			t.Errorf("changed %v, %v", st.ModTime(), err)
		}
		r.restart()
	}
}
