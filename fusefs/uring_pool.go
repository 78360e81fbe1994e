package fusefs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	ringSubmissions = 128
	ringCompletions = 1024
	// wakeSlot is the user data of the read that wakes a worker.
	wakeSlot = 0
)

// uringPool has one worker for each possible processor. They serve all
// mounts: however many there are, the number of threads is the same.
type uringPool struct {
	workers []*uringWorker
	yielder *yielder // may be nil
}

// newUringPool starts the workers, or fails when the kernel lets us have no
// rings.
func newUringPool(logger *log.Logger) (*uringPool, error) {
	n, err := possibleCPUs()
	if err != nil {
		return nil, err
	}
	p := &uringPool{}
	for cpu := range n {
		w, err := newUringWorker(cpu, logger)
		if err != nil {
			p.Close()
			return nil, err
		}
		p.workers = append(p.workers, w)
	}
	p.yielder = startYielder(p.workers)
	for _, w := range p.workers {
		w.yielder = p.yielder
	}
	return p, nil
}

// Close ends the workers. No mount may be left.
func (p *uringPool) Close() {
	if p.yielder != nil {
		close(p.yielder.quit)
	}
	for _, w := range p.workers {
		w.post(func() { w.quit = true })
		<-w.ended
	}
}

// possibleCPUs is how many queues the kernel has: one for each processor
// there may ever be.
func possibleCPUs() (int, error) {
	const path = "/sys/devices/system/cpu/possible"
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return countCPUs(strings.TrimSpace(string(data)))
}

func countCPUs(list string) (int, error) {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		if err != nil {
			return 0, fmt.Errorf("list of processors %q: %w", list, err)
		}
		to, err := strconv.Atoi(last)
		if err != nil || to < from {
			return 0, fmt.Errorf("list of processors %q: bad range", list)
		}
		n += to - from + 1
	}
	return n, nil
}

// uringWorker is a ring and the thread that owns it. The thread stays on its
// processor, so that a request is answered where its process sleeps: waking
// another processor up costs more than most requests.
type uringWorker struct {
	cpu   int
	log   *log.Logger
	wake  int // eventfd
	ended chan struct{}
	tid   int
	// yielder may be nil; it is set before the first request.
	yielder  *yielder
	requests atomic.Uint64

	mu   sync.Mutex
	jobs []func() // guarded by mu: to be run by the thread

	// The rest belongs to the thread.
	ring    *ioUring
	pinner  runtime.Pinner
	count   uint64 // what was read from wake
	entries []*uringEntry
	free    []uint64
	quit    bool
}

func newUringWorker(cpu int, logger *log.Logger) (*uringWorker, error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	w := &uringWorker{
		cpu: cpu, log: logger, wake: wake, ended: make(chan struct{}),
		entries: make([]*uringEntry, wakeSlot+1),
	}
	started := make(chan error)
	go w.run(started)
	if err := <-started; err != nil {
		<-w.ended
		return nil, err
	}
	return w, nil
}

// run is the thread, which dies with the goroutine.
func (w *uringWorker) run(started chan<- error) {
	runtime.LockOSThread()
	defer close(w.ended)
	defer unix.Close(w.wake)
	ring, err := newIOUring(ringSubmissions, ringCompletions)
	if err != nil {
		started <- err
		return
	}
	w.ring, w.tid = ring, unix.Gettid()
	var set unix.CPUSet
	set.Set(w.cpu)
	// It fails for a processor that is off or not ours: rarely a request
	// comes from there, and then any other one will do.
	_ = unix.SchedSetaffinity(0, &set)
	w.pinner.Pin(&w.count)
	defer w.pinner.Unpin()
	w.armWake()
	started <- nil
	for !w.quit {
		w.submit(1)
		for !w.quit && w.ring.ready() > 0 {
			c := w.ring.pop()
			if c.userData == wakeSlot {
				w.woken()
			} else {
				w.completed(w.entries[c.userData], c.res)
			}
			if w.ring.ready() > 0 {
				w.submit(0) // nobody waits for the other answers
			}
		}
	}
	if err := w.ring.Close(); err != nil {
		w.log.Printf("io_uring: %v", err)
	}
}

// submit hands in what was pushed. When that is impossible the process gives
// up: the daemon then frees everybody who waits, which nobody else could.
func (w *uringWorker) submit(wait int) {
	if err := w.ring.submit(wait); err != nil {
		w.log.Fatalf("io_uring of processor %d: %v", w.cpu, err)
	}
}

func (w *uringWorker) push() *sqe {
	e, err := w.ring.push()
	if err != nil {
		w.log.Fatalf("io_uring of processor %d: %v", w.cpu, err)
	}
	return e
}

func (w *uringWorker) armWake() {
	w.push().read(w.wake, &w.count, wakeSlot)
}

// woken runs what others want the thread to do.
func (w *uringWorker) woken() {
	w.armWake()
	w.mu.Lock()
	jobs := w.jobs
	w.jobs = nil
	w.mu.Unlock()
	for _, job := range jobs {
		job()
	}
}

// post lets the thread run job. It does not wait.
func (w *uringWorker) post(job func()) {
	w.mu.Lock()
	w.jobs = append(w.jobs, job)
	first := len(w.jobs) == 1
	w.mu.Unlock()
	if !first {
		return // it is woken already
	}
	one := binary.NativeEndian.AppendUint64(nil, 1)
	for {
		if _, err := unix.Write(w.wake, one); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// add gives e a slot and introduces it to the kernel.
func (w *uringWorker) add(e *uringEntry) {
	if n := len(w.free); n > 0 {
		e.slot, w.free = w.free[n-1], w.free[:n-1]
		w.entries[e.slot] = e
	} else {
		e.slot = uint64(len(w.entries))
		w.entries = append(w.entries, e)
	}
	e.register(w.push())
}

// completed takes what the kernel says about e: a request, or that there are
// no more.
func (w *uringWorker) completed(e *uringEntry, res int32) {
	if res < 0 {
		w.entries[e.slot] = nil
		w.free = append(w.free, e.slot)
		e.t.lost(unix.Errno(-res))
		return
	}
	w.requests.Add(1)
	w.yielder.served()
	if !e.slow() {
		e.answer()
		e.commit(w.push())
		return
	}
	busy := &e.t.slow[e.qid]
	busy.Add(1)
	go func() {
		e.answer()
		busy.Add(-1)
		w.post(func() { e.commit(w.push()) })
	}()
}
