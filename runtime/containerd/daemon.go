package containerd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/runtime"
)

const (
	startTimeout = 10 * time.Second
	stopTimeout  = 5 * time.Second
	maxLog       = 4 << 20
)

// daemon is the private containerd of a data directory.
type daemon struct {
	dataDir, runDir string
	users           *os.File // shared flock: we use it
}

// openDaemon takes part in the use of the private containerd and brings it up.
func openDaemon(ctx context.Context, dataDir, runDir string) (*daemon, error) {
	d := &daemon{dataDir: dataDir, runDir: runDir}
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return nil, fmt.Errorf("prepare containerd: %w", err)
	}
	unlock, err := d.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := d.settleRunDir(); err != nil {
		return nil, fmt.Errorf("prepare containerd: %w", err)
	}
	d.users, err = os.OpenFile(filepath.Join(dataDir, "users"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("prepare containerd: %w", err)
	}
	if err := flock(ctx, d.users, unix.LOCK_SH); err != nil {
		d.users.Close()
		return nil, fmt.Errorf("prepare containerd: %w", err)
	}
	if err := d.startLocked(ctx); err != nil {
		d.users.Close()
		return nil, err
	}
	return d, nil
}

// settleRunDir decides on the run directory. One data directory has one daemon:
// when one is up elsewhere, started from a session with another environment, we
// join it there.
func (d *daemon) settleRunDir() error {
	note := filepath.Join(d.dataDir, "rundir")
	if data, err := os.ReadFile(note); err == nil {
		other := daemon{runDir: strings.TrimSpace(string(data))}
		if filepath.IsAbs(other.runDir) && listening(other.socket()) {
			d.runDir = other.runDir
		}
	}
	if len(d.socket()) >= maxSocketPath {
		return fmt.Errorf("path of the socket is too long: %s", d.socket())
	}
	for _, dir := range []string{d.runDir, d.ioDir(), d.boxDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return durable.WriteFile(note, []byte(d.runDir+"\n"), 0o600)
}

func (d *daemon) socket() string { return filepath.Join(d.runDir, "containerd.sock") }
func (d *daemon) ioDir() string  { return filepath.Join(d.runDir, "io") }
func (d *daemon) boxDir() string { return filepath.Join(d.runDir, "box") }

// ensure brings the daemon up again when it has died.
func (d *daemon) ensure(ctx context.Context) error {
	if listening(d.socket()) {
		return nil
	}
	unlock, err := d.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return d.startLocked(ctx)
}

// close gives up the use of the daemon and stops it when nobody else has it.
func (d *daemon) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	unlock, err := d.lock(ctx)
	if err != nil {
		d.users.Close()
		return err
	}
	defer unlock()
	defer d.users.Close()
	// Converting a shared lock is refused while anybody else holds it.
	if err := unix.Flock(int(d.users.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil
	}
	return d.stopLocked(ctx)
}

// lock serialises starting and stopping among all processes.
func (d *daemon) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(d.dataDir, "start.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock containerd: %w", err)
	}
	if err := flock(ctx, f, unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock containerd: %w", err)
	}
	return func() { f.Close() }, nil
}

