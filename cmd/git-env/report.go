package main

import (
	"fmt"
	"strings"

	"github.com/git-env/git-env/environment"
)

// usageError is a command line that cannot be acted on; usage is the line that
// shows how it should look.
type usageError struct {
	msg, usage string
	hint       string
}

func (e *usageError) Error() string { return e.msg }

// Unwrap gives it its exit code.
func (e *usageError) Unwrap() error {
	return &environment.Error{Code: environment.ExitUsage, Msg: e.msg, Hint: e.hint}
}

func usagef(format string, args ...any) *usageError {
	return &usageError{msg: fmt.Sprintf(format, args...)}
}

func (e *usageError) withHint(format string, args ...any) *usageError {
	e.hint = fmt.Sprintf(format, args...)
	return e
}

// report says an error in git's words. A repository that cannot be used is
// fatal, as it is for git.
func (a *app) report(err error) {
	prefix := "error: "
	if environment.ExitCode(err) == environment.ExitRepository {
		prefix = "fatal: "
	}
	a.say(prefix, err.Error())
	if ue, ok := err.(*usageError); ok && ue.usage != "" {
		a.say("", ue.usage)
	}
	if hint := environment.Hint(err); hint != "" {
		a.say("hint: ", hint)
	}
}

func (a *app) say(prefix, text string) {
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		fmt.Fprintf(a.stderr, "%s%s\n", prefix, strings.TrimSuffix(line, "\n"))
	}
}

func (a *app) warnf(format string, args ...any) { a.say("warning: ", fmt.Sprintf(format, args...)) }
func (a *app) hintf(format string, args ...any) { a.say("hint: ", fmt.Sprintf(format, args...)) }

// tipf is a hint for people only: it is not said into a file or a pipe.
func (a *app) tipf(format string, args ...any) {
	if isTerminal(a.stderr) {
		a.hintf(format, args...)
	}
}
