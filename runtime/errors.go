package runtime

import (
	"errors"
	"fmt"
)

// Errors that callers act on; test with errors.Is.
var (
	// ErrImageNotFound: the registry answered that there is no such image, or
	// none that these credentials may see.
	ErrImageNotFound = errors.New("image not found")
	// ErrPlatform: the image exists, but not for this machine.
	ErrPlatform = errors.New("image has no variant for this platform")
	// ErrRegistry: the registry refused, was unreachable or stalled.
	ErrRegistry = errors.New("registry failed")
	// ErrNotFound: no such container is running, or no such root filesystem.
	ErrNotFound = errors.New("not found")
	// ErrExists: the root filesystem exists already.
	ErrExists = errors.New("already exists")
	// ErrCommandNotFound: the command is not there (shells say 127).
	ErrCommandNotFound = errors.New("command not found")
	// ErrNotExecutable: the command is there and cannot be executed: no
	// permission, a directory, a format the kernel does not know (126).
	ErrNotExecutable = errors.New("cannot execute")
	// ErrBadCwd: the working directory is not there or is no directory.
	ErrBadCwd = errors.New("working directory does not exist")
	// ErrLimit: a limit of the container does not let it start.
	ErrLimit = errors.New("limit reached")
	// ErrMissing matches every *MissingError.
	ErrMissing = errors.New("missing capability")
)

// MissingError says that the host lacks something the runtime needs.
type MissingError struct {
	// What is missing: "containerd", "runc", "root", "overlayfs", …
	What string
	// Package is the name of the package that brings it, empty when none does.
	Package string
	// Detail says more, on one line; optional.
	Detail string
	// Hint is the remedy where no package is it; optional.
	Hint string
}

// Error is one line without the hint; the caller words the hint from Package.
func (e *MissingError) Error() string {
	if e.Detail != "" {
		return fmt.Sprintf("%s: %s", e.What, e.Detail)
	}
	return e.What + " is not available"
}

// Is makes errors.Is(err, ErrMissing) true.
func (e *MissingError) Is(target error) bool { return target == ErrMissing }

// TUNHint is the remedy of a host without TUN devices.
const TUNHint = "'modprobe tun', or --device /dev/net/tun for a container; 'git config env.network none' does without, 'git config env.network host' gives it yours"

// Error is an error of one of the kinds above with its own one-line message.
type Error struct {
	// Kind is one of the sentinel errors of this package.
	Kind error
	// Message replaces the sentinel's text.
	Message string
	// Err is what caused it; may be nil.
	Err error
}

func (e *Error) Error() string { return e.Message }

// Unwrap gives errors.Is both the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// Finding is one thing that a doctor looks at.
type Finding struct {
	// Name is a short stable name: "containerd", "runc", "overlayfs", …
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Detail says what was found or what is wrong.
	Detail string `json:"detail,omitempty"`
	// Hint is the remedy; empty when OK.
	Hint string `json:"hint,omitempty"`
}