// flock waits for a lock as long as ctx lasts. Holders keep it for milliseconds.
func flock(ctx context.Context, f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil || (!errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR)) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// listening reports whether somebody accepts connections on a unix socket.
func listening(socket string) bool {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// startLocked starts containerd unless it answers, and waits until it does.
func (d *daemon) startLocked(ctx context.Context) error {
	if listening(d.socket()) {
		return nil
	}
	if err := requirements(); err != nil {
		return err
	}
	if err := os.MkdirAll(d.runDir, 0o700); err != nil { // a reboot of the run directory alone
		return fmt.Errorf("configure containerd: %w", err)
	}
	bin, _ := lookPath("containerd")
	config := filepath.Join(d.runDir, "config.toml")
	if err := os.WriteFile(config, []byte(d.config()), 0o600); err != nil {
		return fmt.Errorf("configure containerd: %w", err)
	}
	log, err := d.openLog()
	if err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	defer log.Close()
	// A socket that nobody listens on would make connecting fail until replaced.
	for _, stale := range []string{d.socket(), d.socket() + ".ttrpc"} {
		if err := os.Remove(stale); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("start containerd: %w", err)
		}
	}
	cmd := exec.Command(bin, "--config", config)
	cmd.Dir = "/"
	cmd.Env = daemonEnv(d.runDir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	died := make(chan struct{})
	go func() { // reaps it whenever it ends
		defer close(died)
		_ = cmd.Wait()
	}()
	return d.awaitReady(ctx, cmd, died)
}

// awaitReady waits until the socket answers, the process dies or time is up.
func (d *daemon) awaitReady(ctx context.Context, cmd *exec.Cmd, died <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-died:
			return fmt.Errorf("containerd ended while starting: %s", d.lastError())
		case <-ctx.Done():
			_ = cmd.Process.Kill()
			<-died
			return fmt.Errorf("containerd did not come up: %w", context.Cause(ctx))
		case <-tick.C:
			if listening(d.socket()) {
				return nil
			}
		}
	}
}

// stopLocked ends whoever listens on the socket.
func (d *daemon) stopLocked(ctx context.Context) error {
	pid, err := peerPid(d.socket())
	if err != nil {
		return nil // nobody there
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
		return nil
	}
	if !awaitPidfd(ctx, fd, stopTimeout) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		if !awaitPidfd(ctx, fd, stopTimeout) {
			return fmt.Errorf("containerd (pid %d) does not end", pid)
		}
	}
	removeCgroupParents()
	for _, name := range []string{"containerd.sock", "containerd.sock.ttrpc", "config.toml", "io", "box", "l", "runc"} {
		_ = os.Remove(filepath.Join(d.runDir, name)) // directories only when empty
	}
	return nil
}

// peerPid is the process that listens on a unix socket.
func peerPid(socket string) (int, error) {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	return int(cred.Pid), nil
}

// daemonEnv is the user's environment with a PATH that has the sbin directories:
// containerd looks for the shim there, and the shim for runc. What the shim passes
// to runc, the variables of a command among it, is for a moment in a file in the
// runtime directory, else in /tmp: ours is to be in memory.
func daemonEnv(runDir string) []string {
	env := make([]string, 0, 16)
	path := ""
	for _, kv := range os.Environ() {
		key, value, _ := strings.Cut(kv, "=")
		switch {
		case key == "PATH":
			path = value
		case key == "XDG_RUNTIME_DIR", key == "NOTIFY_SOCKET", key == "LISTEN_FDS", key == "LISTEN_PID",
			strings.HasPrefix(key, "GIT_"), strings.HasPrefix(key, "OTEL_"):
		default:
			env = append(env, kv)
		}
	}
	dirs := filepath.SplitList(path)
	for _, dir := range binDirs {
		dirs = append(dirs, dir)
	}
	return append(env, "XDG_RUNTIME_DIR="+runDir, "PATH="+strings.Join(dirs, string(os.PathListSeparator)))
}

func (d *daemon) logPath() string { return filepath.Join(d.runDir, "containerd.log") }

func (d *daemon) openLog() (*os.File, error) {
	flags := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if info, err := os.Stat(d.logPath()); err == nil && info.Size() > maxLog {
		flags |= os.O_TRUNC
	}
	return os.OpenFile(d.logPath(), flags, 0o600)
}

// lastError is the last line of the log that speaks of an error.
func (d *daemon) lastError() string {
	f, err := os.Open(d.logPath())
	if err != nil {
		return "no log"
	}
	defer f.Close()
	last := "see " + d.logPath()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if line := lines.Text(); strings.Contains(line, "level=fatal") || strings.HasPrefix(line, "containerd: ") {
			last = line
		}
	}
	return last
}

// missingSocket is the error for an existing containerd that is not there.
func missingSocket(socket string) error {
	return &runtime.MissingError{What: "containerd", Detail: "nobody answers on " + socket}
}
