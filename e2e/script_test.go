package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain puts a freshly built git-env first on PATH, which is where git looks
// for "git env".
func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "git-env-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := install(filepath.Join(dir, "git-env")); err != nil {
		fmt.Fprintln(os.Stderr, "cannot build git-env:", err)
		return 1
	}
	// runc and mount live in sbin, which is missing from some users' PATH.
	path := dir + ":" + os.Getenv("PATH") + ":/usr/local/sbin:/usr/sbin:/sbin"
	if err := os.Setenv("PATH", path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// install makes target the git-env to test.
func install(target string) error {
	if bin := os.Getenv("GIT_ENV_BIN"); bin != "" {
		bin, err := filepath.Abs(bin)
		if err != nil {
			return err
		}
		return os.Symlink(bin, target)
	}
	return build(target)
}

// build makes a git-env of this source tree.
func build(target string, flags ...string) error {
	args := append([]string{"build", "-buildvcs=false", "-o", target}, flags...)
	if os.Getenv("GOCOVERDIR") != "" {
		args = append(args, "-cover", "-coverpkg=../...")
	}
	cmd := exec.Command("go", append(args, "../cmd/git-env")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}

func TestScripts(t *testing.T) {
	h := newHarness(t)
	p := testscript.Params{
		Dir:                 "../testdata/script",
		Setup:               h.setup,
		Condition:           condition,
		Cmds:                verbs(),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	}
	if deadline, ok := t.Deadline(); ok {
		// The rest is for stopping daemons and reporting what leaked.
		p.Deadline = deadline.Add(-time.Minute)
	}
	testscript.RunT(quiet{t}, p)
}

// quiet is a testscript.T that keeps scripts from logging every command when
// go test runs with -v: there -v is for the progress lines alone.
type quiet struct{ *testing.T }

func (q quiet) Run(name string, f func(testscript.T)) {
	q.T.Run(name, func(t *testing.T) { f(quiet{t}) })
}

func (q quiet) Verbose() bool { return os.Getenv("GITENV_TEST_VERBOSE") != "" }

func (q quiet) Log(args ...any) {
	q.Helper()
	if q.Failed() || q.Verbose() {
		q.T.Log(args...)
	}
}

// TestScriptHouseRules keeps scripts readable: a phase line first, and short.
func TestScriptHouseRules(t *testing.T) {
	files, err := filepath.Glob("../testdata/script/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		text, _, _ := strings.Cut(string(data), "\n-- ")
		if !strings.HasPrefix(text, "# ") {
			t.Errorf("%s: the first line does not say what the script is about", filepath.Base(f))
		}
		if n := strings.Count(text, "\n"); n > 100 {
			t.Errorf("%s: %d lines; two scripts?", filepath.Base(f), n)
		}
	}
}
