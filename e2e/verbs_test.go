package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

type verb = func(ts *testscript.TestScript, neg bool, args []string)

// verbs are the commands that scripts have beyond testscript's; README.md beside
// the scripts describes them.
func verbs() map[string]verb {
	return map[string]verb{
		"needs":    needs,
		"mkrepo":   mkrepo,
		"exitcode": exitcode,
		"capture":  capture,
		"kill9":    kill9,
		"running":  running,
		"ends":     ends,
		"mounted":  mounted,
		"lines":    lines,

		"documented":   documented,
		"otherversion": otherversion,
		"machines":     machines,
	}
}

func siteOf(ts *testscript.TestScript) *site { return ts.Value(siteKey{}).(*site) }

func plain(ts *testscript.TestScript, verb string, neg bool) {
	if neg {
		ts.Fatalf("%s has no negation", verb)
	}
}

// needs ends the script early where the host lacks a capability.
func needs(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, "needs", neg)
	for _, name := range args {
		why, err := lacks(name)
		ts.Check(err)
		if why == "" {
			continue
		}
		if required() {
			ts.Fatalf("the host lacks %s: %s", name, why)
		}
		siteTB(ts).Skipf("the host lacks %s: %s", name, why)
	}
}

// mkrepo <dir> makes a repository of what the archive put there, all of it in
// one commit; an empty one gets a README.
func mkrepo(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, "mkrepo", neg)
	if len(args) != 1 {
		ts.Fatalf("usage: mkrepo dir")
	}
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o777))
	entries, err := os.ReadDir(dir)
	ts.Check(err)
	if len(entries) == 0 {
		ts.Check(os.WriteFile(filepath.Join(dir, "README"), []byte("A project.\n"), 0o666))
	}
	for _, a := range [][]string{{"init", "-q"}, {"add", "-A"}, {"commit", "-q", "-m", "Start"}} {
		ts.Check(ts.Exec("git", append([]string{"-C", dir}, a...)...))
	}
}

// exitcode <n> <command> [args…] runs a command that must exit with n.
func exitcode(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, "exitcode", neg)
	if len(args) < 2 {
		ts.Fatalf("usage: exitcode n command [args...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		if got = exit.ExitCode(); got < 0 {
			ts.Fatalf("%v", err)
		}
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// capture <name> keeps the stdout of the last command, less trailing newlines,
// as an environment variable.
func capture(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, "capture", neg)
	if len(args) != 1 {
		ts.Fatalf("usage: capture NAME")
	}
	ts.Setenv(args[0], strings.TrimRight(ts.ReadFile("stdout"), "\n"))
}

// kill9 <role>… kills processes of the script's own daemon family and waits
// until they are gone.
func kill9(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, "kill9", neg)
	// All are found before the first is killed: some end with one another.
	var all []process
	for _, role := range args {
		found := withRole(ts, role)
		if len(found) == 0 {
			ts.Fatalf("no %s is running", role)
		}
		all = append(all, found...)
	}
	for _, p := range all {
		ts.Logf("kill -9 %v", p)
		if err := syscall.Kill(p.pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
			ts.Check(err)
		}
	}
	for _, p := range all {
		waitExit(p.pid, 10*time.Second)
	}
}

// running <role> asserts that such a process runs.
func running(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: [!] running role")
	}
	found := withRole(ts, args[0])
	if neg && len(found) > 0 {
		ts.Fatalf("running: %v", found)
	}
	if !neg && len(found) == 0 {
		ts.Fatalf("no %s is running", args[0])
	}
}

// ends <role>… waits until such processes have left by themselves.
func ends(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, "ends", neg)
	deadline := time.Now().Add(30 * time.Second)
	for _, role := range args {
		for found := withRole(ts, role); len(found) > 0; found = withRole(ts, role) {
			if time.Now().After(deadline) {
				ts.Fatalf("still running: %v", found)
			}
			waitExit(found[0].pid, time.Until(deadline))
		}
	}
}

func withRole(ts *testscript.TestScript, role string) []process {
	if !slices.Contains([]string{"daemon", "fusefs", "watchdog", "containerd", "shim"}, role) {
		ts.Fatalf("unknown role %q", role)
	}
	var out []process
	for _, p := range siteOf(ts).processes() {
		if p.role() == role {
			out = append(out, p)
		}
	}
	return out
}

// mounted <dir> asserts that something is mounted at dir; without an argument,
// that the script has any mount.
func mounted(ts *testscript.TestScript, neg bool, args []string) {
	all := siteOf(ts).mounts()
	is := len(all) > 0
	if len(args) > 0 {
		is = slices.Contains(all, ts.MkAbs(args[0]))
	}
	if is == neg {
		ts.Fatalf("mounted: %v (all: %q)", is, all)
	}
}

// lines <n> [file] asserts the number of lines, of the last stdout by default.
func lines(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, "lines", neg)
	if len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: lines n [file]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	name := "stdout"
	if len(args) == 2 {
		name = args[1]
	}
	if got := strings.Count(ts.ReadFile(name), "\n"); got != want {
		ts.Fatalf("%s has %d lines, want %d", name, got, want)
	}
}

// otherversion builds a git-env that calls itself another version, as $OTHER.
func otherversion(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, "otherversion", neg)
	bin := filepath.Join(siteOf(ts).dir, "git-env")
	ts.Check(build(bin, "-ldflags=-X github.com/git-env/git-env/internal/version.stamped=v0.0.1-other"))
	ts.Setenv("OTHER", bin)
}

// condition answers [root], [fuse] and [containerd]. Where everything is
// required, a false one is an error: the phase it guards would go untested.
func condition(name string) (bool, error) {
	why, err := lacks(name)
	if err != nil || why == "" {
		return err == nil, err
	}
	if required() {
		return false, fmt.Errorf("the host lacks %s: %s", name, why)
	}
	return false, nil
}
