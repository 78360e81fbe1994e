package environment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
)

// A sparse environment shows some paths of its tree (State.Paths). What is hidden
// is part of its branch all the same: the file server lets nobody write there,
// commits are edits of the branch's tree and so leave it as it is, and git, inside
// and on the host, sees the entries of its index marked skip-worktree.

// sparsePaths checks the paths that a new environment is to show of a tree and
// returns them in order, none for the whole tree.
func (e *Engine) sparsePaths(ctx context.Context, tree string, asked []string) ([]string, error) {
	var paths []string
	for _, p := range asked {
		found, err := e.sparsePath(ctx, tree, p)
		if err != nil {
			return nil, err
		}
		paths = append(paths, found...)
	}
	if slices.Contains(paths, "") {
		return nil, nil
	}
	return uniq(paths), nil
}

// sparsePath looks a path up. One with commas that is not there is a list.
func (e *Engine) sparsePath(ctx context.Context, tree, asked string) ([]string, error) {
	there := func(p string) (bool, error) {
		if p == "" {
			return true, nil
		}
		_, err := e.store.Reader.Path(ctx, tree, p)
		if errors.Is(err, objects.ErrNotFound) {
			return false, nil
		}
		return err == nil, err
	}
	clean := func(p string) string { return strings.Trim(path.Clean("/"+p), "/") }
	if ok, err := there(clean(asked)); err != nil || ok {
		return []string{clean(asked)}, err
	}
	var list []string
	for p := range strings.SplitSeq(asked, ",") {
		if p == "" {
			continue
		}
		if ok, err := there(clean(p)); err != nil {
			return nil, err
		} else if !ok {
			return nil, noSuchPath(p)
		}
		list = append(list, clean(p))
	}
	return list, nil
}

func noSuchPath(p string) error {
	if strings.ContainsAny(p, "*?[") || strings.HasPrefix(p, ":") {
		return Errorf(ExitUsage, "--paths takes files and directories, not patterns: '%s'", p).
			WithHint("name the directory; all that is below it is shown")
	}
	return Errorf(ExitFailed, "pathspec '%s' did not match any file in the commit", p).
		WithHint("nothing was made; --paths takes files and directories that the commit has")
}

// cone is what the environment hides, nil for nothing. v.mu is held.
func (v *Env) cone(ctx context.Context) (*fusefs.Cone, error) {
	if len(v.st.Paths) == 0 || v.hidden != nil {
		return v.hidden, nil
	}
	var err error
	v.hidden, err = fusefs.ReadCone(ctx, v.e.store.Reader, v.st.Tree, v.st.Paths)
	return v.hidden, err
}

// fillHidden answers for ignore and attribute files that are hidden: their rules
// hold for what is shown beside and below them.
func (v *Env) fillHidden(ctx context.Context, paths []string, ents []fusefs.DirtyEntry) error {
	c, err := v.cone(ctx)
	if err != nil || c == nil {
		return err
	}
	tip := ""
	for i, p := range paths {
		if b := path.Base(p); b != ".gitignore" && b != ".gitattributes" || !c.Hides(p) {
			continue
		}
		if tip == "" {
			if tip, err = v.e.store.Tip(ctx, v.st.Name); err != nil {
				return err
			}
		}
		te, err := v.e.store.Reader.Path(ctx, tip, p)
		if errors.Is(err, objects.ErrNotFound) || err == nil && te.Mode != objects.ModeFile && te.Mode != objects.ModeExec {
			continue
		}
		if err != nil {
			return err
		}
		size, err := v.e.store.Reader.Size(ctx, te.ID)
		if err != nil {
			return err
		}
		ents[i] = fusefs.DirtyEntry{Name: p, Kind: fusefs.File, Size: size, Blob: te.ID}
	}
	return nil
}

// sparsePatterns is what git's info/sparse-checkout says of a cone: everything
// but what is hidden. Names that come later are shown wherever they can be.
func sparsePatterns(c *fusefs.Cone) []byte {
	// A line cannot have a newline in it; any one character will do.
	quote := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "\n", "?")
	var b bytes.Buffer
	b.WriteString("/*\n")
	for _, p := range c.Hidden() {
		q := quote.Replace(p)
		if trimmed := strings.TrimRight(q, " "); trimmed != q {
			q = trimmed + strings.Repeat(`\ `, len(q)-len(trimmed))
		}
		b.WriteString("!/" + q + "\n")
	}
	return b.Bytes()
}

// sparseConfig switches a git to the patterns.
const sparseConfig = "[core]\n\tsparseCheckout = true\n\tsparseCheckoutCone = false\n"

// sparseArgs does the same for one command.
func sparseArgs(c *fusefs.Cone, args ...string) []string {
	if c == nil {
		return args
	}
	return append([]string{"-c", "core.sparseCheckout=true", "-c", "core.sparseCheckoutCone=false"}, args...)
}

