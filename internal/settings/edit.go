package settings

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/git-env/git-env/internal/gitcmd"
)

// Target is a file of settings, which git itself edits: comments and whatever
// else is in it stay.
type Target struct {
	// Environ and Dir are those of the user.
	Environ []string
	Dir     string
	// Where are the options by which git config finds the file: "--local",
	// "--global", or "-f" and a path.
	Where []string
	Scope Scope
}

// ErrNotSet means that there was nothing to remove.
var ErrNotSet = errors.New("not set")

func (t Target) git(ctx context.Context, args ...string) ([]byte, error) {
	full := slices.Concat([]string{"config"}, t.Where, args)
	return gitcmd.UserOutput(ctx, t.Environ, t.Dir, full...)
}

// List returns the settings in the file; none when it is not there.
func (t Target) List(ctx context.Context) ([]Entry, error) {
	pattern := "." // a project's file has nothing else in it
	if t.Scope == Config {
		pattern = configPattern
	}
	out, err := t.git(ctx, "-z", "--show-origin", "--no-includes", "--get-regexp", pattern)
	var ge *gitcmd.Error
	if errors.As(err, &ge) && ge.ExitCode == 1 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseList(out, true, t.Scope), nil
}

// Key finds the setting that a user names, "image" being short for "env.image",
// and returns the name by which git is to write it.
func (t Target) Key(given string) (name string, key Key, err error) {
	if !strings.Contains(given, ".") {
		given = "env." + given
	}
	v, err := Check(Entry{Key: lowered(given), Scope: t.Scope})
	if err != nil {
		return "", Key{}, err
	}
	return v.Name(), v.Setting, nil
}

// lowered is a key as git lists it: all but the subsection in lower case.
func lowered(key string) string {
	first, last := strings.IndexByte(key, '.'), strings.LastIndexByte(key, '.')
	if first < 0 {
		return strings.ToLower(key)
	}
	return strings.ToLower(key[:first]) + key[first:last] + strings.ToLower(key[last:])
}

// check looks at a value before anything is written.
func (t Target) check(name, value string) error {
	_, err := Check(Entry{Key: lowered(name), Value: value, Scope: t.Scope})
	return err
}

// Set makes value the only one of a setting.
func (t Target) Set(ctx context.Context, name, value string) error {
	if err := t.check(name, value); err != nil {
		return err
	}
	_, err := t.git(ctx, "--replace-all", name, value)
	return err
}

// Add gives a setting one more value.
func (t Target) Add(ctx context.Context, name, value string) error {
	if err := t.check(name, value); err != nil {
		return err
	}
	_, err := t.git(ctx, "--add", name, value)
	return err
}

// Unset removes all values of a setting, or only those that are value; ErrNotSet.
func (t Target) Unset(ctx context.Context, name string, value ...string) error {
	args := []string{"--unset-all", name}
	if len(value) > 0 {
		args = []string{"--fixed-value", "--unset-all", name, value[0]}
	}
	_, err := t.git(ctx, args...)
	var ge *gitcmd.Error
	if errors.As(err, &ge) && (ge.ExitCode == 5 || ge.ExitCode == 1) {
		return ErrNotSet
	}
	return err
}

// Change is one change that Become made.
type Change struct {
	// What is "set", "add" or "unset".
	What, Name, Value string
}

// String is the change as a line for people.
func (c Change) String() string {
	if c.What == "unset" && c.Value == "" {
		return c.What + " " + c.Name
	}
	return c.What + " " + c.Name + "=" + c.Value
}

// Become makes the file say what want says and nothing else, and returns what it
// changed. What is the same already stays where it is.
func (t Target) Become(ctx context.Context, want []Value) ([]Change, error) {
	have, err := t.List(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	wanted, had := map[string][]string{}, map[string][]string{}
	for _, v := range want {
		wanted[v.Name()] = append(wanted[v.Name()], v.Text())
		names = append(names, v.Name())
	}
	for _, e := range have {
		name := e.Key
		if v, err := Check(e); err == nil {
			name = v.Name()
		}
		text := e.Value
		if e.Bare {
			text = "true"
		}
		had[name] = append(had[name], text)
		names = append(names, name)
	}
	var changes []Change
	for _, name := range unique(names) {
		made, err := t.become(ctx, name, had[name], wanted[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		changes = append(changes, made...)
	}
	return changes, nil
}

func unique(list []string) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// become changes one setting from one list of values to another one.
func (t Target) become(ctx context.Context, name string, had, want []string) ([]Change, error) {
	var changes []Change
	did := func(what, value string, err error) error {
		changes = append(changes, Change{what, name, value})
		return err
	}
	key, _, _ := Find(lowered(name))
	switch {
	case slices.Equal(had, want):
		return nil, nil
	case len(want) == 0:
		err := did("unset", "", t.Unset(ctx, name))
		return changes, err
	case !key.Multi:
		err := did("set", want[0], t.Set(ctx, name, want[0]))
		return changes, err
	}
	// Those that stay must be the first of the new list, in their order; else all
	// are written anew.
	var stay, gone []string
	for _, v := range had {
		if slices.Contains(want, v) {
			stay = append(stay, v)
		} else {
			gone = append(gone, v)
		}
	}
	if len(stay) > len(want) || !slices.Equal(stay, want[:len(stay)]) {
		stay, gone = nil, unique(had)
	}
	for _, v := range unique(gone) {
		if err := did("unset", v, t.Unset(ctx, name, v)); err != nil {
			return nil, err
		}
	}
	for _, v := range want[len(stay):] {
		if err := did("add", v, t.Add(ctx, name, v)); err != nil {
			return nil, err
		}
	}
	return changes, nil
}
