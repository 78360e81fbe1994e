package fusefs

import (
	"bytes"
	"runtime/debug"
	"strings"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// The operations that most requests are about are taken from the entry and
// answered in place: on the way through go-fuse each of them would allocate
// memory and take a lock that all processors share. Everything else goes that
// way.

const opcodeGetxattr = 22

const (
	inHeaderLen  = int(unsafe.Sizeof(fuse.InHeader{}))
	outHeaderLen = int(unsafe.Sizeof(fuse.OutHeader{}))
)

// request brings the header and what belongs to the operation together, as
// the structures of go-fuse have them.
func (e *uringEntry) request(opLen int) unsafe.Pointer {
	buf := unsafe.Slice((*byte)(unsafe.Pointer(&e.joined)), unsafe.Sizeof(e.joined))
	copy(buf, e.head.inOut[:inHeaderLen])
	copy(buf[inHeaderLen:], e.head.opIn[:opLen])
	return unsafe.Pointer(&e.joined)
}

// name returns the name in the payload, which lasts as long as the request.
func (e *uringEntry) name(payload []byte) string {
	if i := bytes.IndexByte(payload, 0); i >= 0 {
		payload = payload[:i]
	}
	return unsafe.String(unsafe.SliceData(payload), len(payload))
}

// reply returns the place of the answer, cleared.
func reply[T any](e *uringEntry) *T {
	out := (*T)(unsafe.Pointer(unsafe.SliceData(e.payload)))
	clear(e.payload[:unsafe.Sizeof(*out)])
	return out
}

// quick answers one of those operations and returns the length of the answer,
// or false for another one. opLen is how much of opIn is filled in.
func (e *uringEntry) quick(h *fuse.InHeader, opLen int) (n int, st fuse.Status, ok bool) {
	defer func() {
		if r := recover(); r != nil {
			e.t.log.Printf("%s: operation %d: panic: %v\n%s", e.t.w.spec.ID, h.Opcode, r, debug.Stack())
			n, st, ok = 0, fuse.EIO, true
		}
	}()
	if h.TotalExtlen != 0 {
		return 0, fuse.OK, false
	}
	w, in := e.t.w, e.payload[:e.head.payloadSz]
	switch h.Opcode {
	case opcodeLookup:
		req := (*fuse.InHeader)(e.request(0))
		var name [maxName + 1]byte // where the answer goes is where the name is
		if len(in) > len(name) {
			return 0, fuse.OK, false
		}
		st = w.Lookup(nil, req, e.name(name[:copy(name[:], in)]), reply[fuse.EntryOut](e))
		n = int(unsafe.Sizeof(fuse.EntryOut{}))
	case opcodeGetattr:
		st = w.GetAttr(nil, (*fuse.GetAttrIn)(e.request(opLen)), reply[fuse.AttrOut](e))
		n = int(unsafe.Sizeof(fuse.AttrOut{}))
	case opcodeSetattr:
		st = w.SetAttr(nil, (*fuse.SetAttrIn)(e.request(opLen)), reply[fuse.AttrOut](e))
		n = int(unsafe.Sizeof(fuse.AttrOut{}))
	case opcodeMknod:
		name := strings.Clone(e.name(in)) // it is kept
		st = w.Mknod(nil, (*fuse.MknodIn)(e.request(opLen)), name, reply[fuse.EntryOut](e))
		n = int(unsafe.Sizeof(fuse.EntryOut{}))
	case opcodeUnlink:
		st = w.Unlink(nil, (*fuse.InHeader)(e.request(0)), strings.Clone(e.name(in)))
	case opcodeRead:
		req := (*fuse.ReadIn)(e.request(opLen))
		n, st = w.read(req.NodeId, req.Offset, e.payload[:min(int(req.Size), len(e.payload))])
	case opcodeWrite:
		var size uint32
		size, st = w.Write(nil, (*fuse.WriteIn)(e.request(opLen)), in)
		reply[fuse.WriteOut](e).Size = size
		n = int(unsafe.Sizeof(fuse.WriteOut{}))
	case opcodeGetxattr:
		n, st = e.getxattr((*fuse.GetXAttrIn)(e.request(opLen)), in)
	default:
		return 0, fuse.OK, false
	}
	return n, st, true
}

func (e *uringEntry) getxattr(req *fuse.GetXAttrIn, in []byte) (int, fuse.Status) {
	var name [maxXattrName + 2]byte
	value := e.payload[:min(int(req.Size), len(e.payload))]
	size, st := e.t.w.GetXAttr(nil, &req.InHeader, e.name(name[:copy(name[:], in)]), value)
	if req.Size > 0 {
		return int(size), st
	}
	if st == fuse.ERANGE {
		st = fuse.OK // the question was how much there is
	}
	reply[fuse.GetXAttrOut](e).Size = size
	return int(unsafe.Sizeof(fuse.GetXAttrOut{})), st
}
