package fusefs

import (
	"errors"
	"fmt"
	"log"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// deviceNap is how long the device is left alone after a message that wants no
// answer.
const deviceNap = 3 * time.Millisecond

// manyCPUs is from where on memory is saved.
const manyCPUs = 16

// uringDepth is how many requests of a processor can be under way. The others
// wait, as they do when all readers of /dev/fuse are busy.
func uringDepth(cpus int) int {
	if cpus > manyCPUs {
		return 4
	}
	return 8
}

// uringTransport serves a mount over io_uring: all but the requests without
// an answer, which keep coming over the device.
type uringTransport struct {
	dev     *os.File
	fd      int // of dev
	fs      *fuse.ProtocolServer
	w       *workspace
	log     *log.Logger
	mem     []byte // buffers of all entries and of the device
	devIn   []byte
	devOut  []byte
	failure atomic.Int64 // errno for which an entry was lost
	lose    sync.Once
	losing  chan struct{}  // closed when an entry is lost
	live    atomic.Int64   // entries, and one for registering
	drained chan struct{}  // closed when there are none
	slow    []atomic.Int32 // by processor: entries whose request takes its time
}

// newUringTransport answers the kernel's first message and registers the
// entries. It owns fd, also when it fails. It may only be used where the
// kernel is known to offer rings for new connections: when it fails the mount
// is of no use.
func newUringTransport(p *uringPool, fd int, w *workspace) (*uringTransport, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	opts := mountOptions(w)
	w.openChannel(fd)
	opts.ExtraCapabilities |= fuse.CAP_OVER_IO_URING
	t := &uringTransport{
		dev: os.NewFile(uintptr(fd), "/dev/fuse"), fd: fd, fs: fuse.NewProtocolServer(w, opts), w: w, log: w.log,
		losing: make(chan struct{}), drained: make(chan struct{}), slow: make([]atomic.Int32, len(p.workers)),
	}
	t.live.Add(1)
	entries, err := t.allocate(len(p.workers))
	if err == nil {
		err = t.init()
	}
	if err != nil {
		t.release()
		return nil, err
	}
	if err := t.register(p, entries); err != nil {
		go func() { // the kernel may write to the buffers until the mount is gone
			<-t.drained
			t.release()
		}()
		return nil, err
	}
	return t, nil
}

// allocate makes the buffers, outside of the heap, where untouched pages cost
// nothing.
func (t *uringTransport) allocate(cpus int) ([]*uringEntry, error) {
	const headSize, devSize = 512, maxIO + 4096
	n := cpus * uringDepth(cpus)
	heads := (n*headSize + 4095) &^ 4095
	var err error
	t.mem, err = unix.Mmap(-1, 0, heads+n*maxIO+2*devSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoUring, os.NewSyscallError("mmap", err))
	}
	// A huge page for each small request would be a waste.
	_ = unix.Madvise(t.mem, unix.MADV_NOHUGEPAGE)
	rest := t.mem[heads:]
	entries := make([]*uringEntry, n)
	for i := range entries {
		e := &uringEntry{
			t: t, qid: uint16(i % cpus), payload: rest[:maxIO:maxIO],
			head: (*uringHeader)(unsafe.Pointer(&t.mem[i*headSize])),
		}
		rest = rest[maxIO:]
		e.head.iov[0].Base = (*byte)(unsafe.Pointer(e.head))
		e.head.iov[0].SetLen(int(unsafe.Offsetof(e.head.iov)))
		e.head.iov[1].Base = &e.payload[0]
		e.head.iov[1].SetLen(len(e.payload))
		entries[i] = e
	}
	t.devIn, t.devOut = rest[:devSize], rest[devSize:]
	return entries, nil
}

