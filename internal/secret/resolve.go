package secret

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	// MaxValue bounds a value in bytes: a process takes no longer variable.
	MaxValue = 64 << 10
	// MinValue is the length below which a value is refused: it would be masked
	// wherever chance writes it, or nowhere.
	MinValue = 4
	// commandTime is how long a command may take to tell a secret; a person may
	// have to unlock something.
	commandTime = 2 * time.Minute
)

// Caller is the user whose secrets they are: its directory and environment.
type Caller struct {
	Dir     string
	Environ []string
}

// Value is a secret with its value.
type Value struct {
	Spec
	Data []byte
}

// Error says which secret cannot be had, why, and what helps.
type Error struct {
	Spec Spec
	Msg  string
	// Hint is what to do about it.
	Hint string
	// Missing is the program that is not there, "" when that is not the reason.
	Missing string
}

// Error names the secret and its reference, never its value.
func (e *Error) Error() string {
	return fmt.Sprintf("secret '%s' (%s): %s", e.Spec.Target(), e.Spec.Reference(), e.Msg)
}

func (s Spec) fail(hint, format string, args ...any) error {
	return &Error{Spec: s, Msg: fmt.Sprintf(format, args...), Hint: hint}
}

// Resolve fetches the value that s refers to. A failure is an *Error, unless ctx
// ended.
func (c Caller) Resolve(ctx context.Context, s Spec) (Value, error) {
	if err := s.check(); err != nil {
		return Value{}, s.fail("", "%v", err)
	}
	data, err := c.fetch(ctx, s)
	if err != nil {
		return Value{}, err
	}
	if !s.File {
		// As a shell's $(…) does: files and commands end their last line.
		data = bytes.TrimRight(data, "\r\n")
	}
	switch core := bytes.TrimRight(data, "\r\n"); {
	case len(core) == 0:
		return Value{}, s.fail("", "it is empty")
	case len(core) < MinValue:
		return Value{}, s.fail("env.var passes what is not secret",
			"it has %d bytes; with less than %d it cannot be kept out of what is recorded", len(core), MinValue)
	case s.File:
	case bytes.IndexByte(data, 0) >= 0 || !utf8.Valid(data):
		return Value{}, s.fail("pass it as a file: "+Dir+"/"+strings.ToLower(s.Name)+"="+s.Reference(),
			"it is not text, which a variable has to be")
	}
	return Value{s, data}, nil
}

func (c Caller) fetch(ctx context.Context, s Spec) ([]byte, error) {
	switch s.Scheme {
	case "env":
		if v, ok := c.lookup(s.Ref); ok {
			if len(v) > MaxValue {
				return nil, s.tooLong()
			}
			return []byte(v), nil
		}
		return nil, s.fail("export "+s.Ref+" and try again", "%s is not set in your environment", s.Ref)
	case "file":
		return c.readFile(s)
	case "cmd":
		return c.command(ctx, s, "sh", "-c", s.Ref)
	case "op":
		return c.command(ctx, s, "op", "read", "--no-newline", s.Reference())
	case "vault":
		at, field, _ := strings.Cut(s.Ref, "#")
		return c.command(ctx, s, "vault", "kv", "get", "-field="+field, at)
	}
	return nil, s.fail("", "unknown kind of reference")
}

func (s Spec) tooLong() error {
	return s.fail("", "it has more than %d bytes", MaxValue)
}

func (c Caller) lookup(name string) (string, bool) {
	for i := len(c.Environ) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(c.Environ[i], name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// readFile reads a regular file. For a reference that a repository makes no link
// is followed: consent was given to the path that was shown, and a link on it may
// be the repository's.
func (c Caller) readFile(s Spec) ([]byte, error) {
	name := s.Ref
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		home, set := c.lookup("HOME")
		if !set || !filepath.IsAbs(home) {
			return nil, s.fail("", "HOME is not set, and it begins with ~")
		}
		name = filepath.Join(home, rest)
	}
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY}
	if s.Project {
		how.Resolve = unix.RESOLVE_NO_SYMLINKS
	}
	// Looked at first: to open a device can be to do something with it.
	if fi, err := os.Stat(name); err == nil && !fi.Mode().IsRegular() {
		return nil, s.fail("", "'%s' is not a regular file", name)
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, filepath.Clean(name), &how)
	if errors.Is(err, unix.ELOOP) {
		return nil, s.fail("name the file itself, or refer to it in 'git config' instead of .gitenv",
			"there is a symbolic link in '%s', and none is followed for a reference in .gitenv", name)
	}
	if err != nil {
		return nil, s.fail("", "cannot read '%s': %v", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		return nil, s.fail("", "'%s' is not a regular file", name)
	}
	data, rerr := io.ReadAll(io.LimitReader(f, MaxValue+1))
	if err = errors.Join(err, rerr); err != nil {
		return nil, s.fail("", "cannot read '%s': %v", name, err)
	}
	if len(data) > MaxValue {
		return nil, s.tooLong()
	}
	return data, nil
}

// command runs a program as the caller and returns what it prints.
func (c Caller) command(ctx context.Context, s Spec, name string, args ...string) ([]byte, error) {
	file, err := c.lookPath(name)
	if err != nil {
		return nil, &Error{Spec: s, Missing: name, Msg: "the program '" + name + "' is not there",
			Hint: "install '" + name + "' and sign in, or refer to the secret in another way"}
	}
	bounded, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	cmd := exec.CommandContext(bounded, file, args...)
	cmd.Args[0] = name
	cmd.Dir, cmd.Env = c.Dir, c.Environ
	// Children may hold the pipes after the program has ended.
	cmd.WaitDelay = time.Second
	stdout, stderr := &limited{most: MaxValue, stop: true}, &limited{most: maxComplaint}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err = cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case bounded.Err() != nil:
		return nil, s.fail("", "'%s' did not end within %s", name, commandTime)
	case stdout.over:
		return nil, s.tooLong()
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return nil, s.fail("run it by hand to see what it needs", "'%s' failed: %v%s", name, err, stderr.complaint())
	}
	return stdout.data, nil
}

// lookPath finds a program in the caller's PATH, where a relative entry does not
// count: the current directory may be the repository's.
func (c Caller) lookPath(name string) (string, error) {
	dirs, _ := c.lookup("PATH")
	for _, dir := range filepath.SplitList(dirs) {
		if !filepath.IsAbs(dir) {
			continue
		}
		file := filepath.Join(dir, name)
		if fi, err := os.Stat(file); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fs.ErrNotExist
}

// maxComplaint is how much of what a failing command says is passed on, in bytes.
const maxComplaint = 2 << 10

// limited keeps the first bytes of what is written.
type limited struct {
	data []byte
	most int
	over bool
	stop bool // whoever writes more
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.most-len(l.data))
	l.over = l.over || n < len(p)
	l.data = append(l.data, p[:n]...)
	if l.over && l.stop {
		return n, io.ErrShortWrite
	}
	return len(p), nil
}

func (l *limited) complaint() string {
	if text := strings.TrimSpace(string(l.data)); text != "" {
		return ": " + strings.ToValidUTF8(text, "?")
	}
	return ""
}
