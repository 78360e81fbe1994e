package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/internal/gitcmd"
)

// paged calls write with standard output, or with git's pager when that is a
// terminal. environ is what git is to be run with meanwhile. A pager that is
// left early is no error.
func (a *app) paged(ctx context.Context, write func(out io.Writer, environ []string) error) error {
	environ := a.repo.Environ(a.environ)
	pager := a.pager(ctx)
	if pager == "" {
		return quiet(write(a.stdout, environ))
	}
	for name, def := range map[string]string{"LESS": "FRX", "LV": "-c"} {
		if a.getenv(name) == "" {
			environ = append(environ, name+"="+def)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := exec.Command("sh", "-c", pager)
	cmd.Env = environ
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r, a.stdout, a.stderr
	err = cmd.Start()
	_ = r.Close()
	if err != nil {
		_ = w.Close()
		return environment.Errorf(environment.ExitFailed, "cannot run the pager '%s': %w", pager, err)
	}
	// git colours what it writes into this pipe as it would on a terminal.
	werr := write(w, append(environ, "GIT_PAGER_IN_USE=true"))
	_ = w.Close()
	_ = cmd.Wait()
	return quiet(werr)
}

func quiet(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return exitStatus(128 + int(syscall.SIGPIPE))
	}
	return err
}

// pager returns the pager's command line, "" for none: the one git would use
// for its own log.
func (a *app) pager(ctx context.Context) string {
	if !isTerminal(a.stdout) {
		return ""
	}
	ask := func(args ...string) string {
		cmd := gitcmd.UserCommand(ctx, a.repo.Environ(a.environ), a.workDir(), args...)
		cmd.Stderr = nil
		out, err := cmd.Output()
		if err != nil {
			return ""
		}
		return strings.TrimSuffix(string(out), "\n")
	}
	switch v := ask("config", "--type=bool-or-str", "pager.log"); v {
	case "false":
		return ""
	case "", "true":
	default:
		return v
	}
	pager := ask("var", "GIT_PAGER")
	if pager == "cat" {
		return ""
	}
	return pager
}

// workDir is where the user's git commands run: the user's own directory, seen
// from the top of the work tree when an alias or a hook moved there.
func (a *app) workDir() string {
	if a.repo.WorkTree == "" {
		return a.dir
	}
	return a.repo.WorkTree + "/" + a.repo.Prefix
}

// git runs the user's git and writes its output to out.
func (a *app) git(ctx context.Context, out io.Writer, environ []string, args ...string) error {
	cmd := gitcmd.UserCommand(ctx, environ, a.workDir(), args...)
	var msg bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &msg
	err := cmd.Run()
	if err == nil {
		return nil
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() && ws.Signal() == syscall.SIGPIPE {
			return syscall.EPIPE
		}
		text := strings.TrimPrefix(strings.TrimSpace(msg.String()), "fatal: ")
		return environment.Errorf(environment.ExitFailed, "git %s: %s", args[0], text)
	}
	return err
}
