package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// command is a program to run to its end.
type command struct {
	dir   string
	env   []string // added to the environment
	stdin io.Reader
	args  []string
}

// output runs c in a process group of its own, so that an interrupt at the
// terminal reaches only this program, which then decides what ends when. Its
// error has what the program said.
func (c command) output(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Dir, cmd.Stdin = c.dir, c.stdin
	cmd.Env = append(outerEnv(), c.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(c.args, " "), err, tail(said.String()))
	}
	return out.String(), nil
}

// outerEnv is our environment without what git and git env would read of it.
func outerEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "GIT_") || strings.HasPrefix(v, "XDG_")
	})
}

// run is output for a program whose output nobody wants.
func run(ctx context.Context, args ...string) error {
	_, err := command{args: args}.output(ctx)
	return err
}

// tail is the end of what a program said, on one line.
func tail(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 600 {
		s = "…" + s[len(s)-600:]
	}
	return s
}
