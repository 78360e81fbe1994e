package gitcmd

import (
	"context"
	"os/exec"
	"slices"
	"strings"
)

// UserCommand returns git as the user's own command: hooks, configuration,
// pager and editor are as the user has them, and environ is the user's
// environment. What a hook of the outer git handed down for its own operation,
// such as its temporary index, is taken out, since it would mislead another
// command; GIT_DIR and GIT_WORK_TREE stay.
func UserCommand(ctx context.Context, environ []string, dir string, args ...string) *exec.Cmd {
	cmd := command(ctx, args)
	cmd.Env = userEnviron(environ)
	cmd.Dir = dir
	return cmd
}

// userEnviron removes what belongs to one operation of an outer git.
func userEnviron(environ []string) []string {
	quarantine := slices.ContainsFunc(environ, func(kv string) bool {
		return strings.HasPrefix(kv, "GIT_QUARANTINE_PATH=")
	})
	return slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_REFLOG_ACTION", "GIT_SHALLOW_FILE",
			"GIT_QUARANTINE_PATH", "GIT_INTERNAL_SUPER_PREFIX", "GIT_INDEX_VERSION",
			"GIT_PUSH_OPTION_COUNT", "GIT_EXEC_PATH":
			return true
		case "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES":
			// A user may have chosen these; in a quarantine a push did.
			return quarantine
		}
		return false
	})
}

// Environ returns environ for commands that run elsewhere than where it was
// taken: when it says where the repository is, it then says so with absolute
// paths.
func (r *Repo) Environ(environ []string) []string {
	given := false
	out := slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case "GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR":
			given = true
			return true
		}
		return false
	})
	if !given {
		return out
	}
	out = append(out, "GIT_DIR="+r.GitDir)
	if r.WorkTree != "" {
		out = append(out, "GIT_WORK_TREE="+r.WorkTree)
	}
	return out
}

// UserOutput runs git as UserCommand does, to its end, and returns its standard
// output. A failure is a *Error.
func UserOutput(ctx context.Context, environ []string, dir string, args ...string) ([]byte, error) {
	cmd := UserCommand(ctx, environ, dir, args...)
	cmd.Env = append(cmd.Env, "LC_ALL=C", "LANGUAGE=")
	return output(ctx, cmd, args)
}
