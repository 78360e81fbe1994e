package fusefs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Processes that append to one file at the same time overwrite nothing of each
// other.
func TestAppendOfMany(t *testing.T) {
	const procs, lines = 4, 300
	everywhere(t, map[string]string{"f": "first\n"}, func(t *testing.T, dir string) {
		var cmds []*exec.Cmd
		for i := range procs {
			cmd := exec.Command("sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo \"process %d line $i.\"; i=$((i+1)); done >>f", lines, i))
			cmd.Dir = dir
			must(t, cmd.Start())
			cmds = append(cmds, cmd)
		}
		for _, cmd := range cmds {
			must(t, cmd.Wait())
		}
		b, err := os.ReadFile(filepath.Join(dir, "f"))
		must(t, err)
		got := map[string]int{}
		for _, line := range strings.SplitAfter(string(b), "\n") {
			got[line]++
		}
		if len(got) != procs*lines+2 { // the first, and nothing after the last
			t.Errorf("%d different lines", len(got))
		}
		for i := range procs {
			for j := range lines {
				if line := fmt.Sprintf("process %d line %d.\n", i, j); got[line] != 1 {
					t.Fatalf("%d times %q", got[line], line)
				}
			}
		}
	})
}

// Programs run from the workspace, and one that runs cannot be written, nor one
// that is open for writing be run.
func TestPrograms(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	must(t, err)
	program, err := os.ReadFile(sleep)
	must(t, err)
	everywhere(t, map[string]string{"sleep": string(program), "script": "#!/bin/sh\nexit 7\n"}, func(t *testing.T, dir string) {
		path := filepath.Join(dir, "sleep")
		must(t, os.Chmod(path, 0o755))
		for _, when := range []string{"as it is", "after it was changed"} {
			cmd := exec.Command(path, "1000")
			must(t, cmd.Start()) // returns when it was executed
			for what, err := range map[string]error{
				"opening for writing": openClose(path, unix.O_WRONLY, nil),
				"truncating on open":  openClose(path, unix.O_WRONLY|unix.O_TRUNC, nil),
				"truncating":          unix.Truncate(path, 0),
			} {
				if !errors.Is(err, unix.ETXTBSY) {
					t.Errorf("%s: %s what runs: %v", when, what, err)
				}
			}
			must(t, cmd.Process.Kill())
			_ = cmd.Wait() // says that it was killed
			must(t, withFile(path, func(fd int) error {
				if err := exec.Command(path, "0").Run(); !errors.Is(err, unix.ETXTBSY) {
					t.Errorf("%s: running what is open for writing: %v", when, err)
				}
				_, err := unix.Pwrite(fd, []byte("more"), int64(len(program)))
				return err
			}))
			if out, err := exec.Command(path, "0").CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", when, err, out)
			}
		}
		var exit *exec.ExitError
		if err := exec.Command(filepath.Join(dir, "script")).Run(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
			t.Errorf("the script: %v", err)
		}
		must(t, os.Chmod(path, 0o644))
		if err := exec.Command(path, "0").Run(); !errors.Is(err, unix.EACCES) {
			t.Errorf("running what is not executable: %v", err)
		}
	})
}
