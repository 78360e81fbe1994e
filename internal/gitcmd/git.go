package gitcmd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// maxStderr bounds what is kept of a command's standard error, in bytes.
	maxStderr = 64 << 10
	// killDelay is how long a cancelled git may take to remove its lock files.
	killDelay = 5 * time.Second
)

// Git runs git on one git directory. It is immutable and safe for concurrent
// use.
type Git struct {
	gitDir    string
	workTree  string
	env       []string
	allowFile bool
	magic     bool
}

// New returns a Git for a git directory. A relative path is taken against the
// current directory. The process's environment is read once, now.
func New(gitDir string) *Git {
	if abs, err := filepath.Abs(gitDir); err == nil {
		gitDir = abs
	}
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "GIT_") && !strings.HasPrefix(kv, "GIT_CONFIG_NOSYSTEM=") ||
			strings.HasPrefix(kv, "LC_ALL=") || strings.HasPrefix(kv, "LANGUAGE=")
	})
	env = append(env, "LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0")
	return &Git{gitDir: gitDir, env: env}
}

// WithEnv returns a copy with more environment variables, each KEY=value; they
// win over what is there.
func (g *Git) WithEnv(kv ...string) *Git {
	c := *g
	c.env = slices.Concat(g.env, kv)
	return &c
}

// WithWorkTree returns a copy that works on files in dir and runs there. The
// directory must not be in a mount that this process serves.
func (g *Git) WithWorkTree(dir string) *Git {
	c := g.WithEnv("GIT_WORK_TREE=" + dir)
	c.workTree = dir
	return c
}

// WithFileProtocol returns a copy that may fetch from, push to and clone local
// repositories, which is refused otherwise.
func (g *Git) WithFileProtocol() *Git {
	c := *g
	c.allowFile = true
	return &c
}

// WithPathspecMagic returns a copy that leaves pathspecs as they are, for the few
// commands that refuse to take them literally and have none of ours.
func (g *Git) WithPathspecMagic() *Git {
	c := *g
	c.magic = true
	return &c
}

// GitDir returns the absolute git directory.
func (g *Git) GitDir() string { return g.gitDir }

// Command returns git with these arguments, for callers that stream. A
// cancelled context asks git to end, so that it removes its lock files, and
// kills it only when it does not.
func (g *Git) Command(ctx context.Context, args ...string) *exec.Cmd {
	file := "protocol.file.allow=never"
	if g.allowFile {
		file = "protocol.file.allow=always"
	}
	full := []string{
		"--git-dir=" + g.gitDir,
		"--no-pager",
		"-c", "core.hooksPath=/dev/null",
		"-c", "core.fsmonitor=false",
		"-c", "gc.auto=0",
		"-c", "maintenance.auto=false",
		"-c", file,
	}
	if !g.magic {
		full = append(full, "--literal-pathspecs")
	}
	full = append(full, args...)
	cmd := command(ctx, full)
	cmd.Env = slices.Clip(g.env) // appending must not reach ours
	// Never the caller's directory: it may be in a mount that depends on us.
	cmd.Dir = g.gitDir
	if g.workTree != "" {
		cmd.Dir = g.workTree
	}
	return cmd
}

// Output runs git to its end and returns its standard output. stdin may be nil.
// A failure is a *Error.
func (g *Git) Output(ctx context.Context, stdin io.Reader, args ...string) ([]byte, error) {
	cmd := g.Command(ctx, args...)
	cmd.Stdin = stdin
	return output(ctx, cmd, args)
}

// Line is Output without a standard input, for commands that print one line;
// the trailing newline is cut.
func (g *Git) Line(ctx context.Context, args ...string) (string, error) {
	out, err := g.Output(ctx, nil, args...)
	return strings.TrimSuffix(string(out), "\n"), err
}

func command(ctx context.Context, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = killDelay
	return cmd
}

// output runs cmd and makes a *Error of a failure; args are the ones to tell.
// What git wrote before it failed is returned too.
func output(ctx context.Context, cmd *exec.Cmd, args []string) ([]byte, error) {
	var stdout bytes.Buffer
	stderr := limitedBuffer{max: maxStderr}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err == nil {
		return stdout.Bytes(), nil
	}
	code := -1
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return stdout.Bytes(), &Error{Args: args, ExitCode: code, Stderr: stderr.String(), Err: err}
}

// limitedBuffer keeps the first max bytes and swallows the rest.
type limitedBuffer struct {
	bytes.Buffer
	max int
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if room := b.max - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
