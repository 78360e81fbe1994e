package environment

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
	"github.com/git-env/git-env/notes"
)

// Store is a repository's environments as they are on disk. It never writes;
// safe for concurrent use.
type Store struct {
	Repo *gitcmd.Repo
	// Git runs git on the common directory.
	Git *gitcmd.Git
	// Dir is $GIT_COMMON_DIR/env.
	Dir string
	// Reader reads the repository's objects.
	Reader *objects.Reader
}

// OpenStore opens the environments of a repository. The caller closes it.
func OpenStore(_ context.Context, repo *gitcmd.Repo) (*Store, error) {
	g := gitcmd.New(repo.CommonDir)
	return &Store{
		Repo:   repo,
		Git:    g,
		Dir:    filepath.Join(repo.CommonDir, "env"),
		Reader: objects.NewReader(g, 2),
	}, nil
}

// Close ends the processes the Store reads objects with.
func (s *Store) Close() error { return s.Reader.Close() }

// Names lists all environments, sorted; damaged ones are included.
func (s *Store) Names() ([]string, error) {
	root := filepath.Join(s.Dir, "envs")
	var names []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if errors.Is(err, fs.ErrPermission) {
				return notPermitted(err)
			}
			return err
		}
		if !d.IsDir() || path == root {
			return nil
		}
		if s.isEnvDir(path) {
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			names = append(names, filepath.ToSlash(rel))
			return fs.SkipDir
		}
		return nil
	})
	sort.Strings(names)
	return names, err
}

// isEnvDir tells an environment's own directory from one that only leads to
// names with a slash: it has a file in it.
func (s *Store) isEnvDir(path string) bool {
	entries, err := os.ReadDir(path)
	if err != nil {
		return true
	}
	for _, e := range entries {
		if !e.IsDir() {
			return true
		}
	}
	return false
}

// Resolve applies the rule for a left-out environment: given, else gitEnv
// ($GIT_ENV), else the workspace that cwd is in, else the only environment;
// otherwise an *AmbiguousError. A name that does not exist is ErrNoEnv.
func (s *Store) Resolve(given, cwd, gitEnv string) (string, error) {
	for _, name := range []string{given, gitEnv} {
		if name != "" {
			if err := CheckName(name); err != nil {
				return "", err
			}
			if _, err := os.Lstat(s.EnvDir(name)); err != nil || !s.isEnvDir(s.EnvDir(name)) {
				_, err := s.Load(name)
				return "", err
			}
			return name, nil
		}
	}
	names, err := s.Names()
	if err != nil {
		return "", err
	}
	for _, n := range names {
		st, err := s.Load(n)
		if err == nil && st.Workspace != "" && within(cwd, st.Workspace) {
			return n, nil
		}
	}
	if len(names) == 1 {
		return names[0], nil
	}
	return "", &AmbiguousError{Candidates: names}
}

func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+string(filepath.Separator))
}

// Tip returns the commit the environment's branch is at.
func (s *Store) Tip(ctx context.Context, name string) (string, error) {
	tip, err := s.ref(ctx, BranchRef(name))
	if err == nil && tip == "" {
		err = &Error{Code: ExitRepository, Err: ErrDamaged,
			Msg:  fmt.Sprintf("environment '%s' is damaged: its branch %s is gone", name, BranchRef(name)),
			Hint: fmt.Sprintf("'git branch env/%s <commit>' brings it back; 'git env path %s' has its files; 'git env delete --force %s' removes the rest", name, name, name)}
	}
	return tip, err
}

// ref returns what a ref points to, "" when there is none. It asks a process
// that runs already, which looks at the ref anew each time.
func (s *Store) ref(ctx context.Context, name string) (string, error) {
	id, _, _, err := s.Reader.Kind(ctx, name)
	if errors.Is(err, objects.ErrNotFound) {
		return "", nil
	}
	return id, err
}

// WorkspaceDir returns where an environment is mounted on the host unless
// configured: outside .git, which many tools refuse to look into.
func (s *Store) WorkspaceDir(name, configured string, dataHome string) string {
	base := configured
	if base == "" {
		base = filepath.Join(dataHome, "git-env", s.Key())
	} else {
		base = filepath.Join(base, s.Key())
	}
	return filepath.Join(base, filepath.FromSlash(name))
}

// Key is a short name of the repository, unique on this machine:
// "<directory>-<hash of the path>".
func (s *Store) Key() string {
	dir := s.Repo.CommonDir
	base := filepath.Base(dir)
	if base == ".git" {
		base = filepath.Base(filepath.Dir(dir))
	}
	base = strings.TrimSuffix(base, ".git")
	sum := sha256.Sum256([]byte(dir))
	return base + "-" + hex.EncodeToString(sum[:4])
}

// DataHome returns ${XDG_DATA_HOME:-~/.local/share}.
func DataHome() string {
	if d := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(d) {
		return d
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/root"
	}
	return filepath.Join(home, ".local", "share")
}

// RunHome returns ${XDG_RUNTIME_DIR:-/run}.
func RunHome() string {
	if d := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(d) {
		return d
	}
	return "/run"
}

func (s *Store) execLog() *notes.Ref {
	return notes.NewRef(execNotes, s.Git, s.Reader, nil)
}

const (
	execNotes  = "refs/notes/env"
	stateNotes = "refs/notes/env-state"
)
