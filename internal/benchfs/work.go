package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// place is what work on a tree needs to know; the tree is the working directory.
type place struct {
	scratch string // files that are not in the tree
	size    int64  // bytes of the large file
}

// workMain is "benchfs work": one phase of one workload in the working
// directory. It prints the seconds of each repetition as JSON.
func workMain(args []string) int {
	var p place
	var phase string
	f := flag.NewFlagSet("work", flag.ContinueOnError)
	f.StringVar(&p.scratch, "scratch", "", "")
	f.Int64Var(&p.size, "bytes", 1<<30, "")
	f.StringVar(&phase, "phase", "run", "")
	if err := f.Parse(args); err != nil || f.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: benchfs work [-scratch dir] [-bytes n] [-phase prepare|run] <workload>")
		return 129
	}
	for _, w := range workloads() {
		if w.name != f.Arg(0) {
			continue
		}
		took, err := w.do(p, phase)
		if err != nil {
			fmt.Fprintln(os.Stderr, "fatal:", err)
			return 1
		}
		if err := json.NewEncoder(os.Stdout).Encode(took); err != nil {
			return 1
		}
		return 0
	}
	fmt.Fprintln(os.Stderr, "fatal: no such workload")
	return 1
}

// do runs one phase and returns the seconds of each repetition.
func (w workload) do(p place, phase string) ([]float64, error) {
	// New files go where git does not look.
	if err := os.MkdirAll("out", 0o755); err != nil {
		return nil, err
	}
	if phase == "prepare" {
		if w.prepare == nil {
			return nil, nil
		}
		return nil, w.prepare(p)
	}
	if w.warm {
		if err := w.run(p); err != nil {
			return nil, err
		}
	}
	var took []float64
	for range max(w.repeat, 1) {
		start := time.Now()
		if err := w.run(p); err != nil {
			return nil, err
		}
		took = append(took, time.Since(start).Seconds())
	}
	return took, nil
}

// shell runs a line; its output goes nowhere, as a file system has no part in it.
func shell(line string, env ...string) error {
	return program(env, "sh", "-c", line)
}

func program(env []string, args ...string) error {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, tail(said.String()))
	}
	return nil
}

// evict drops the pages of all files below dir from the page cache.
func evict(dir string) error {
	return walk(dir, func(name string) error {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		const dontNeed = 4 // POSIX_FADV_DONTNEED
		if _, _, e := syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), 0, 0, dontNeed, 0, 0); e != 0 {
			return e
		}
		return nil
	})
}
