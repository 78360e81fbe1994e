package gitcmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// separator is an option that git rev-parse does not know and therefore echoes.
// Paths may contain newlines, so something else has to part the answers.
const separator = "--git-env-separator"

// Repo says where a repository is. Paths are absolute with symbolic links
// resolved.
type Repo struct {
	// GitDir is the git directory of this work tree, CommonDir the one that all
	// work trees of the repository share; they differ in linked work trees.
	GitDir, CommonDir string
	// WorkTree is empty when there is none.
	WorkTree string
	Bare     bool
	// ObjectFormat is "sha1" or "sha256".
	ObjectFormat string
	// Prefix is the user's directory relative to WorkTree, empty at its top,
	// else with a trailing slash.
	Prefix string
}

// Discover finds the repository of a directory the way git does, with one
// process at most. It honours what an outer git, an alias or a hook handed down in
// environ (GIT_DIR, GIT_WORK_TREE, GIT_PREFIX). When git finds no repository
// or refuses the one it finds, the error is ErrNotRepo with git's own message
// and wraps a *Error that has the hint.
func Discover(ctx context.Context, dir string, environ []string) (*Repo, error) {
	if r, ok := discoverPlain(dir, environ); ok {
		return r, ctx.Err()
	}
	return discoverAsked(ctx, dir, environ)
}

// discoverAsked is Discover by asking git.
func discoverAsked(ctx context.Context, dir string, environ []string) (*Repo, error) {
	args := []string{"rev-parse", "--path-format=absolute"}
	for _, q := range []string{
		"--is-bare-repository", "--show-object-format", "--git-dir",
		// The last one fails where there is no work tree; the others have
		// been answered by then.
		"--git-common-dir", "--show-prefix", "--show-toplevel",
	} {
		args = append(args, q, separator)
	}
	cmd := command(ctx, args)
	cmd.Dir = dir
	cmd.Env = append(userEnviron(environ), "LC_ALL=C", "LANGUAGE=", "GIT_OPTIONAL_LOCKS=0")
	out, err := output(ctx, cmd, args)
	answers := strings.Split(string(out), separator+"\n")
	if len(answers) < 6 {
		return nil, discoverError(err)
	}
	for i := range answers {
		answers[i] = strings.TrimSuffix(answers[i], "\n")
	}
	r := &Repo{
		GitDir:       resolve(answers[2]),
		CommonDir:    resolve(answers[3]),
		Bare:         answers[0] == "true",
		ObjectFormat: answers[1],
		Prefix:       answers[4],
		WorkTree:     resolve(answers[5]),
	}
	r.adjust(environ)
	return r, nil
}

// adjust corrects what git says in the places where it is run for a repository
// rather than for files.
func (r *Repo) adjust(environ []string) {
	if r.WorkTree == "" || r.WorkTree == r.GitDir || r.WorkTree == r.CommonDir {
		// The current directory is the git directory, as in the hooks of a push.
		r.WorkTree, r.Prefix = "", ""
		if !r.Bare && r.GitDir == r.CommonDir && filepath.Base(r.GitDir) == ".git" {
			r.WorkTree = filepath.Dir(r.GitDir)
		}
	}
	if prefix := lookup(environ, "GIT_PREFIX"); prefix != "" && r.Prefix == "" && r.WorkTree != "" {
		// An alias or a hook runs at the top; this is where the user was.
		if st, err := os.Stat(filepath.Join(r.WorkTree, prefix)); err == nil && st.IsDir() && filepath.IsLocal(prefix) {
			r.Prefix = strings.TrimSuffix(prefix, "/") + "/"
		}
	}
}

func discoverError(err error) error {
	var e *Error
	if errors.As(err, &e) && e.ExitCode > 0 {
		return &notRepoError{e}
	}
	if err == nil {
		err = errors.New("unexpected answer")
	}
	if e != nil && (errors.Is(e.Err, exec.ErrNotFound) || errors.Is(e.Err, fs.ErrPermission)) {
		return fmt.Errorf("cannot run git: %w", e.Err)
	}
	return fmt.Errorf("git rev-parse: %w", err)
}

func resolve(path string) string {
	if path == "" {
		return ""
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return filepath.Clean(path)
}

// lookup returns the last value of a variable, which is the one that counts.
func lookup(environ []string, name string) string {
	for i := len(environ) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(environ[i], name+"="); ok {
			return v
		}
	}
	return ""
}
