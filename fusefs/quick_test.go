package fusefs

import (
	"context"
	"log"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
)

// quickRig is a workspace without a mount, and an entry to ask it through.
type quickRig struct {
	w *workspace
	e *uringEntry
}

func newQuickRig(t testing.TB) *quickRig {
	t.Helper()
	return newQuickRigOf(t, map[string]string{"dir/lower": "some content"})
}

func newQuickRigOf(t testing.TB, files map[string]string) *quickRig {
	t.Helper()
	repo := t.TempDir()
	git(t, repo, "init", "-q")
	writeFiles(t, repo, files)
	git(t, repo, "add", "-A")
	git(t, repo, "commit", "-q", "-m", "base")
	tree := git(t, repo, "rev-parse", "HEAD^{tree}")
	g := gitcmd.New(filepath.Join(repo, ".git"))
	reader := objects.NewReader(g, 1)
	t.Cleanup(func() { reader.Close() })
	dir := t.TempDir()
	logger := log.New(os.Stderr, "", 0)
	sh := &shared{layerDir: dir, objs: gitObjects{reader}, fds: newFdCache(16), log: logger}
	sh.blobs = newBlobStore(t.TempDir(), sh.objs, 0, logger)
	sh.conv = newConverters(g, reader, t.TempDir(), logger)
	sh.conv.store = newConvertStore(sh.blobs)
	w, err := newWorkspace(context.Background(), MountSpec{ID: "quick", Tree: tree, Layers: []string{"top"}}, sh)
	must(t, err)
	t.Cleanup(w.close)
	head := &uringHeader{}
	return &quickRig{w, &uringEntry{t: &uringTransport{w: w, log: logger}, head: head, payload: make([]byte, maxIO)}}
}

// ask sends an operation and returns its error.
func (q *quickRig) ask(op uint32, node uint64, arg any, payload string) syscall.Errno {
	h := header(q.e.head.inOut[:])
	*h = fuse.InHeader{Opcode: op, NodeId: node, Unique: 7}
	argLen := 0
	switch a := arg.(type) {
	case *fuse.GetAttrIn:
		argLen = copyArg(q, unsafe.Pointer(a), unsafe.Sizeof(*a))
	case *fuse.SetAttrIn:
		argLen = copyArg(q, unsafe.Pointer(a), unsafe.Sizeof(*a))
	case *fuse.WriteIn:
		argLen = copyArg(q, unsafe.Pointer(a), unsafe.Sizeof(*a))
	case *fuse.ReadIn:
		argLen = copyArg(q, unsafe.Pointer(a), unsafe.Sizeof(*a))
	case *fuse.GetXAttrIn:
		argLen = copyArg(q, unsafe.Pointer(a), unsafe.Sizeof(*a))
	case *fuse.MknodIn:
		argLen = copyArg(q, unsafe.Pointer(a), unsafe.Sizeof(*a))
	}
	q.e.head.payloadSz = uint32(copy(q.e.payload, payload))
	h.Length = uint32(inHeaderLen+argLen) + q.e.head.payloadSz
	q.e.answer()
	out := (*fuse.OutHeader)(unsafe.Pointer(&q.e.head.inOut))
	return syscall.Errno(-out.Status)
}

func copyArg(q *quickRig, p unsafe.Pointer, size uintptr) int {
	all := unsafe.Slice((*byte)(p), size)
	return copy(q.e.head.opIn[:], all[inHeaderLen:])
}

func (q *quickRig) lookup(t testing.TB, parent uint64, name string) uint64 {
	t.Helper()
	if errno := q.ask(opcodeLookup, parent, nil, name+"\x00"); errno != 0 {
		t.Fatalf("lookup of %s: %v", name, errno)
	}
	return (*fuse.EntryOut)(unsafe.Pointer(&q.e.payload[0])).NodeId
}

// What most requests are about allocates nothing.
func TestQuickOperationsDoNotAllocate(t *testing.T) {
	q := newQuickRig(t)
	dir := q.lookup(t, rootIno, "dir")
	low := q.lookup(t, dir, "lower")
	if errno := q.ask(opcodeMknod, rootIno, &fuse.MknodIn{Mode: syscall.S_IFREG | 0o644}, "new\x00"); errno != 0 {
		t.Fatal(errno)
	}
	file := q.lookup(t, rootIno, "new")
	attr, none := &fuse.GetAttrIn{}, &fuse.GetXAttrIn{Size: 24}
	write, read := &fuse.WriteIn{}, &fuse.ReadIn{Size: 4096}
	chmod := &fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{Valid: fuse.FATTR_MODE, Mode: 0o600}}
	for _, op := range []struct {
		what    string
		op      uint32
		node    uint64
		arg     any
		payload string
		want    syscall.Errno
	}{
		{"LOOKUP", opcodeLookup, dir, nil, "lower\x00", 0},
		{"LOOKUP of nothing", opcodeLookup, dir, nil, "nothing\x00", 0},
		{"GETATTR", opcodeGetattr, low, attr, "", 0},
		{"WRITE", opcodeWrite, file, write, "content", 0},
		{"GETATTR of a data file", opcodeGetattr, file, attr, "", 0},
		{"READ", opcodeRead, file, read, "", 0},
		{"READ of a blob", opcodeRead, low, read, "", 0},
		{"SETATTR", opcodeSetattr, file, chmod, "", 0},
		{"GETXATTR", opcodeGetxattr, file, none, "security.capability\x00", syscall.ENODATA},
	} {
		var errno syscall.Errno
		n := testing.AllocsPerRun(100, func() { errno = q.ask(op.op, op.node, op.arg, op.payload) })
		if errno != op.want {
			t.Errorf("%s: %v", op.what, errno)
		}
		if n > 0 {
			t.Errorf("%s allocates %v times", op.what, n)
		}
	}
}

// BenchmarkQuick is what an operation costs beside its transport.
func BenchmarkQuick(b *testing.B) {
	q := newQuickRig(b)
	dir := q.lookup(b, rootIno, "dir")
	low := q.lookup(b, dir, "lower")
	for what, fn := range map[string]func(){
		"lookup":  func() { q.ask(opcodeLookup, dir, nil, "lower\x00") },
		"getattr": func() { q.ask(opcodeGetattr, low, &fuse.GetAttrIn{}, "") },
	} {
		b.Run(what, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				fn()
			}
		})
	}
}
