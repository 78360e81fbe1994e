package environment

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/index"

	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/internal/conversion"
	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
)

// The index of a fresh workspace is written with the very stat data that the
// file server reports, so that the first `git status` need not read a single
// file. It is made once per commit and shared by the environments that start
// there.

// indexPath is the host's index of the environment's worktree.
func (v *Env) indexPath() string {
	return filepath.Join(v.e.store.worktreeDir(v.fixed.Worktree), "index")
}

// cachedIndex is the index of what an environment started from, shared by all
// that started there.
func (e *Engine) cachedIndex(st *State) string {
	return filepath.Join(e.store.Dir, "index", st.Tree+"-"+strconv.FormatInt(st.LowerTime.Unix(), 10)+e.conversionMark())
}

// ensureIndex makes the host's index when there is none. v.mu is held.
func (v *Env) ensureIndex(ctx context.Context) error {
	if _, err := os.Lstat(v.indexPath()); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	tip, err := v.e.store.Tip(ctx, v.st.Name)
	if err != nil {
		return err
	}
	v.catch.work.Lock()
	defer v.catch.work.Unlock()
	v.standing(tip)
	if err := v.makeIndex(ctx, tip); err != nil {
		return err
	}
	v.stands(func(s *standing) { s.Host = tip })
	return nil
}

// makeIndex writes the host's index of a commit.
func (v *Env) makeIndex(ctx context.Context, tip string) error {
	if c, err := v.cone(ctx); err != nil || c != nil {
		if err == nil {
			err = v.sparseIndex(ctx, tip)
		}
		return err
	}
	ready, err := v.e.indexFor(ctx, v.st)
	if err != nil {
		return err
	}
	if !ready {
		// Without sizes: right, and there at once; git reads files to fill it in.
		if _, err := v.gitIndex().Output(ctx, nil, "read-tree", tip); err != nil {
			discard(v.indexPath())
			return err
		}
		return nil
	}
	if err := copyFile(v.e.cachedIndex(v.st), v.indexPath(), 0o644); err != nil {
		return err
	}
	tree, err := v.e.treeOf(ctx, tip)
	if err != nil || tree == v.st.Tree {
		return err
	}
	// The workspace differs from its lower tree: git works the rest out.
	if _, err = v.gitIndex().Output(ctx, nil, "read-tree", "-m", tip); err != nil {
		discard(v.indexPath()) // it would show changes that nobody made
	}
	return err
}

// indexPatience is how long the first exec waits for the index of a large tree.
const indexPatience = 300 * time.Millisecond

