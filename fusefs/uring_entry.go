package fusefs

import (
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// What we need of <linux/fuse.h>.
const (
	uringCmdRegister = 1
	uringCmdCommit   = 2 // and fetch the next one
)

// uringHeader is where the kernel puts a request and we put the answer, but
// for what is in the payload.
type uringHeader struct {
	inOut     [128]byte // the header of the request, then of the answer
	opIn      [128]byte // what belongs to the operation; there is none in an answer
	_         uint64
	commitID  uint64
	payloadSz uint32
	_         uint32
	_         uint64

	// The kernel reads these once, when the entry is registered.
	iov [2]unix.Iovec
}

// uringRequest is what a submission carries besides.
type uringRequest struct {
	flags, commitID uint64
	qid             uint16
	_               [6]byte
}

// uringEntry is a place for one request.
type uringEntry struct {
	t       *uringTransport
	qid     uint16
	slot    uint64
	head    *uringHeader
	payload []byte
	joined  [21]uint64 // the header of a request and what belongs to the operation
	in      [3][]byte
	out     [2][]byte
}

// register makes s introduce e to the kernel.
func (e *uringEntry) register(s *sqe) {
	e.command(s, uringCmdRegister, 0)
	s.addr, s.len = uint64(uintptr(unsafe.Pointer(&e.head.iov))), uint32(len(e.head.iov))
}

// commit makes s hand in the answer.
func (e *uringEntry) commit(s *sqe) { e.command(s, uringCmdCommit, e.head.commitID) }

func (e *uringEntry) command(s *sqe, op, commitID uint64) {
	s.opcode, s.fd, s.off, s.userData = ioOpUringCmd, int32(e.t.fd), op, e.slot
	*(*uringRequest)(unsafe.Pointer(&s.cmd)) = uringRequest{commitID: commitID, qid: e.qid}
}

// answer replaces the request in e by its answer. It trusts the kernel.
func (e *uringEntry) answer() {
	h := header(e.head.inOut[:])
	headLen, unique := uint32(unsafe.Sizeof(*h)), h.Unique
	opLen := h.Length - headLen - e.head.payloadSz
	if n, st, ok := e.quick(h, int(opLen)); ok {
		e.finish(unique, n, st)
		return
	}
	e.in = [3][]byte{e.head.inOut[:headLen], e.head.opIn[:opLen], e.payload[:e.head.payloadSz]}
	const outLen = uint32(unsafe.Sizeof(fuse.OutHeader{}))
	e.out = [2][]byte{e.head.inOut[:outLen], e.payload}
	n, st := e.t.fs.HandleRequest(e.in[:], e.out[:])
	if n < int(outLen) {
		// Everything here has an answer.
		if st.Ok() {
			st = fuse.EIO
		}
		e.finish(unique, 0, st)
		return
	}
	e.head.payloadSz = uint32(n) - outLen
}

// finish fills in the header of an answer of n bytes, which are in the payload.
func (e *uringEntry) finish(unique uint64, n int, st fuse.Status) {
	if !st.Ok() {
		n = 0
	}
	*(*fuse.OutHeader)(unsafe.Pointer(&e.head.inOut)) = fuse.OutHeader{
		Length: uint32(outHeaderLen + n), Status: -int32(st), Unique: unique,
	}
	e.head.payloadSz = uint32(n)
}

func (e *uringEntry) slow() bool {
	h, arg := header(e.head.inOut[:]), e.head.opIn[:]
	if h.Opcode == opcodeLookup {
		arg = e.payload[:e.head.payloadSz]
	}
	return e.t.w.slow(h, arg)
}
