package fusefs

import (
	"strings"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Whoever reads in two directories of one has the others read ahead: those
// whose trees are there, and the next ones as they come, unless nobody wants
// them.
func TestReadAheadOfDirectories(t *testing.T) {
	files := map[string]string{}
	for _, dir := range strings.Split("abcdefghij", "") {
		files["top/"+dir+"/0"], files["top/"+dir+"/1"] = "0 of "+dir, "1 of "+dir
	}
	q := newQuickRigOf(t, files)
	q.w.aheadWorker = newAheadWorker(q.w.blobs)
	top := q.lookup(t, rootIno, "top")
	look := func(name string) uint64 { return q.lookup(t, q.lookup(t, top, name[:1]), name[2:]) }
	here := func(name string) bool {
		id := hashBlob(strings.Repeat("0", 40), []byte(files["top/"+name]))
		return q.w.blobs.memory.has(keyOf(id))
	}
	read := func(name string) {
		t.Helper()
		if errno := q.ask(opcodeRead, look(name), &fuse.ReadIn{Size: 4096}, ""); errno != 0 || !here(name) {
			t.Fatalf("read of %s: %v; in memory: %v", name, errno, here(name))
		}
	}
	over := func() (credit int, ahead bool) {
		d := q.lookup(t, top, "d")
		q.w.mu.RLock()
		ahead = q.w.t.nodes[d].dir.ahead
		q.w.mu.RUnlock()
		q.w.ahead.mu.Lock()
		defer q.w.ahead.mu.Unlock()
		return q.w.ahead.dirs[top].credit, ahead
	}
	for _, dir := range []string{"a", "b", "c"} {
		look(dir + "/0")
	}
	read("a/0")
	await(t, "the sibling", func() bool { return here("a/1") })
	if here("b/0") || here("c/0") {
		t.Error("other directories are read ahead from the first one on")
	}
	read("b/0")
	await(t, "the next directory", func() bool { return here("b/1") && here("c/0") && here("c/1") })

	look("d/0")
	await(t, "a directory that comes", func() bool { return here("d/0") && here("d/1") })
	if credit, ahead := over(); credit != aheadCredit-1 || !ahead {
		t.Errorf("it was not asked for: %d, %v", credit, ahead)
	}
	read("d/1")
	if credit, ahead := over(); credit != aheadCredit || ahead {
		t.Errorf("it was asked for: %d, %v", credit, ahead)
	}
	for _, dir := range strings.Split("efgh", "")[:aheadCredit] {
		look(dir + "/0")
		await(t, "one more that comes", func() bool { return here(dir + "/1") })
	}
	look("i/0")
	if credit, _ := over(); credit != 0 || here("i/0") {
		t.Errorf("what nobody wants is read ahead: %d", credit)
	}
	read("i/1")
}
