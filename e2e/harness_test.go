package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// harness is what all scripts share: one registry on loopback.
type harness struct{ images images }

func newHarness(t *testing.T) *harness { return &harness{images: startRegistry(t)} }

// site is the ground one script stands on.
type site struct {
	// dir holds the home, data and runtime directories. Its path is short, since
	// sockets below it may have 107 bytes, and it is in the environment of all
	// that the script starts: by it a leaked process is recognised.
	dir  string
	work string   // testscript's $WORK
	env  []string // the script's environment, to stop daemons with
}

// siteKey finds the site in a script's values.
type siteKey struct{}

const gitconfig = `[user]
	name = Ada Tester
	email = ada@example.com
[init]
	defaultBranch = main
[advice]
	detachedHead = false
`

// setup gives a script its site and sees to it that nothing of it is left.
func (h *harness) setup(env *testscript.Env) error {
	dir, err := os.MkdirTemp("/tmp", "ge-")
	if err != nil {
		return err
	}
	s := &site{dir: dir, work: env.WorkDir}
	env.Values[siteKey{}] = s
	for _, sub := range []string{"home", "data", "run"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "home", ".gitconfig"), []byte(gitconfig), 0o644); err != nil {
		return err
	}
	for _, kv := range []string{
		"HOME=" + filepath.Join(dir, "home"),
		"XDG_DATA_HOME=" + filepath.Join(dir, "data"),
		"XDG_RUNTIME_DIR=" + filepath.Join(dir, "run"),
		"GIT_CONFIG_NOSYSTEM=1",
		"LC_ALL=C.UTF-8",
		"TZ=UTC",
		"REGISTRY=" + h.images.registry,
		"IMAGE=" + h.images.busybox,
		"FOREIGN_IMAGE=" + h.images.foreign,
	} {
		name, value, _ := strings.Cut(kv, "=")
		env.Setenv(name, value)
	}
	s.env = append([]string(nil), env.Vars...)
	tb, ok := env.T().(testing.TB)
	if !ok {
		return errors.New("testscript.T is no testing.TB")
	}
	env.Values[tbKey{}] = tb
	// Deferred functions run before testscript removes $WORK.
	env.Defer(func() { s.leave(tb) })
	return nil
}

// leave ends a script: stop the daemons, report what is left, remove it.
func (s *site) leave(tb testing.TB) {
	repos := s.repositories()
	if tb.Failed() {
		for _, common := range repos {
			tb.Logf("%s", tail(filepath.Join(common, "env", "daemon.log"), 8<<10))
		}
	}
	for _, common := range repos {
		if out, err := s.stopDaemon(common); err != nil {
			tb.Errorf("git env daemon stop --force in %s: %v\n%s", common, err, out)
		}
	}
	for _, l := range s.leaks(5 * time.Second) {
		tb.Errorf("leaked: %s", l)
	}
	if err := s.clean(); err != nil {
		tb.Errorf("cannot clean up: %v", err)
	}
}

// repositories lists the common directories below the script's reach in which
// git env keeps state.
func (s *site) repositories() []string {
	var found []string
	for _, root := range []string{s.work, filepath.Join(s.dir, "home")} {
		// Errors are not of interest here: what cannot be read has no daemon.
		_ = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return fs.SkipDir
			}
			if d.Name() != "env" || !d.IsDir() {
				return nil
			}
			common := filepath.Dir(name)
			if _, err := os.Stat(filepath.Join(common, "objects")); err == nil {
				found = append(found, common)
				return fs.SkipDir
			}
			return nil
		})
	}
	return found
}

// stopDaemon asks the daemon of a repository to leave; that none runs is fine.
func (s *site) stopDaemon(common string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", "--git-dir="+common, "env", "daemon", "stop", "--force")
	cmd.Env, cmd.Dir = s.env, s.dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// tail returns the last n bytes of a file, headed by its name.
func tail(name string, n int64) string {
	data, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	if cut := int64(len(data)) - n; cut > 0 {
		data = data[cut:]
	}
	return fmt.Sprintf("%s:\n%s", name, data)
}