// writeSparse puts git's description of what is hidden into the registration of
// the worktree. Its config there counts only where the repository has
// extensions.worktreeConfig; the marks in the index hold everywhere.
func (v *Env) writeSparse(ctx context.Context) error {
	c, err := v.cone(ctx)
	if err != nil || c == nil {
		return err
	}
	dir := v.e.store.worktreeDir(v.st.Worktree)
	if err := os.MkdirAll(filepath.Join(dir, "info"), 0o777); err != nil {
		return err
	}
	for name, data := range map[string][]byte{"info/sparse-checkout": sparsePatterns(c), "config.worktree": []byte(sparseConfig)} {
		file := filepath.Join(dir, name)
		if old, err := os.ReadFile(file); err == nil && bytes.Equal(old, data) {
			continue
		}
		if err := os.WriteFile(file, data, 0o666); err != nil {
			return err
		}
	}
	return nil
}

// sparseIndex makes the host's index of a sparse environment. It is in place only
// when all that is hidden is marked: without the marks it says that somebody
// deleted it.
func (v *Env) sparseIndex(ctx context.Context, tip string) error {
	tmp := v.indexPath() + ".sparse"
	discard(tmp)
	defer discard(tmp)
	if err := v.e.buildIndex(ctx, v.st.Tree, v.st.LowerTime, tmp); err != nil {
		return err
	}
	g := v.e.store.Git.WithEnv("GIT_INDEX_FILE=" + tmp)
	tree, err := v.e.treeOf(ctx, tip)
	if err != nil {
		return err
	}
	if tree != v.st.Tree {
		if _, err := g.Output(ctx, nil, "read-tree", "-m", tip); err != nil {
			return err
		}
	}
	if err := v.markAll(ctx, g); err != nil {
		return err
	}
	return os.Rename(tmp, v.indexPath())
}

// skipWorktree marks paths of an index as hidden.
func (v *Env) skipWorktree(ctx context.Context, g *gitcmd.Git, paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	if err := os.MkdirAll(v.e.tmpDir(), 0o700); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(v.e.tmpDir(), "sparse-") // git wants a work tree, and looks at nothing in it
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	in := strings.NewReader(strings.Join(paths, "\x00") + "\x00")
	_, err = g.WithWorkTree(dir).Output(ctx, in, "update-index", "--skip-worktree", "-z", "--stdin")
	return err
}

// inTheWayOf refuses a merge that would put a file where a directory has to stay
// because of what is hidden in it.
func inTheWayOf(c *fusefs.Cone, changed []string) error {
	for _, p := range changed {
		if p != "" && c.Leads(p) {
			return Errorf(ExitConflict, "'%s' would become a file, and paths in it are hidden in this environment (created with --paths)", p).
				WithHint("nothing was changed; merge in an environment that shows the whole tree")
		}
	}
	return nil
}

// notices are the reasons of what the file server refused since they were last
// asked for, in words; failed tells that the command did not succeed, so that
// what it did not find matters. v.mu is held.
func (v *Env) notices(ctx context.Context, failed bool) []string {
	if !v.mounted || len(v.st.Paths) == 0 && v.disk == 0 {
		return nil
	}
	n, err := v.files.Notices(ctx, v.st.ID)
	if err != nil {
		v.e.log.Warn("cannot ask what was refused", "env", v.name, "err", err)
		return nil
	}
	out := hiddenNotices(n, failed)
	if n.Full > 0 {
		out = append(out, v.fullNotice(ctx, n.Full))
	}
	return out
}

// hiddenNotices puts what was refused into words; when nothing was, and the
// command failed, what it looked for in vain.
func hiddenNotices(n fusefs.Notices, failed bool) []string {
	const most = 5
	var out, sought []string
	more := n.MoreRefusals
	for _, r := range n.Refusals {
		text := fmt.Sprintf("'%s' is hidden in this environment (created with --paths): it cannot be written here", r.Path)
		switch {
		case r.Sought:
			// Git looks for these everywhere.
			if b := path.Base(r.Path); b != ".gitignore" && b != ".gitattributes" {
				sought = append(sought, "'"+r.Path+"'")
			}
			continue
		case r.Leads:
			text = fmt.Sprintf("'%s' has paths in it that are hidden in this environment (created with --paths): it cannot be moved, removed or replaced", r.Path)
		}
		if len(out) == most {
			more++
			continue
		}
		out = append(out, text)
	}
	switch {
	case len(out) > 0 && more > 0:
		out = append(out, fmt.Sprintf("%d more change(s) of hidden paths were refused", more))
	case len(out) == 0 && failed && len(sought) == 1:
		out = append(out, sought[0]+" is hidden in this environment (created with --paths): it is in the branch, but not to be found or written to here")
	case len(out) == 0 && failed && len(sought) > 0:
		out = append(out, few(sought)+" are hidden in this environment (created with --paths): they are in the branch, but not to be found or written to here")
	}
	return out
}
