package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/internal/gitcmd"
)

// readyFd is where the starter of the daemon listens for the word that it is
// ready, or why not.
const readyFd = 3

// lockTimeout bounds the wait for a daemon that is on its way out.
const lockTimeout = 20 * time.Second

// Main is the body of the hidden command "git-env daemon serve <common-dir>".
// It returns the process's exit code.
func Main(args []string) int {
	ready := os.NewFile(readyFd, "ready")
	syscall.CloseOnExec(readyFd)
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "fatal: usage: git-env daemon serve <git-common-dir>")
		return environment.ExitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	s, err := open(ctx, args[0], log)
	if err != nil {
		tell(ready, err)
		log.Error("cannot start", "err", err)
		return environment.ExitCode(err)
	}
	if ready != nil {
		_, _ = ready.WriteString("ready\n")
		_ = ready.Close()
	}
	log.Info("ready", "pid", os.Getpid())
	s.serve(ctx)
	if err := s.close(); err != nil {
		log.Error("cannot leave cleanly", "err", err)
		return environment.ExitFailed
	}
	log.Info("left")
	return environment.ExitOK
}

func tell(ready *os.File, err error) {
	if ready == nil {
		return
	}
	data, merr := json.Marshal(failure(err))
	if merr == nil {
		_, _ = ready.Write(data)
	}
	_ = ready.Close()
}

// open takes the lock, recovers what an earlier daemon left, and listens.
func open(ctx context.Context, common string, log *slog.Logger) (_ *server, err error) {
	repo, err := gitcmd.Discover(ctx, common, []string{"GIT_DIR=" + common})
	if err != nil {
		return nil, &environment.Error{Code: environment.ExitRepository, Msg: err.Error(), Err: err}
	}
	dir := filepath.Join(repo.CommonDir, "env")
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// One that is leaving has the lock until all is put away.
	wait, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	lock, err := durable.Lock(wait, filepath.Join(dir, "daemon.lock"))
	if err != nil {
		return nil, environment.Errorf(environment.ExitBusy, "another daemon serves this repository: %w", err)
	}
	defer func() {
		if err != nil {
			_ = lock.Close()
		}
	}()
	store, err := environment.OpenStore(ctx, repo)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	engine, err := environment.OpenEngine(ctx, store, environment.EngineOptions{Exe: exe, Log: log})
	if err != nil {
		_ = store.Close()
		return nil, err
	}
	l, err := listen(dir)
	if err != nil {
		_ = engine.Close()
		return nil, environment.Errorf(environment.ExitFailed, "cannot listen on %s: %w", filepath.Join(dir, "daemon.sock"), err)
	}
	return &server{engine: engine, lock: lock, l: l, log: log, started: time.Now(), quit: make(chan struct{}), dir: dir}, nil
}

// listen binds the socket in dir, through a descriptor of dir because an address
// holds 107 bytes at most. The lock is held, so a socket that is there is dead.
func listen(dir string) (*net.UnixListener, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := os.Remove(filepath.Join(dir, "daemon.sock")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "/proc/self/fd/" + strconv.Itoa(fd) + "/daemon.sock", Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the descriptor's number will mean something else by then
	return l, os.Chmod(filepath.Join(dir, "daemon.sock"), 0o600)
}
