package fusefs

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The watchdog is a process of its own that notices a file server which does
// not answer, aborts its connections and ends it, so that nobody waits for it
// for ever. It outlives the daemon and the file server for as long as there is
// a connection that it knows. It touches its mounts in one way: when requests
// have been waiting for a while it asks for the file system's figures
// (statfs), which costs the server nothing, from a thread that may hang.
//
// A request of that kind can wait behind others where a processor's queue is
// full of reads from a slow remote, say. So before it acts the watchdog asks
// the server itself, over a socket, whether that is so: a server that is
// stopped, spins or is locked up does not answer.

// Descriptors the watchdog is started with.
const (
	watchControlFD = 3 // from the daemon: orders
	watchPidFD     = 4 // pidfd of the file server
	watchHealthFD  = 5 // to the file server
)

// order tells the watchdog about a mount. With Add a descriptor of the
// connection's control directory goes along.
type order struct {
	Add   bool
	ID    string
	Dir   string
	Minor string // number of the connection
}

// received is an order with what came along, or the end of them.
type received struct {
	order
	fd  int
	err error
}

// WatchdogMain is the body of the hidden command `git-env watchdog`. It returns
// the exit code.
func WatchdogMain(_ context.Context, args []string) int {
	logger := log.New(os.Stderr, "fusefs watchdog: ", log.LstdFlags|log.Lmicroseconds|log.Lmsgprefix)
	flags := flag.NewFlagSet("watchdog", flag.ContinueOnError)
	after := flags.Duration("after", 0, "how long an answer may take")
	notices := flags.String("notices", "", "file to tell the daemon in")
	if err := flags.Parse(args); err != nil || *after <= 0 {
		logger.Print("for internal use: git-env starts this itself")
		return 129
	}
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE)
	if err := os.Chdir("/"); err != nil {
		logger.Print(err)
		return 1
	}
	for _, fd := range []int{watchControlFD, watchPidFD, watchHealthFD} {
		syscall.CloseOnExec(fd)
	}
	control := os.NewFile(watchControlFD, "control")
	c, err := newConn(control)
	control.Close()
	if err != nil {
		logger.Printf("control socket: %v", err)
		return 1
	}
	health := os.NewFile(watchHealthFD, "health")
	if err := unix.SetNonblock(watchHealthFD, false); err != nil {
		logger.Print(err)
		return 1
	}
	w := &watchdog{
		after: *after, notices: *notices, log: logger, pidfd: watchPidFD, health: health,
		mounts: map[string]*watched{}, orders: make(chan received), dead: make(chan struct{}),
	}
	return w.run(c)
}

// watchdog belongs to the goroutine that runs it, but for the channels.
type watchdog struct {
	after   time.Duration
	notices string
	log     *log.Logger
	pidfd   int
	health  *os.File
	asked   uint64
	mounts  map[string]*watched
	alone   bool // the daemon is gone
	orders  chan received
	dead    chan struct{} // closed when the server is
}

// watched is a mount.
type watched struct {
	order
	control *os.File
	seen    int    // times in a row that requests were waiting
	probe   *probe // under way
	strikes int
}

// run watches until the server is dead and its connections are.
func (w *watchdog) run(c *conn) int {
	go w.listen(c)
	go w.awaitServer()
	tick := time.NewTicker(min(max(w.after/10, 10*time.Millisecond), 3*time.Second))
	defer tick.Stop()
	for {
		ticks := tick.C
		if len(w.mounts) == 0 {
			ticks = nil // nothing to look at
		}
		select {
		case o := <-w.orders:
			w.obey(o)
		case <-ticks:
			w.round()
		case <-w.dead:
			w.finish()
			return 0
		}
	}
}

// listen passes on the daemon's orders.
func (w *watchdog) listen(c *conn) {
	for {
		r := received{fd: -1}
		r.err = c.receive(&r.order)
		if r.Add {
			r.fd = c.takeFD()
		}
		w.orders <- r
		if r.err != nil {
			return
		}
	}
}

func (w *watchdog) obey(r received) {
	if r.err != nil {
		w.alone = true
		return
	}
	if m := w.mounts[r.ID]; m != nil {
		m.control.Close()
		delete(w.mounts, r.ID)
	}
	if r.fd >= 0 {
		w.mounts[r.ID] = &watched{order: r.order, control: os.NewFile(uintptr(r.fd), "fusectl")}
	}
}

// maxProbes bounds the threads that may hang in probes.
const maxProbes = 8

// round looks at every mount.
func (w *watchdog) round() {
	probes := 0
	for _, m := range w.mounts {
		if m.probe != nil {
			probes++
		}
	}
	for _, m := range w.mounts {
		if m.probe == nil && !m.waits() {
			continue
		}
		if m.probe == nil && probes < maxProbes {
			m.probe = newProbe(m.Dir)
			probes++
			continue
		}
		if m.probe == nil {
			continue
		}
		if why := w.judge(m); why != "" {
			w.act(m, why)
			return
		}
	}
}

func (w *watchdog) awaitServer() {
	defer close(w.dead)
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(w.pidfd), Events: unix.POLLIN}}, -1)
		if err != unix.EINTR {
			return
		}
	}
}

// patient is at how many looks in a row requests must be waiting before the
// watchdog asks for something itself.
const patient = 2

// waits reports whether requests have been waiting for a while.
func (m *watched) waits() bool {
	n, err := waiting(m.control)
	if err != nil || n == 0 {
		m.seen = 0
		return false
	}
	m.seen++
	return m.seen >= patient
}

