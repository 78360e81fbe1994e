package gitcmd

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrNotRepo means that git found no repository it is willing to use.
	ErrNotRepo = errors.New("not a git repository")
	// ErrRefChanged means that a ref did not have the expected old value.
	ErrRefChanged = errors.New("ref changed")
	// ErrRefInTheWay means that a new ref would be a directory of another one, or
	// the other way round.
	ErrRefInTheWay = errors.New("another ref is in the way")
	// ErrUnknownRevision means that a revision names no commit.
	ErrUnknownRevision = errors.New("unknown revision")
)

// Error is a failed git command.
type Error struct {
	// Args is what was asked of git, without the options every command gets.
	Args []string
	// ExitCode is git's own, or -1 when it did not run or did not exit by itself.
	ExitCode int
	// Stderr is the beginning of what git said.
	Stderr string
	// Err is the cause: *exec.ExitError, an error of starting git, or the
	// context's error when it ended the command.
	Err error
}

// Error returns git's first fatal or error message without its prefix, or a
// generic sentence when git said nothing of the kind.
func (e *Error) Error() string {
	if msg, _ := e.message(); msg != "" {
		return msg
	}
	return fmt.Sprintf("git %s: %v", e.subcommand(), e.Err)
}

// Hint returns the lines that followed git's message, such as the command that
// would help, without the hint: prefix. It is empty when there are none.
func (e *Error) Hint() string {
	_, rest := e.message()
	lines := strings.Split(rest, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimPrefix(strings.TrimPrefix(l, "hint:"), " ")
	}
	return strings.Trim(strings.Join(lines, "\n"), "\n")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func (e *Error) message() (msg, rest string) {
	s := e.Stderr
	for s != "" {
		line, after, _ := strings.Cut(s, "\n")
		for _, prefix := range []string{"fatal: ", "error: "} {
			if m, ok := strings.CutPrefix(line, prefix); ok {
				return m, after
			}
		}
		s = after
	}
	return "", ""
}

// subcommand is the first argument that is no option of git itself.
func (e *Error) subcommand() string {
	for i := 0; i < len(e.Args); i++ {
		switch a := e.Args[i]; {
		case a == "-c" || a == "-C":
			i++
		case strings.HasPrefix(a, "-"):
		default:
			return a
		}
	}
	return strings.Join(e.Args, " ")
}

// notRepoError has git's own message: only git knows whether there is no
// repository, a broken one, or one that belongs to someone else.
type notRepoError struct{ err *Error }

func (e *notRepoError) Is(target error) bool { return target == ErrNotRepo }
func (e *notRepoError) Unwrap() error        { return e.err }

func (e *notRepoError) Error() string {
	if msg, _ := e.err.message(); msg != "" {
		return msg
	}
	return ErrNotRepo.Error()
}

// revisionError says a revision the way git does.
type revisionError struct{ rev string }

func (e *revisionError) Error() string        { return fmt.Sprintf("bad revision '%s'", e.rev) }
func (e *revisionError) Is(target error) bool { return target == ErrUnknownRevision }

// changedError names the ref that had moved.
type changedError struct {
	ref, want, have string
}

func (e *changedError) Error() string {
	switch {
	case e.want == "":
		return fmt.Sprintf("ref %s already exists at %s", e.ref, e.have)
	case e.have == "":
		return fmt.Sprintf("ref %s is gone, expected %s", e.ref, e.want)
	}
	return fmt.Sprintf("ref %s is at %s but expected %s", e.ref, e.have, e.want)
}

func (e *changedError) Is(target error) bool { return target == ErrRefChanged }

type inTheWayError struct{ ref, other string }

func (e *inTheWayError) Error() string {
	return fmt.Sprintf("cannot create ref '%s': '%s' exists", e.ref, e.other)
}

func (e *inTheWayError) Unwrap() error { return ErrRefInTheWay }
