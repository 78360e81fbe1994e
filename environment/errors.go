package environment

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/git-env/git-env/internal/gitcmd"
)

// Exit codes of the command line; see docs/cli.md.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitNoEnv       = 10
	ExitBusy        = 11
	ExitConflict    = 12
	ExitCapability  = 20
	ExitTimeout     = 124
	ExitOurs        = 125
	ExitNotExec     = 126
	ExitNotFound    = 127
	ExitRepository  = 128
	ExitUsage       = 129
	ExitInterrupted = 130
)

// Error is a failure with the exit code that tells its kind, one line for
// people, and what to do about it. It crosses from the daemon to the command
// line unchanged.
type Error struct {
	Code int
	Msg  string
	Hint string
	Err  error
}

// Error returns the one line.
func (e *Error) Error() string {
	if e.Msg == "" && e.Err != nil {
		return e.Err.Error()
	}
	return e.Msg
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error of the given exit code; %w keeps the cause.
func Errorf(code int, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Msg: err.Error(), Err: errors.Unwrap(err)}
}

// WithHint returns a copy of e with a hint.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// Sentinels for errors.Is.
var (
	ErrNoEnv       = errors.New("no such environment")
	ErrDamaged     = errors.New("damaged environment")
	ErrNewerFormat = errors.New("state of a newer format")
)

// AmbiguousError is returned when an environment was left out and more than one
// would do, or none.
type AmbiguousError struct{ Candidates []string }

// Error lists the candidates.
func (e *AmbiguousError) Error() string {
	if len(e.Candidates) == 0 {
		return "no environment named and none exists"
	}
	return "which environment? candidates: " + strings.Join(e.Candidates, ", ")
}

// ExitCode maps any error to the exit code of its kind.
func ExitCode(err error) int {
	var e *Error
	var amb *AmbiguousError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &e) && e.Code != 0:
		return e.Code
	case errors.As(err, &amb):
		return ExitUsage
	case errors.Is(err, ErrNoEnv):
		return ExitNoEnv
	case errors.Is(err, ErrDamaged), errors.Is(err, ErrNewerFormat):
		return ExitRepository
	case errors.Is(err, context.Canceled):
		return ExitInterrupted
	}
	return ExitFailed
}

// Hint returns what to do about err, or "".
func Hint(err error) string {
	var e *Error
	if errors.As(err, &e) && e.Hint != "" {
		return e.Hint
	}
	var amb *AmbiguousError
	if errors.As(err, &amb) {
		if len(amb.Candidates) == 0 {
			return "make one with 'git env create'"
		}
		return "name one, or set GIT_ENV"
	}
	if errors.Is(err, ErrNoEnv) {
		return "'git env list' shows the environments"
	}
	if errors.Is(err, syscall.ENOSPC) {
		return "make room on the disk, and try again"
	}
	var ge *gitcmd.Error
	if errors.As(err, &ge) {
		return ge.Hint()
	}
	return ""
}
