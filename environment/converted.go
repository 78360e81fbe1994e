package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/internal/conversion"
)

// A file of the tree shows what a checkout would have written for it, which its
// blob does not tell. Whatever compares the two has to know.

// conversions says what the user's configuration converts.
func (e *Engine) conversions(ctx context.Context) (*conversion.Config, error) {
	c, err := e.converts.Config(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot read git's configuration: %w", err)
	}
	return c, nil
}

// conversionsOf returns what a checkout of a tree converts, to be ended by
// endConversions. Nothing is started before it is needed.
func (e *Engine) conversionsOf(ctx context.Context, tree string) (*conversion.Tree, error) {
	config, err := e.conversions(ctx)
	if err != nil {
		return nil, err
	}
	l := slog.NewLogLogger(e.log.Handler(), slog.LevelWarn)
	return conversion.NewTree(e.store.Git, e.store.Reader, tree, config, e.tmpDir(), l), nil
}

func (e *Engine) endConversions(t *conversion.Tree) {
	if err := t.Close(); err != nil {
		e.log.Warn("conversions", "err", err)
	}
}

// retry describes a file again whose converted content has vanished from the
// cache; describing it makes it anew.
func (v *Env) retry(ctx context.Context, f changedFile) (changedFile, error) {
	ents, err := v.stat(ctx, []string{f.path})
	if err != nil {
		return f, err
	}
	if len(ents) != 1 || ents[0].Kind == fusefs.Deleted {
		return f, os.ErrNotExist
	}
	f.ent = ents[0]
	return f, nil
}

// converted returns the paths of a tree that a checkout converts, or may. listing
// is what `git ls-tree -r -l -z` says of it.
func (e *Engine) converted(ctx context.Context, tree string, listing []byte) (map[string]*conversion.Rule, error) {
	files, rules := listFiles(listing)
	t, err := e.conversionsOf(ctx, tree)
	if err != nil {
		return nil, err
	}
	defer e.endConversions(t)
	if len(rules) == 0 && !t.Global() {
		return nil, nil
	}
	dirs := make([]string, 0, len(files))
	for d := range files {
		dirs = append(dirs, d)
	}
	slices.Sort(dirs) // the ones above come first
	found := map[string]*conversion.Rule{}
	for _, d := range dirs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		got, err := t.Rules(ctx, d, rules[d], files[d])
		if err != nil {
			return nil, err
		}
		for i, r := range got {
			if r != nil {
				found[path.Join(d, files[d][i])] = r
			}
		}
	}
	return found, nil
}

// listFiles returns the names of regular files by directory, with all directories
// above them, and the ids of the .gitattributes by directory.
func listFiles(listing []byte) (files map[string][]string, rules map[string]string) {
	files, rules = map[string][]string{"": nil}, map[string]string{}
	for item := range strings.SplitSeq(strings.TrimSuffix(string(listing), "\x00"), "\x00") {
		meta, name, ok := strings.Cut(item, "\t")
		f := strings.Fields(meta)
		if !ok || len(f) != 4 || !strings.HasPrefix(f[0], "100") {
			continue
		}
		dir, base := parentOf(name), path.Base(name)
		files[dir] = append(files[dir], base)
		if base == ".gitattributes" {
			rules[dir] = f[2]
		}
		for up := parentOf(dir); ; up = parentOf(up) {
			if _, there := files[up]; there {
				break
			}
			files[up] = nil
		}
	}
	return files, rules
}

// conversionMark is part of the name of an index that is made under a
// configuration which converts, lest it be used under another one.
func (e *Engine) conversionMark() string {
	config, err := e.converts.Config(e.life)
	if err != nil || config.Fingerprint() == "" {
		return ""
	}
	return "-" + config.Fingerprint()
}

// checkConversions drops the indexes when they are of a time at which files were
// converted in another way: they have their sizes. They are made again when they
// are needed, without what was staged in them.
func (v *Env) checkConversions() error {
	const name = "conversions"
	now := v.e.conversionMark()
	was, err := os.ReadFile(filepath.Join(v.dir(), name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if string(was) == now {
		return nil
	}
	discard(v.indexPath())
	root, err := os.OpenRoot(v.insideDir())
	if err == nil {
		if !midOperation(root) && !rebasing(root) {
			_ = root.Remove("index")
		}
		root.Close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return v.writeFile(name, []byte(now))
}
