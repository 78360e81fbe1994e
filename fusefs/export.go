package fusefs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
)

// ExportOptions say what to export.
type ExportOptions struct {
	GitDir   string
	BlobDir  string
	LayerDir string
	// Spec is the workspace as for a mount; Layers are those to be seen, all of
	// which exist and are not written to. Dir and DotGit do not matter.
	Spec MountSpec
	// Layer limits it to what the last layer of Spec changes. What that takes
	// away is there as whiteouts, as in the layers of OCI images: an empty file
	// .wh.<name> for a name that is gone, and .wh..wh..opq in a directory that has
	// nothing of the one that it replaces.
	Layer bool
}

// An ExportEntry is one name that is exported. Parents come first.
type ExportEntry struct {
	// Path is relative to the top, which is ".".
	Path string
	// Mode has the type and the permissions as in stat(2).
	Mode     uint32
	UID, GID uint32
	Rdev     uint32
	Mtime    time.Time
	// Target is where a symbolic link leads.
	Target string
	// Link is an earlier path of the same file, when there is one: the entry is
	// one more name of it.
	Link   string
	Xattrs map[string][]byte
	// Size is that of the content of a file.
	Size int64

	ref *fdRef
}

// Content reads the content of a file.
func (e *ExportEntry) Content() io.Reader {
	if e.ref == nil {
		return strings.NewReader("")
	}
	return io.NewSectionReader(e.ref, 0, e.Size)
}

const (
	whiteout = ".wh."
	opaque   = whiteout + whiteout + ".opq"
)

// ErrWhiteoutName reports a name that could not be told from a whiteout.
var ErrWhiteoutName = errors.New("a name that begins with " + whiteout + " cannot be exported as part of a layer")

// Export passes a workspace, or what one layer changes in it, to put. It reads
// layers, blobs and git; nothing is mounted.
func Export(ctx context.Context, o ExportOptions, put func(*ExportEntry) error) error {
	quiet := log.New(io.Discard, "", 0)
	git := gitcmd.New(o.GitDir).WithEnv("GIT_NO_REPLACE_OBJECTS=1")
	reader := objects.NewReader(git, 1)
	defer reader.Close()
	// Nothing is forgotten here, where nobody asks twice.
	sh := &shared{layerDir: o.LayerDir, objs: gitObjects{reader}, fds: newFdCache(8), log: quiet, nodeLimit: math.MaxInt}
	sh.conv = newConverters(git, reader, filepath.Join(filepath.Dir(o.BlobDir), "tmp"), quiet)
	s := newServer(sh, o.BlobDir, 0)
	spec := o.Spec
	spec.ReadOnly, spec.DotGit = true, ""
	w, err := newWorkspace(ctx, spec, s.shared)
	if err != nil {
		return err
	}
	defer w.close()
	x := &exporter{w: w, put: put, first: map[uint64]string{}}
	if o.Layer {
		if x.m, err = changesOf(o); err != nil {
			return err
		}
	}
	if err := x.entry(w.t.root, "."); err != nil {
		return err
	}
	return x.dir(ctx, w.t.root, ".", !o.Layer)
}

// changesOf notes what the last layer touches.
func changesOf(o ExportOptions) (*merger, error) {
	t, err := mergeTree(o.Spec.Tree)
	if err != nil {
		return nil, err
	}
	n := len(o.Spec.Layers) - 1
	m := newMerger(t)
	_, err = replayFor(MergeOptions{LayerDir: o.LayerDir, Below: o.Spec.Layers[:n], Run: o.Spec.Layers[n:]}, t, m)
	return m, err
}

type exporter struct {
	w     *workspace
	put   func(*ExportEntry) error
	first map[uint64]string // the first path of files with several names
	m     *merger           // nil for a whole workspace
}

