package fusefs

import (
	"log"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dog keeps a watchdog running beside a file server. It is safe for concurrent
// use; all methods of a nil dog do nothing.
type dog struct {
	exe     string
	args    []string
	stderr  *os.File // nil for none
	log     *log.Logger
	pidfd   *os.File // of the file server
	health  *os.File // the watchdog's end
	stop    chan struct{}
	stopped sync.WaitGroup
	begin   sync.Once

	mu     sync.Mutex
	conn   *conn               // guarded by mu: to the one that runs, or nil
	mounts map[string]*guarded // guarded by mu
	pid    int                 // guarded by mu: of the one that runs
}

// guarded is a mount that the watchdog knows or is to know.
type guarded struct {
	order
	control *os.File
}

// newDog makes a dog for a file server whose process is pid. It starts with
// the first mount. health is its own from then on.
func newDog(o ServerOptions, pid int, health *os.File, logger *log.Logger) (*dog, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	d := &dog{
		exe: o.Exe, args: []string{"watchdog", "--after", o.Watchdog.String(), "--notices", o.Notices},
		log: logger, pidfd: os.NewFile(uintptr(fd), "pidfd"), health: health,
		stop: make(chan struct{}), mounts: map[string]*guarded{},
	}
	if o.Log != nil {
		// The caller's is not ours to keep.
		fd, err := unix.FcntlInt(o.Log.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			d.pidfd.Close()
			return nil, os.NewSyscallError("fcntl", err)
		}
		d.stderr = os.NewFile(uintptr(fd), "log")
	}
	return d, nil
}

// add makes the watchdog look after a mount. control stays open until remove or
// close.
func (d *dog) add(o order, control *os.File) {
	if d == nil {
		return
	}
	o.Add = true
	d.mu.Lock()
	d.mounts[o.ID] = &guarded{order: o, control: control}
	d.send(o, control)
	d.mu.Unlock()
	d.begin.Do(func() {
		d.stopped.Add(1)
		go d.keep()
	})
}

// remove says that a mount is gone.
func (d *dog) remove(id string) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mounts[id] != nil {
		delete(d.mounts, id)
		d.send(order{ID: id}, nil)
	}
}

// send passes an order on. mu is held. One that is lost finds its way with the
// next watchdog.
func (d *dog) send(o order, control *os.File) {
	if d.conn != nil {
		_ = d.conn.send(o, control)
	}
}

// close lets the watchdog finish: the server is dead. It does not wait for
// long.
func (d *dog) close() {
	if d == nil {
		return
	}
	close(d.stop)
	d.mu.Lock()
	if d.conn != nil {
		d.conn.Close()
	}
	d.mu.Unlock()
	d.stopped.Wait()
	d.pidfd.Close()
	d.health.Close()
	if d.stderr != nil {
		d.stderr.Close()
	}
}

// pause is how long to wait before a watchdog that died is started again.
const pause = time.Second

// keep has a watchdog run until close.
func (d *dog) keep() {
	defer d.stopped.Done()
	for {
		cmd, err := d.start()
		if err == nil {
			d.await(cmd)
		}
		select {
		case <-d.stop:
			return
		default:
		}
		d.log.Printf("the watchdog ended, starting another one: %v", err)
		select {
		case <-d.stop:
			return
		case <-time.After(pause):
		}
	}
}

// await waits for the end of a watchdog: a moment only once it has to go.
func (d *dog) await(cmd *exec.Cmd) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	select {
	case <-ended:
	case <-d.stop:
		select {
		case <-ended:
		case <-time.After(2 * grace):
			_ = cmd.Process.Kill()
			<-ended
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != nil {
		d.conn.Close()
		d.conn = nil
	}
	d.pid = 0
}

func (d *dog) start() (*exec.Cmd, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "watchdog"), os.NewFile(uintptr(fds[1]), "watchdog")
	defer ours.Close()
	defer theirs.Close()
	c, err := newConn(ours)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(d.exe, d.args...)
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{theirs, d.pidfd, d.health}
	if d.stderr != nil {
		cmd.Stdout, cmd.Stderr = d.stderr, d.stderr
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		c.Close()
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conn, d.pid = c, cmd.Process.Pid
	for _, g := range d.mounts {
		d.send(g.order, g.control)
	}
	select {
	case <-d.stop:
		c.Close()
	default:
	}
	return cmd, nil
}
