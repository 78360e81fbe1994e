package gitcmd

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxPlainConfig bounds the size in bytes of a config that is looked at.
const maxPlainConfig = 64 << 10

// discoverPlain recognises the repository that nearly everybody has, a work tree
// with a .git directory of its own and nothing special about it, without starting
// a process. It answers false for everything that is in the least out of the
// ordinary, and for everything git might refuse: git decides then.
func discoverPlain(dir string, environ []string) (*Repo, bool) {
	for _, kv := range environ {
		if strings.HasPrefix(kv, "GIT_") && !harmless(kv) {
			return nil, false
		}
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil || !filepath.IsAbs(dir) {
		return nil, false
	}
	var st syscall.Stat_t
	if syscall.Stat(dir, &st) != nil {
		return nil, false
	}
	device := st.Dev
	for top := dir; ; top = filepath.Dir(top) {
		if syscall.Stat(top, &st) != nil || st.Dev != device || isGitDir(top) {
			return nil, false
		}
		git := filepath.Join(top, ".git")
		if _, err := os.Lstat(git); err == nil {
			if !plainGitDir(top, git, device) {
				return nil, false
			}
			prefix, err := filepath.Rel(top, dir)
			if err != nil {
				return nil, false
			}
			if prefix == "." {
				prefix = ""
			} else {
				prefix += "/"
			}
			return &Repo{GitDir: git, CommonDir: git, WorkTree: top, ObjectFormat: "sha1", Prefix: prefix}, true
		}
		if top == "/" {
			return nil, false
		}
	}
}

// harmless are variables that have no say in where the repository is.
func harmless(kv string) bool {
	for _, p := range []string{"GIT_AUTHOR_", "GIT_COMMITTER_", "GIT_EXEC_PATH=", "GIT_PAGER", "GIT_EDITOR=", "GIT_SEQUENCE_EDITOR=",
		"GIT_SSH", "GIT_SSL_", "GIT_ASKPASS=", "GIT_TERMINAL_PROMPT=", "GIT_ENV=", "GIT_TRACE"} {
		if strings.HasPrefix(kv, p) {
			return true
		}
	}
	return false
}

// isGitDir says whether dir itself could be a git directory.
func isGitDir(dir string) bool {
	for _, name := range []string{"HEAD", "objects", "refs"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// plainGitDir says whether git is a directory of ours with a config that says
// nothing about where things are.
func plainGitDir(top, git string, device uint64) bool {
	euid := uint32(os.Geteuid())
	for _, d := range []string{top, git} { // what git's safe.directory looks at
		var st syscall.Stat_t
		if syscall.Lstat(d, &st) != nil || st.Mode&syscall.S_IFMT != syscall.S_IFDIR || st.Uid != euid || st.Dev != device {
			return false
		}
	}
	if !isGitDir(git) {
		return false
	}
	for _, name := range []string{"commondir", "config.worktree"} {
		if _, err := os.Lstat(filepath.Join(git, name)); err == nil {
			return false
		}
	}
	config := filepath.Join(git, "config")
	if fi, err := os.Lstat(config); err != nil || !fi.Mode().IsRegular() || fi.Size() > maxPlainConfig {
		return false
	}
	text, err := os.ReadFile(config)
	if err != nil {
		return false
	}
	text = bytes.ToLower(text)
	for _, word := range []string{"worktree", "extensions", "include", "\\\n"} {
		if bytes.Contains(text, []byte(word)) {
			return false
		}
	}
	return ordinaryCore(text)
}

// ordinaryCore looks for a format and a bareness other than the usual ones.
func ordinaryCore(lower []byte) bool {
	for line := range bytes.Lines(lower) {
		key, val, _ := strings.Cut(strings.TrimSpace(string(line)), "=")
		val = strings.TrimSpace(val)
		switch {
		case strings.Contains(key, "repositoryformatversion") && val != "0":
			return false
		case strings.Contains(key, "bare") && val != "false":
			return false
		}
	}
	return true
}
