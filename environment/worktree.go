package environment

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/git-env/git-env/internal/durable"
)

// The branch of an environment is registered as a locked linked worktree, so
// that git itself protects it: `git worktree list` shows it, `git branch -d`
// refuses it, `git worktree prune` leaves it alone. The registration is written
// by hand because `git worktree add` would check the whole tree out; the files
// are those of gitrepository-layout(5).

func (s *Store) worktreeDir(id string) string {
	return filepath.Join(s.Repo.CommonDir, "worktrees", id)
}

// reserveWorktree returns a registration name for an environment that no other
// worktree has, nor gets until it is released: names such as a/b and a-b come to
// the same.
func (e *Engine) reserveWorktree(name string) (id string, release func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	first := "env-" + strings.ReplaceAll(name, "/", "-")
	id = first
	for n := 2; ; n++ {
		// Any error will do: what else is wrong, the registration meets.
		if _, err := os.Lstat(e.store.worktreeDir(id)); err != nil && !e.worktrees[id] {
			break
		}
		id = first + "-" + strconv.Itoa(n)
	}
	e.worktrees[id] = true
	return id, func() {
		e.mu.Lock()
		delete(e.worktrees, id)
		e.mu.Unlock()
	}
}

// addWorktree registers st's branch. HEAD comes last: git takes a directory
// without it for a leftover, not for a worktree.
func (s *Store) addWorktree(st *State) error {
	dir := s.worktreeDir(st.Worktree)
	if err := durable.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	files := []struct{ name, text string }{
		{"locked", "git env environment '" + st.Name + "'; 'git env delete " + st.Name + "' removes it\n"},
		{"commondir", "../..\n"},
		{"gitdir", filepath.Join(st.Workspace, ".git") + "\n"},
		{"HEAD", "ref: " + st.Branch() + "\n"},
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f.name), []byte(f.text), 0o666); err != nil {
			return err
		}
	}
	return durable.SyncDir(dir)
}

// repairWorktree registers st's branch again when somebody removed that by hand,
// or a power cut just after it was made left HEAD empty.
func (s *Store) repairWorktree(st *State) error {
	fi, err := os.Stat(filepath.Join(s.worktreeDir(st.Worktree), "HEAD"))
	if errors.Is(err, fs.ErrNotExist) || err == nil && fi.Size() == 0 {
		return s.addWorktree(st)
	}
	return err
}

// removeWorktree drops the registration; one that is gone already is fine.
func (s *Store) removeWorktree(id string) error {
	if id == "" || id != filepath.Base(id) {
		return nil
	}
	err := os.RemoveAll(s.worktreeDir(id))
	_ = os.Remove(filepath.Join(s.Repo.CommonDir, "worktrees")) // git does so too when it is empty
	return err
}

// dotGit is the content of the .git file that the host sees in the workspace.
func (s *Store) dotGit(st *State) string {
	return "gitdir: " + s.worktreeDir(st.Worktree) + "\n"
}
