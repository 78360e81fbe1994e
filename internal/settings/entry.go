package settings

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
)

// ProjectFile is the name of the file at the top of the tree.
const ProjectFile = ".gitenv"

// maxProjectFile bounds the size of a project's file, in bytes.
const maxProjectFile = 1 << 20

// Scope says which of the origins a value has. Their order is that of their
// weight.
type Scope string

// Scopes.
const (
	Default Scope = "default"
	Project Scope = "project" // a file of the commit
	Config  Scope = "config"  // git config
	Command Scope = "command" // flags
)

// Entry is one line of an origin.
type Entry struct {
	// Key is as git lists it: section and name in lower case.
	Key   string `json:"key"`
	Value string `json:"value"`
	// Bare says that there is no "=", which git takes for true.
	Bare  bool  `json:"bare,omitempty"`
	Scope Scope `json:"scope"`
	// Origin is where it comes from as 'git config --show-origin' words it.
	Origin string `json:"origin"`
	// Line is that of the project's file; 0 when it is not known.
	Line int `json:"line,omitempty"`
	// Personal says that something of the user's machine is in it, Late that
	// variables of the image are still to be put into it.
	Personal bool `json:"personal,omitempty"`
	Late     bool `json:"late,omitempty"`
}

// where is the place of an entry as a message begins with it.
func (e Entry) where() string {
	switch e.Scope {
	case Project:
		name := e.Origin[strings.LastIndexByte(e.Origin, ':')+1:]
		if e.Line > 0 {
			return name + ":" + strconv.Itoa(e.Line)
		}
		return name
	case Config:
		return strings.TrimPrefix(e.Origin, "file:")
	}
	return e.Origin
}

// Flag is an entry of the command line.
func Flag(key, value string) Entry {
	return Entry{Key: strings.ToLower(key), Value: value, Scope: Command, Origin: CommandLine}
}

// CommandLine is the origin of flags.
const CommandLine = "command line"

// Error is a mistake in a setting. Its text begins with the file and the line.
type Error struct{ msg string }

// Error names the place, the key and what is wrong.
func (e *Error) Error() string { return e.msg }

// Where is the place that a message about the entry begins with: a file and its
// line, or "command line".
func (e Entry) Where() string { return e.where() }

// Refuse is an *Error about the value, for what is found when it is acted on. Its
// text names the place, the key and the value.
func (v Value) Refuse(format string, args ...any) error {
	return v.Errorf("%s = %s: %w", v.Name(), v.Value, fmt.Errorf(format, args...))
}

// Errorf makes an *Error about an entry.
func (e Entry) Errorf(format string, args ...any) error {
	msg := fmt.Errorf(format, args...).Error()
	if at := e.where(); at != "" {
		msg = at + ": " + msg
	}
	return &Error{msg}
}

// ReadProject lists what the project's file of a commit says; nothing when there
// is no such file. A file that git cannot read is an *Error.
func ReadProject(ctx context.Context, g *gitcmd.Git, r *objects.Reader, commit string) (entries []Entry, found bool, err error) {
	e, err := r.Path(ctx, commit, ProjectFile)
	if errors.Is(err, objects.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if e.Mode != 0o100644 && e.Mode != 0o100755 {
		return nil, true, &Error{ProjectFile + ": not a regular file; symbolic links are not followed"}
	}
	file, err := r.Bytes(ctx, e.ID, maxProjectFile)
	if err != nil {
		return nil, true, fmt.Errorf("%s of %.12s: %w", ProjectFile, commit, err)
	}
	origin := "blob:" + commit + ":" + ProjectFile
	// The object itself, not the path: an argument of git's that names a path
	// could mean something else in an odd repository.
	out, err := g.Output(ctx, nil, "config", "-z", "--no-includes", "--blob", e.ID, "--list")
	if err != nil {
		return nil, true, syntaxError(err)
	}
	entries = parseList(out, false, Project)
	lines(entries, file)
	for i := range entries {
		entries[i].Origin = origin
	}
	return entries, true, nil
}

// ReadFile is ReadProject for a file of the user's work tree that lies at path.
func ReadFile(ctx context.Context, g *gitcmd.Git, path string, file []byte) ([]Entry, error) {
	out, err := g.Output(ctx, nil, "config", "-z", "--no-includes", "-f", path, "--list")
	if err != nil {
		return nil, syntaxError(err)
	}
	entries := parseList(out, false, Project)
	lines(entries, file)
	for i := range entries {
		entries[i].Origin = "file:" + ProjectFile
	}
	return entries, nil
}

var badLine = regexp.MustCompile(`bad config line (\d+)`)

// syntaxError says on which line git did not understand a project's file.
func syntaxError(err error) error {
	var ge *gitcmd.Error
	if errors.As(err, &ge) {
		if m := badLine.FindStringSubmatch(ge.Stderr); m != nil {
			return &Error{ProjectFile + ":" + m[1] + ": not the syntax of git config"}
		}
	}
	return fmt.Errorf("cannot read %s: %w", ProjectFile, err)
}

// lines fills in the lines of entries, which git lists in the file's order.
func lines(entries []Entry, file []byte) {
	at := places(file)
	for i := range entries {
		for j, p := range at {
			if p.key == entries[i].Key {
				entries[i].Line = p.line
				at = at[j+1:]
				break
			}
		}
	}
}

// ConfigArgs are the arguments of a git that lists what git config says of
// settings; it exits with 1 when that is nothing.
func ConfigArgs() []string {
	return []string{"config", "-z", "--show-origin", "--get-regexp", configPattern}
}

// configPattern finds settings among all that git config says.
const configPattern = `^(env|service\..*)\.`

// ReadConfig lists what git config says.
func ReadConfig(ctx context.Context, g *gitcmd.Git) ([]Entry, error) {
	out, err := g.Output(ctx, nil, ConfigArgs()...)
	var ge *gitcmd.Error
	if errors.As(err, &ge) && ge.ExitCode == 1 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return ParseConfig(out), nil
}

// ParseConfig makes entries of what a git with ConfigArgs prints.
func ParseConfig(out []byte) []Entry { return parseList(out, true, Config) }

// parseList takes the output of 'git config -z' apart.
func parseList(out []byte, origins bool, scope Scope) []Entry {
	var entries []Entry
	items := bytes.Split(bytes.TrimSuffix(out, []byte{0}), []byte{0})
	for i := 0; i < len(items); i++ {
		e := Entry{Scope: scope}
		if origins {
			if e.Origin = string(items[i]); i+1 == len(items) {
				break
			}
			i++
			if e.Origin == CommandLine+":" {
				e.Scope, e.Origin = Command, CommandLine
			}
		}
		key, value, valued := strings.Cut(string(items[i]), "\n")
		if key == "" {
			continue
		}
		e.Key, e.Value, e.Bare = key, value, !valued
		entries = append(entries, e)
	}
	return entries
}
