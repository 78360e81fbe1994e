package fusefs

import (
	"errors"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What we need of <linux/io_uring.h>.
const (
	ioSetupCQSize       = 1 << 3
	ioSetupSubmitAll    = 1 << 7
	ioSetupSQE128       = 1 << 10
	ioSetupSingleIssuer = 1 << 12
	ioSetupDeferTaskrun = 1 << 13
	ioSetupNoSQArray    = 1 << 16
	ioFeatSingleMmap    = 1 << 0
	ioEnterGetEvents    = 1 << 0
	ioOffSQRing         = 0
	ioOffSQEs           = 0x10000000
	ioOpRead            = 22
	ioOpUringCmd        = 46
)

// sqe is a submission entry of 128 bytes.
type sqe struct {
	opcode   uint8
	flags    uint8
	ioprio   uint16
	fd       int32
	off      uint64 // of a command: what it is
	addr     uint64
	len      uint32
	opFlags  uint32
	userData uint64
	_        [8]byte
	cmd      [80]byte
}

// read makes s read a number from fd. The caller pins it.
func (s *sqe) read(fd int, to *uint64, userData uint64) {
	s.opcode, s.fd, s.userData = ioOpRead, int32(fd), userData
	s.addr, s.len = uint64(uintptr(unsafe.Pointer(to))), uint32(unsafe.Sizeof(*to))
}

// cqe is a completion entry.
type cqe struct {
	userData uint64
	res      int32
	flags    uint32
}

type sqOffsets struct {
	head, tail, mask, entries, flags, dropped, array, _ uint32
	_                                                   uint64
}

type cqOffsets struct {
	head, tail, mask, entries, overflow, cqes, flags, _ uint32
	_                                                   uint64
}

type ioUringParams struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFD uint32
	_                                                                      [3]uint32
	sq                                                                     sqOffsets
	cq                                                                     cqOffsets
}

// ioUring is an io_uring with large submission entries. Only the thread that
// made it may use it.
type ioUring struct {
	fd       int
	rings    []byte
	entries  []byte
	sqHead   *uint32 // moved by the kernel
	sqTail   *uint32
	cqHead   *uint32
	cqTail   *uint32 // moved by the kernel
	sqes     []sqe
	cqes     []cqe
	prepared uint32 // tail of what was filled in, which submit publishes
}

// newIOUring makes a ring. The calling thread must be locked and stay. Kernels
// without what is needed here have no FUSE over io_uring either.
func newIOUring(submissions, completions uint32) (*ioUring, error) {
	p := ioUringParams{
		cqEntries: completions,
		flags: ioSetupCQSize | ioSetupSubmitAll | ioSetupSQE128 |
			ioSetupSingleIssuer | ioSetupDeferTaskrun | ioSetupNoSQArray,
	}
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(submissions), uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return nil, os.NewSyscallError("io_uring_setup", errno)
	}
	r := &ioUring{fd: int(fd)}
	if err := r.mmap(&p); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *ioUring) mmap(p *ioUringParams) (err error) {
	if p.features&ioFeatSingleMmap == 0 {
		return os.NewSyscallError("io_uring_setup", unix.ENOSYS)
	}
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	size := int(p.cq.cqes + p.cqEntries*uint32(unsafe.Sizeof(cqe{})))
	if r.rings, err = unix.Mmap(r.fd, ioOffSQRing, size, prot, flags); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	size = int(p.sqEntries * uint32(unsafe.Sizeof(sqe{})))
	if r.entries, err = unix.Mmap(r.fd, ioOffSQEs, size, prot, flags); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	at := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[off])) }
	r.sqHead, r.sqTail, r.cqHead, r.cqTail = at(p.sq.head), at(p.sq.tail), at(p.cq.head), at(p.cq.tail)
	r.sqes = unsafe.Slice((*sqe)(unsafe.Pointer(&r.entries[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*cqe)(unsafe.Pointer(&r.rings[p.cq.cqes])), p.cqEntries)
	r.prepared = *r.sqTail
	return nil
}

// push returns a cleared entry that the next submit hands in.
func (r *ioUring) push() (*sqe, error) {
	if r.prepared-atomic.LoadUint32(r.sqHead) == uint32(len(r.sqes)) {
		if err := r.submit(0); err != nil {
			return nil, err
		}
	}
	e := &r.sqes[r.prepared&uint32(len(r.sqes)-1)]
	*e = sqe{}
	r.prepared++
	return e, nil
}

// submit hands in what was pushed, runs what the kernel has put off for this
// thread, and waits for a number of completions.
func (r *ioUring) submit(wait int) error {
	atomic.StoreUint32(r.sqTail, r.prepared)
	for {
		pending := r.prepared - atomic.LoadUint32(r.sqHead)
		// Not a raw system call: the scheduler must know that we may sleep.
		_, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(pending), uintptr(wait), ioEnterGetEvents, 0, 0)
		switch errno {
		case 0:
			if r.prepared == atomic.LoadUint32(r.sqHead) {
				return nil
			}
		case unix.EINTR:
		case unix.EAGAIN, unix.EBUSY:
			// Short of memory, or completions have to be taken out first.
			return nil
		default:
			return os.NewSyscallError("io_uring_enter", errno)
		}
		if r.ready() > 0 {
			wait = 0
		}
	}
}

// ready is how many completions are there.
func (r *ioUring) ready() uint32 { return atomic.LoadUint32(r.cqTail) - *r.cqHead }

// pop takes the oldest completion out. There must be one.
func (r *ioUring) pop() cqe {
	head := *r.cqHead
	c := r.cqes[head&uint32(len(r.cqes)-1)]
	atomic.StoreUint32(r.cqHead, head+1)
	return c
}

// Close gives the ring back. What is under way in it is cancelled.
func (r *ioUring) Close() error {
	var errs []error
	for _, m := range [][]byte{r.rings, r.entries} {
		if m != nil {
			errs = append(errs, unix.Munmap(m))
		}
	}
	return errors.Join(append(errs, unix.Close(r.fd))...)
}