// indexFor has the index of what an environment started from made, once for all
// that start there, and says whether it is ready. It takes time by the number of
// files, above all where their objects are loose; beyond a little patience it goes
// on beside, for those who come later.
func (e *Engine) indexFor(ctx context.Context, st *State) (bool, error) {
	file := e.cachedIndex(st)
	if _, err := os.Stat(file); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err == nil, err
	}
	patience := time.NewTimer(indexPatience)
	defer patience.Stop()
	select {
	case err := <-e.startIndex(st, file):
		return err == nil, err
	case <-patience.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// awaitIndexFor waits a few seconds for what indexFor does: without it git on the
// host reads every file once.
func (e *Engine) awaitIndexFor(ctx context.Context, st *State) {
	const most, pause = 5 * time.Second, 20 * time.Millisecond
	for deadline := time.Now().Add(most); time.Now().Before(deadline); {
		if ready, err := e.indexFor(ctx, st); ready || err != nil {
			return // ensureIndex sees the same
		}
		time.Sleep(pause)
	}
}

// startIndex starts the making of an index unless it is under way; then nothing
// comes.
func (e *Engine) startIndex(st *State, file string) <-chan error {
	e.indexes.Lock()
	defer e.indexes.Unlock()
	done := make(chan error, 1)
	if err := e.life.Err(); err != nil {
		done <- err
		return done
	}
	if e.indexes.making[file] {
		return done
	}
	if e.indexes.making == nil {
		e.indexes.making = map[string]bool{}
	}
	e.indexes.making[file] = true
	ctx, tree, at := e.life, st.Tree, st.LowerTime
	e.indexes.Go(func() {
		err := e.buildIndex(ctx, tree, at, file)
		if err != nil && ctx.Err() == nil {
			e.log.Warn("cannot make an index", "tree", tree, "err", err)
		}
		e.indexes.Lock()
		delete(e.indexes.making, file)
		e.indexes.Unlock()
		done <- err
	})
	return done
}

// buildIndex writes the index of a tree to file.
func (e *Engine) buildIndex(ctx context.Context, tree string, at time.Time, file string) error {
	if err := durable.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	out, err := e.store.listTree(ctx, tree)
	if err != nil {
		return err
	}
	converted, err := e.converted(ctx, tree, out)
	if err != nil {
		return err
	}
	if err := writeFiltered(file, converted); err != nil {
		return err
	}
	if e.store.Repo.ObjectFormat != objects.SHA1 {
		// The encoder knows SHA-1 alone; git then reads files to fill in the rest.
		_, err := e.store.Git.WithEnv("GIT_INDEX_FILE="+file).Output(ctx, nil, "read-tree", tree)
		return err
	}
	idx, err := freshIndex(out, at, converted)
	if err != nil {
		return err
	}
	return durable.Write(file, 0o600, func(w io.Writer) error {
		b := bufio.NewWriterSize(w, 1<<20)
		if err := index.NewEncoder(b).Encode(idx); err != nil {
			return err
		}
		return b.Flush()
	})
}

// freshIndex turns `git ls-tree -r -l -z` into an index of untouched files. The
// size of a converted one is not known: git reads it to fill it in.
func freshIndex(listing []byte, at time.Time, converted map[string]*conversion.Rule) (*index.Index, error) {
	idx := &index.Index{Version: 2}
	inos := map[string]uint64{"": fusefs.RootIno}
	for item := range bytes.SplitSeq(bytes.TrimSuffix(listing, []byte{0}), []byte{0}) {
		if len(item) == 0 {
			continue
		}
		meta, name, ok := strings.Cut(string(item), "\t")
		f := strings.Fields(meta)
		if !ok || len(f) != 4 {
			return nil, fmt.Errorf("git ls-tree: bad line %q", item)
		}
		mode, err := strconv.ParseUint(f[0], 8, 32)
		if err != nil {
			return nil, err
		}
		size, _ := strconv.ParseUint(f[3], 10, 64) // "-" for a submodule, and for what is not here
		id, err := hex.DecodeString(f[2])
		if err != nil {
			return nil, err
		}
		en := &index.Entry{Name: name, Mode: filemode.FileMode(mode), Size: uint32(size), CreatedAt: at, ModifiedAt: at,
			UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
			Inode: uint32(fusefs.LowerIno(dirIno(inos, parentOf(name)), path.Base(name)))}
		if converted[name] != nil {
			en.Size, en.CreatedAt, en.ModifiedAt = 0, time.Time{}, time.Time{}
		}
		copy(en.Hash[:], id)
		idx.Entries = append(idx.Entries, en)
	}
	return idx, nil
}

func dirIno(known map[string]uint64, dir string) uint64 {
	if ino, ok := known[dir]; ok {
		return ino
	}
	ino := fusefs.LowerIno(dirIno(known, parentOf(dir)), path.Base(dir))
	known[dir] = ino
	return ino
}

// gitIndex runs git on the index of the environment's worktree, without a work
// tree.
func (v *Env) gitIndex() *gitcmd.Git {
	return v.e.store.Git.WithEnv("GIT_INDEX_FILE=" + v.indexPath())
}

// copyFile copies a file by way of a temporary one beside the target. It is not
// flushed to the disk, no more than git does with an index: it can be made anew.
func copyFile(from, to string, perm fs.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	tmp := to + durable.TempPrefix
	if err := os.WriteFile(tmp, data, perm); err != nil {
		discard(tmp)
		return err
	}
	return os.Rename(tmp, to)
}