// init answers the first message.
func (t *uringTransport) init() error {
	n, err := t.dev.Read(t.devIn)
	if err != nil {
		return fmt.Errorf("first message: %w", err)
	}
	const initOpcode = 26
	if h := header(t.devIn); n < int(unsafe.Sizeof(*h)) || h.Opcode != initOpcode {
		return fmt.Errorf("first message: %w", unix.EPROTO)
	}
	in := (*fuse.InitIn)(unsafe.Pointer(&t.devIn[0]))
	if n < int(unsafe.Sizeof(*in)) || in.Flags64()&fuse.CAP_OVER_IO_URING == 0 {
		return errNoUring // not answered: the mount goes away
	}
	n, st := t.fs.HandleRequest([][]byte{t.devIn[:n]}, [][]byte{t.devOut})
	if !st.Ok() {
		return fmt.Errorf("first message: %w", unix.Errno(st))
	}
	if _, err := t.dev.Write(t.devOut[:n]); err != nil {
		return fmt.Errorf("answer to the first message: %w", err)
	}
	return nil
}

// register introduces the entries. From the first message on the kernel holds
// all other requests back until each queue has one.
func (t *uringTransport) register(p *uringPool, entries []*uringEntry) error {
	for _, e := range entries {
		t.live.Add(1)
		w := p.workers[e.qid]
		w.post(func() { w.add(e) })
	}
	// A refusal completes at once, so before anything a second round brings.
	for range 2 {
		var wg sync.WaitGroup
		for _, w := range p.workers {
			wg.Add(1)
			w.post(wg.Done)
		}
		wg.Wait()
	}
	errno := unix.Errno(t.failure.Load())
	t.lost(0)
	if errno != 0 {
		return fmt.Errorf("%w: registering: %w", errNoUring, errno)
	}
	return nil
}

// lost says that an entry is none any more, 0 that registering is over.
func (t *uringTransport) lost(errno unix.Errno) {
	if errno != 0 {
		t.failure.Store(int64(errno))
		t.lose.Do(func() { close(t.losing) })
	}
	if t.live.Add(-1) == 0 {
		close(t.drained)
	}
}

// serve answers requests until the mount is gone. When it breaks before, and
// would leave everybody waiting, it calls broken, which is to abort the mount.
func (t *uringTransport) serve(broken func()) {
	stop := make(chan struct{})
	go t.watch(stop, broken)
	if err := t.readDevice(); err != nil {
		t.log.Printf("%s: /dev/fuse: %v", t.w.spec.ID, err)
		broken()
	}
	close(stop)
	<-t.drained
	t.release()
}

// watch notices that entries are lost although the mount still is.
func (t *uringTransport) watch(stop <-chan struct{}, broken func()) {
	select {
	case <-stop:
		return
	case <-t.losing:
	}
	select {
	case <-stop:
	case <-time.After(time.Second):
		t.log.Printf("%s: io_uring: %v", t.w.spec.ID, unix.Errno(t.failure.Load()))
		broken()
	}
}

// readDevice takes what comes over the device until the connection is gone.
func (t *uringTransport) readDevice() error {
	for {
		n, err := t.dev.Read(t.devIn)
		switch {
		case errors.Is(err, unix.ENODEV):
			return nil
		case errors.Is(err, unix.ENOENT): // interrupted before we came
			continue
		case err != nil:
			return err
		}
		if t.w.batchForget(t.devIn[:n]) {
			time.Sleep(deviceNap)
			continue
		}
		n, st := t.fs.HandleRequest([][]byte{t.devIn[:n]}, [][]byte{t.devOut})
		if !st.Ok() {
			t.log.Printf("%s: request: %v", t.w.spec.ID, st)
			continue
		}
		if n == 0 {
			// Nobody waits for an answer. Whatever comes while we do not look
			// is in the next message, and waking us up costs the process that
			// deletes files more than all the rest.
			time.Sleep(deviceNap)
			continue
		}
		if _, err := t.dev.Write(t.devOut[:n]); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
			t.log.Printf("%s: answer: %v", t.w.spec.ID, err)
		}
	}
}

// release gives everything back. No entry may be left.
func (t *uringTransport) release() {
	if t.mem != nil {
		if err := unix.Munmap(t.mem); err != nil {
			t.log.Printf("munmap: %v", err)
		}
		t.mem = nil
	}
	t.dev.Close()
}

func header(b []byte) *fuse.InHeader { return (*fuse.InHeader)(unsafe.Pointer(&b[0])) }