// dir exports what is in p; all: everything, not only what the layer touches.
func (x *exporter) dir(ctx context.Context, p *node, path string, all bool) error {
	if err := x.w.loadIf(ctx, p); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if x.m != nil && !all {
		if err := x.gone(p, path); err != nil {
			return err
		}
	}
	names := make([]string, 0, len(p.dir.ents))
	for name := range p.dir.ents {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := p.dir.get(name)
		came := x.m != nil && x.came(p, name, n)
		if !all && !came && !x.touched(n) {
			continue
		}
		if x.m != nil && strings.HasPrefix(name, whiteout) {
			return fmt.Errorf("%s: %w", filepath.Join(path, name), ErrWhiteoutName)
		}
		if err := x.tree(ctx, n, filepath.Join(path, name), all || came, came && !all && x.replaced(p, name)); err != nil {
			return err
		}
	}
	return nil
}

func (x *exporter) tree(ctx context.Context, n *node, path string, all, replaced bool) error {
	if err := x.entry(n, path); err != nil || !n.isDir() {
		return err
	}
	if replaced {
		if err := x.marker(n, filepath.Join(path, opaque)); err != nil {
			return err
		}
	}
	return x.dir(ctx, n, path, all)
}

// gone exports whiteouts for the names of p that the layer took away.
func (x *exporter) gone(p *node, path string) error {
	var names []string
	for k := range x.m.names {
		if k.parent == p.ino && p.dir.get(k.name) == nil && x.replaced(p, k.name) {
			names = append(names, k.name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if err := x.marker(p, filepath.Join(path, whiteout+name)); err != nil {
			return err
		}
	}
	return nil
}

// replaced reports whether name was in p underneath, or may have been.
func (x *exporter) replaced(p *node, name string) bool {
	if x.m.names[link64{p.ino, name}] {
		return true
	}
	q := x.m.t.nodes[p.ino]
	if q == nil || !q.isDir() {
		return false
	}
	_, hidden := q.dir.hidden[name]
	return hidden
}

// came reports whether n got its name in the layer. That of an entry of the tree
// is only told of there.
func (x *exporter) came(p *node, name string, n *node) bool {
	if _, ok := x.m.names[link64{p.ino, name}]; !ok {
		return false
	}
	return n.flags&lower == 0 || n.ino != hashIno(p.ino, name)
}

func (x *exporter) touched(n *node) bool {
	if x.m == nil {
		return true
	}
	_, ok := x.m.nodes[n.ino]
	return ok
}

func (x *exporter) marker(p *node, path string) error {
	return x.put(&ExportEntry{Path: path, Mode: syscall.S_IFREG | 0o600, Mtime: time.Unix(0, p.mtime)})
}

// entry exports n itself.
func (x *exporter) entry(n *node, path string) error {
	var a fuse.Attr
	x.w.mu.RLock()
	st := x.w.attr(n, &a)
	x.w.mu.RUnlock()
	if !st.Ok() {
		return fmt.Errorf("%s: %w", path, syscall.Errno(st))
	}
	e := &ExportEntry{
		Path: path, Mode: a.Mode, UID: a.Uid, GID: a.Gid, Rdev: a.Rdev,
		Mtime: time.Unix(int64(a.Mtime), int64(a.Mtimensec)),
	}
	if n.ext != nil {
		e.Xattrs = n.ext.xattr
	}
	if !n.isDir() && n.nlink > 1 {
		if e.Link = x.first[n.ino]; e.Link == "" {
			x.first[n.ino] = path
		}
	}
	switch n.kind() {
	case syscall.S_IFLNK:
		target, st := x.w.Readlink(nil, &fuse.InHeader{NodeId: n.ino})
		if !st.Ok() {
			return fmt.Errorf("%s: %w", path, syscall.Errno(st))
		}
		e.Target = string(target)
	case syscall.S_IFREG:
		e.Size = int64(a.Size)
		if e.Link != "" {
			break
		}
		ref, st := x.w.backing(n.ino)
		if !st.Ok() {
			return fmt.Errorf("%s: %w", path, syscall.Errno(st))
		}
		if ref != nil {
			defer x.w.fds.release(ref)
		}
		e.ref = ref
	}
	return x.put(e)
}
