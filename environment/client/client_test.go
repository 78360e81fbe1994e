package client_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/environment/client"
	"github.com/git-env/git-env/environment/daemon"
	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/version"
	"github.com/git-env/git-env/internal/wire"
)

// The test binary is also the daemon.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "daemon" {
		os.Exit(daemon.Main(os.Args[3:]))
	}
	os.Exit(m.Run())
}

func needRoot(t *testing.T) {
	t.Helper()
	if err := environment.CheckRoot(); err != nil {
		if os.Getenv("GITENV_TEST_REQUIRE") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func repository(t *testing.T) *gitcmd.Repo {
	t.Helper()
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_DATA_HOME", filepath.Join(home, "data"))
	if out, err := exec.Command("git", "init", "-q", filepath.Join(home, "r")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	repo, err := gitcmd.Discover(t.Context(), filepath.Join(home, "r"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

func options(t *testing.T) client.Options {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return client.Options{Exe: exe, Start: true}
}

func status(ctx context.Context, repo *gitcmd.Repo, o client.Options) (*api.DaemonStatus, error) {
	c, err := client.Dial(ctx, repo, o)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	st := &api.DaemonStatus{}
	return st, c.Call(ctx, api.MethodDaemonStatus, struct{}{}, st, client.Events{})
}

func stop(t *testing.T, repo *gitcmd.Repo) {
	t.Helper()
	c, err := client.Dial(t.Context(), repo, client.Options{})
	if errors.Is(err, client.ErrNoDaemon) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Call(t.Context(), api.MethodDaemonStop, api.DaemonStop{Force: true}, nil, client.Events{}); err != nil {
		t.Error(err)
	}
	for range 500 { // its directory is removed next
		if _, err := os.Stat(filepath.Join(repo.CommonDir, "env/daemon.sock")); errors.Is(err, os.ErrNotExist) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the daemon stays")
}

// TestStartRace: of clients that come at once one starts the daemon, and those
// that come while it leaves get the next one.
func TestStartRace(t *testing.T) {
	needRoot(t)
	repo, o := repository(t), options(t)
	for range 3 {
		var wg sync.WaitGroup
		var mu sync.Mutex
		pids := map[int]bool{}
		for range 8 {
			wg.Go(func() {
				st, err := status(t.Context(), repo, o)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				pids[st.Pid] = true
				mu.Unlock()
			})
		}
		wg.Wait()
		if len(pids) != 1 {
			t.Errorf("daemons: %v", pids)
		}
		wg.Go(func() { stop(t, repo) })
		wg.Wait()
	}
}

// TestIdle: a daemon that leaves for idleness drops nobody.
func TestIdle(t *testing.T) {
	needRoot(t)
	repo, o := repository(t), options(t)
	if out, err := exec.Command("git", "-C", repo.WorkTree, "config", "env.idleTimeout", "60ms").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	defer stop(t, repo)
	for i := range 12 {
		if _, err := status(t.Context(), repo, o); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(40+10*i) * time.Millisecond)
	}
}

// fake listens as a daemon that answers with f.
func fake(t *testing.T, repo *gitcmd.Repo, f func(*wire.Conn)) {
	t.Helper()
	dir := filepath.Join(repo.CommonDir, "env")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "daemon.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f(wire.New(c))
		}
	}()
}

func hello(c *wire.Conn, v string) {
	_ = c.SendJSON(wire.Hello, wire.HelloMsg{Protocol: wire.Protocol, Version: v})
	_, _, _ = c.Recv()
}

// TestOtherVersion: a daemon of another version that is busy is not replaced, and
// one that says nothing does not hold up a caller who gives up.
func TestOtherVersion(t *testing.T) {
	needRoot(t)
	repo, o := repository(t), options(t)
	fake(t, repo, func(c *wire.Conn) {
		hello(c, "0.0.0-other")
		_, _, _ = c.Recv()
		_ = c.SendJSON(wire.Failure, wire.FailureMsg{Code: environment.ExitBusy, Msg: "1 exec(s) are running"})
	})
	_, err := status(t.Context(), repo, o)
	if environment.ExitCode(err) != environment.ExitBusy || !strings.Contains(err.Error(), "0.0.0-other") {
		t.Error(err)
	}
	mute := repository(t)
	fake(t, mute, func(c *wire.Conn) {
		hello(c, "0.0.0-other")
		_, _, _ = c.Recv()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := status(ctx, mute, o); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// TestStdinWindow: no more stdin is sent than was asked for, and all of it when
// it is.
func TestStdinWindow(t *testing.T) {
	repo := repository(t)
	const total = 3*wire.StdinWindow + 17
	got := make(chan int, 1)
	fake(t, repo, func(c *wire.Conn) {
		hello(c, version.String())
		_, _, _ = c.Recv()
		sum, ahead := 0, 0
		for {
			typ, data, err := c.Recv()
			if err != nil || typ == wire.StdinEOF {
				break
			}
			sum, ahead = sum+len(data), ahead+len(data)
			if ahead > wire.StdinWindow {
				sum = -1
				break
			}
			if ahead > wire.StdinWindow/2 {
				_ = c.Send(wire.StdinAck, []byte{byte(ahead >> 24), byte(ahead >> 16), byte(ahead >> 8), byte(ahead)})
				ahead = 0
			}
		}
		got <- sum
		_ = c.SendJSON(wire.Result, api.Ran{Exit: 3})
	})
	c, err := client.Dial(t.Context(), repo, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ran, err := c.Run(t.Context(), api.Run{}, strings.NewReader(strings.Repeat("x", total)), nil, nil, nil, client.Events{})
	if err != nil || ran.Exit != 3 {
		t.Errorf("%+v, %v", ran, err)
	}
	if n := <-got; n != total {
		t.Errorf("got %d of %d bytes", n, total)
	}
}