// judge returns why the server is taken to be stuck, or "".
func (w *watchdog) judge(m *watched) string {
	late := m.probe.late()
	if len(late) == 0 {
		m.probe, m.seen, m.strikes = nil, 0, 0
		return ""
	}
	if time.Since(m.probe.began) < w.after {
		return ""
	}
	full, err := w.ask(m.ID)
	if err != nil {
		return fmt.Sprintf("it has not answered for %v (%v)", w.after, err)
	}
	m.probe.began = time.Now()
	for _, cpu := range late {
		if full[cpu] {
			continue // busy with what is slow
		}
		// It works, and yet does not answer: an overloaded machine, perhaps.
		if m.strikes++; m.strikes >= maxStrikes {
			return fmt.Sprintf("it has not answered what came from processor %d for %v", cpu, maxStrikes*w.after)
		}
		return ""
	}
	m.strikes = 0
	return ""
}

// maxStrikes is how many times a server that says that it works may fail to
// answer in time.
const maxStrikes = 3

// probe is a request from each processor.
type probe struct {
	began time.Time
	mu    sync.Mutex
	left  map[int]struct{} // guarded by mu: processors without an answer
}

func newProbe(dir string) *probe {
	p := &probe{began: time.Now(), left: map[int]struct{}{}}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		set.Zero()
	}
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			p.left[cpu] = struct{}{}
		}
	}
	for cpu := range p.left {
		go p.ask(dir, cpu)
	}
	return p
}

func (p *probe) ask(dir string, cpu int) {
	runtime.LockOSThread() // and never unlocked: the thread stays where it is and dies
	var set unix.CPUSet
	set.Set(cpu)
	if unix.SchedSetaffinity(0, &set) == nil {
		var st unix.Statfs_t
		_ = unix.Statfs(dir, &st) // any answer is one
	}
	p.mu.Lock()
	delete(p.left, cpu)
	p.mu.Unlock()
}

func (p *probe) late() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var late []int
	for cpu := range p.left {
		late = append(late, cpu)
	}
	return late
}

// ask asks the server itself, no longer than half of what a probe may take,
// and returns which of the mount's queues are full of what takes its time.
func (w *watchdog) ask(id string) (map[int]bool, error) {
	limit := unix.NsecToTimeval(max(w.after/2, 100*time.Millisecond).Nanoseconds())
	for _, opt := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(watchHealthFD, unix.SOL_SOCKET, opt, &limit); err != nil {
			return nil, err
		}
	}
	w.asked++
	query, err := json.Marshal(healthQuery{Pid: os.Getpid(), Number: w.asked, Mount: id})
	if err != nil {
		return nil, err
	}
	if _, err := unix.Write(watchHealthFD, query); err != nil {
		return nil, err
	}
	buf := make([]byte, maxHealth)
	for {
		n, err := unix.Read(watchHealthFD, buf)
		if err == nil && n == 0 {
			err = io.EOF
		}
		if err != nil {
			return nil, err
		}
		var h healthAnswer
		if err := json.Unmarshal(buf[:n], &h); err != nil {
			return nil, err
		}
		if h.Pid != os.Getpid() || h.Number != w.asked {
			continue // late, to another question
		}
		full := map[int]bool{}
		for _, cpu := range h.Full {
			full[cpu] = true
		}
		return full, nil
	}
}

// act frees everybody who waits, and ends the server.
func (w *watchdog) act(m *watched, why string) {
	w.log.Printf("%s: the file server is stuck: %s: aborting its connections and ending it", m.ID, why)
	w.tell(fmt.Sprintf("the file server was stuck: %s; the watchdog ended it, and whoever used a workspace got an error", why))
	w.abortAll()
	if err := unix.PidfdSendSignal(w.pidfd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		w.log.Printf("ending the file server: %v", err)
	}
	<-w.dead
}

func (w *watchdog) abortAll() {
	for _, m := range w.mounts {
		if err := abortControl(m.control); err != nil {
			w.log.Printf("%s: aborting: %v", m.ID, err)
		}
	}
}

// tell leaves a line for the daemon, this one or the next.
func (w *watchdog) tell(text string) {
	if w.notices == "" {
		return
	}
	f, err := os.OpenFile(w.notices, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		_, err = f.WriteString(text + "\n")
		f.Close()
	}
	if err != nil {
		w.log.Printf("%v", err)
	}
}

// grace is how long the daemon may take to clean up after a dead file server.
const grace = time.Second

// finish cleans up what nobody else does: the server is dead, and the daemon
// either sees to its mounts or is dead or stopped too.
func (w *watchdog) finish() {
	deadline := time.After(grace)
	for late := false; !late && !w.alone; { // what it said last may be on its way
		select {
		case o := <-w.orders:
			w.obey(o)
		case <-deadline:
			late = true
		}
	}
	w.abortAll()
	if !w.alone {
		return // it detaches the mounts when it can
	}
	for _, m := range w.mounts {
		if err := m.detach(); err != nil {
			w.log.Printf("%s: %v", m.ID, err)
		}
	}
}

// detach takes the mount away, unless there is another one by now.
func (m *watched) detach() error {
	there, err := findMount(m.Dir)
	if err != nil || there == nil || there.minor != m.Minor {
		return err
	}
	// The number is only given again when the connection is gone.
	if _, err := waiting(m.control); err != nil {
		return nil
	}
	return abort(m.Dir)
}
