package gitcmd

import (
	"context"
	"errors"
	"os/exec"
	"strings"
)

// Fetch fetches objects by id from a remote that promised them, as git does
// for a partial clone when it needs one. alive is called whenever git says how
// far it has come. A failure is a *Error.
func (g *Git) Fetch(ctx context.Context, remote string, ids []string, alive func()) error {
	args := []string{"-c", "fetch.negotiationAlgorithm=noop", "fetch", "--progress", "--no-tags", "--no-write-fetch-head",
		"--recurse-submodules=no", "--no-auto-maintenance", "--filter=blob:none", "--stdin", remote}
	cmd := g.Command(ctx, args...)
	cmd.Stdin = strings.NewReader(strings.Join(ids, "\n") + "\n")
	stderr := &toldBuffer{limitedBuffer: limitedBuffer{max: maxStderr}, told: alive}
	cmd.Stderr = stderr
	err := cmd.Run()
	if err == nil {
		return nil
	}
	code := -1
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
		return &Error{Args: args, ExitCode: code, Err: err}
	}
	// Progress is said over and over on one line.
	return &Error{Args: args, ExitCode: code, Stderr: strings.ReplaceAll(stderr.String(), "\r", "\n"), Err: err}
}

// toldBuffer is a limitedBuffer that tells of every write.
type toldBuffer struct {
	limitedBuffer
	told func()
}

func (b *toldBuffer) Write(p []byte) (int, error) {
	b.told()
	return b.limitedBuffer.Write(p)
}
