package environment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
	"github.com/git-env/git-env/internal/secret"
)

// Commits made by git inside are taken over before the rest is committed on top.
// The private git directory is the container's: its objects are copied by name
// into a quarantine, packed, and checked by index-pack with fsck on the way into
// the repository; its config, hooks and alternates are never read.

// Bounds of what is read of a private git directory, in bytes: all objects that
// are taken over at once, the packed refs, and one loose ref.
const (
	maxInsideObjects = 8 << 30
	maxPackedRefs    = 64 << 20
	maxLooseRef      = 256
)

// takenOver is what a takeover did to the branch.
type takenOver struct {
	from, to string
	// unseen are paths that were committed before without git inside knowing, so
	// that what it committed has them as they were.
	unseen []string
}

// before is the branch's tip before the takeover, "" when there was none.
func (t *takenOver) before() string {
	if t == nil {
		return ""
	}
	return t.from
}

// paths are those to look at again.
func (t *takenOver) paths() []string {
	if t == nil {
		return nil
	}
	return t.unseen
}

// takeInside moves the branch to what git inside committed. nil means that
// nothing was committed there. A history that was rewritten inside is joined to
// the old one with a merge, so that both stay. v.mu is held.
func (v *Env) takeInside(ctx context.Context, caller api.Caller, hold *lateHold, known *secret.Set) (*takenOver, error) {
	root, err := os.OpenRoot(filepath.Join(v.dir(), "git"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	inside := insideTip(root, v.st.Branch())
	tip, err := v.e.store.Tip(ctx, v.st.Name)
	if err != nil || inside == "" || inside == tip {
		return nil, err
	}
	seen := v.standing(tip).Inside
	if inside == seen {
		return nil, nil // it is to be brought up
	}
	if known, err := v.e.isMerged(ctx, inside, tip, ""); err == nil && known {
		return nil, nil // behind: the host moved the branch
	}
	if err := v.importInside(ctx, root, inside, tip, known); err != nil {
		return nil, fmt.Errorf("what git inside committed (%.12s) is not taken over: %w", inside, err)
	}
	to := inside
	if forward, err := v.e.isMerged(ctx, tip, inside, ""); err != nil {
		return nil, err
	} else if !forward {
		if to, err = v.joinRewritten(ctx, caller, tip, inside); err != nil {
			return nil, err
		}
	}
	taken := &takenOver{from: tip, to: to}
	if seen != "" && seen != tip {
		edits, err := v.e.indexEdits(ctx, seen, tip)
		if err != nil {
			return nil, err
		}
		for _, e := range edits {
			taken.unseen = append(taken.unseen, e.Path)
		}
	}
	hold.begin(ctx)
	err = v.e.store.Git.UpdateRefs(ctx, "git env: committed inside", gitcmd.RefUpdate{Ref: v.st.Branch(), New: to, Old: tip})
	if err != nil {
		return nil, err
	}
	v.stands(func(s *standing) { s.Inside = inside })
	return taken, nil
}

// joinRewritten makes a commit with the content of rewritten and both histories.
func (v *Env) joinRewritten(ctx context.Context, caller api.Caller, tip, rewritten string) (string, error) {
	c, err := v.e.store.Reader.Commit(ctx, rewritten)
	if err != nil {
		return "", err
	}
	ident, err := v.e.identity(ctx, caller)
	if err != nil {
		return "", err
	}
	id, err := v.e.writer.Commit(&objects.Commit{Tree: c.Tree, Parents: []string{tip, rewritten},
		Author: ident.author, Committer: ident.committer,
		Message: "History rewritten inside\n\n" + subject(c.Message) + "\n"})
	if err != nil {
		return "", err
	}
	return id, v.e.writer.Sync()
}

// insideTip reads the branch from a private git directory; "" when it is not
// there or no object id.
func insideTip(root *os.Root, ref string) string {
	if data, err := rootRead(root, ref, maxLooseRef); err == nil {
		if id := strings.TrimSpace(string(data)); isObjectID(id) {
			return id
		}
	}
	data, err := rootRead(root, "packed-refs", maxPackedRefs)
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(data) {
		id, name, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
		if ok && name == ref && isObjectID(id) {
			return id
		}
	}
	return ""
}

func isObjectID(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

// rootRead reads a regular file below root, up to limit bytes.
func rootRead(root *os.Root, name string, limit int64) ([]byte, error) {
	f, fi, err := rootOpen(root, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if fi.Size() > limit {
		return nil, fmt.Errorf("%s: more than %d bytes", name, limit)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// rootOpen opens a regular file below root.
func rootOpen(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	odd := func() error { return &fs.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")} }
	// To open a device can be to do something with it.
	if fi, err := root.Stat(name); err != nil || !fi.Mode().IsRegular() {
		return nil, nil, errors.Join(err, odd())
	}
	// Not blocking on a fifo that took its place.
	f, err := root.OpenFile(name, os.O_RDONLY|oNonblock, 0)
	if err != nil {
		return nil, nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = odd()
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, fi, nil
}

// takenFile has the time of the last takeover as its own: what git inside wrote
// before it is in the repository, as a rule.
const takenFile = "taken"

// clockSlack is how much the time of a file may lag behind the clock.
const clockSlack = 2 * time.Second

// importInside brings the objects between tip and inside into the repository,
// looking first only at what is new since the last time.
func (v *Env) importInside(ctx context.Context, root *os.Root, inside, tip string, known *secret.Set) error {
	started := time.Now()
	file := filepath.Join(v.dir(), takenFile)
	var since time.Time
	if fi, err := os.Stat(file); err == nil {
		since = fi.ModTime().Add(-clockSlack)
	}
	err := v.importSince(ctx, root, inside, tip, since, known)
	var held *heldImport
	if err != nil && !errors.As(err, &held) && !since.IsZero() && ctx.Err() == nil {
		// It may need what another branch had for long.
		err = v.importSince(ctx, root, inside, tip, time.Time{}, known)
	}
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	return os.Chtimes(file, started, started)
}

func (v *Env) importSince(ctx context.Context, root *os.Root, inside, tip string, since time.Time, known *secret.Set) error {
	if err := os.MkdirAll(v.e.tmpDir(), 0o700); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(v.e.tmpDir(), "quarantine-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := copyObjects(root, dir, since); err != nil {
		return err
	}
	real := filepath.Join(v.e.store.Repo.CommonDir, "objects")
	q := v.e.store.Git.WithEnv("GIT_NO_REPLACE_OBJECTS=1", "GIT_OBJECT_DIRECTORY="+dir, "GIT_ALTERNATE_OBJECT_DIRECTORIES="+quotePath(real))
	packs, err := filepath.Glob(filepath.Join(globEscape(dir), "pack", "*.pack"))
	if err != nil {
		return err
	}
	for _, p := range packs { // an index of ours: the one that came along is not to be trusted
		if _, err := q.Output(ctx, nil, "index-pack", "--strict", p); err != nil {
			return err
		}
	}
	list, err := q.Output(ctx, nil, "rev-list", "--objects", inside, "^"+tip)
	if err != nil {
		return err
	}
	if err := v.checkImport(ctx, q, known, list); err != nil {
		return err
	}
	var ids bytes.Buffer
	for line := range bytes.Lines(list) {
		id, _, _ := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
		ids.Write(id)
		ids.WriteByte('\n')
	}
	pack := filepath.Join(dir, "taken.pack")
	if err := packInto(ctx, q, &ids, pack); err != nil {
		return err
	}
	f, err := os.Open(pack)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = v.e.store.Git.Output(ctx, f, "index-pack", "--stdin", "--strict", "--fix-thin")
	return err
}

func packInto(ctx context.Context, g *gitcmd.Git, ids io.Reader, file string) error {
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := g.Command(ctx, "pack-objects", "--stdout", "-q")
	cmd.Stdin, cmd.Stdout = ids, out
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("git pack-objects: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return out.Close()
}

// quotePath quotes a path for a list of alternates, which are separated by
// colons.
func quotePath(p string) string {
	if !strings.ContainsAny(p, ":\"\\\n") {
		return p
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(p) + `"`
}

// copyObjects copies what looks like an object or a pack, and nothing else, from
// a private git directory to dir, of files that are not older than since.
func copyObjects(root *os.Root, dir string, since time.Time) error {
	dirName := regexp.MustCompile(`^(?:[0-9a-f]{2}|pack)$`)
	name := regexp.MustCompile(`^(?:[0-9a-f]{2}/[0-9a-f]{38}(?:[0-9a-f]{24})?|pack/pack-[0-9a-f]{40}(?:[0-9a-f]{24})?\.pack)$`)
	left := int64(maxInsideObjects)
	return fs.WalkDir(root.FS(), "objects", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(p, "objects/")
		if d.IsDir() {
			if p != "objects" && !dirName.MatchString(rel) {
				return fs.SkipDir
			}
			return nil
		}
		if !name.MatchString(rel) || !d.Type().IsRegular() {
			return nil
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		if fi.ModTime().Before(since) {
			return nil
		}
		n, err := copyObject(root, p, filepath.Join(dir, rel), left)
		left -= n
		return err
	})
}

func copyObject(root *os.Root, from, to string, limit int64) (int64, error) {
	in, _, err := rootOpen(root, from)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return 0, err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	n, err := io.Copy(out, io.LimitReader(in, limit+1))
	if err == nil && n > limit {
		err = fmt.Errorf("more than %d bytes of objects", int64(maxInsideObjects))
	}
	return n, err
}
