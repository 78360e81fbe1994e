package environment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/internal/gitcmd"
)

// maxRules bounds the size in bytes of a .gitignore or .gitattributes that is
// looked at; git itself stops at 100 MiB for attributes.
const maxRules = 32 << 20

// scratch is a throw-away work tree that holds nothing but the ignore and
// attribute files which bear on the paths of one commit, so that git itself
// decides what is ignored and how content is cleaned without ever looking into
// the mount, and in time that depends on what changed alone.
type scratch struct {
	dir   string
	git   *gitcmd.Git
	files fileView
	have  map[string]bool // directories whose rules are in place
	// attributes tells that some .gitattributes was found.
	attributes bool
}

// fileView is what a scratch needs of a workspace.
type fileView interface {
	stat(ctx context.Context, paths []string) ([]fusefs.DirtyEntry, error)
	content(ctx context.Context, e fusefs.DirtyEntry, limit int64) ([]byte, error)
}

func newScratch(tmp string, g *gitcmd.Git, files fileView) (*scratch, error) {
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(tmp, "scratch-")
	if err != nil {
		return nil, err
	}
	// Not the user's index: git falls back on the rules in it.
	ours := g.WithWorkTree(dir).WithPathspecMagic().WithEnv("GIT_INDEX_FILE=" + filepath.Join(dir, ".git", "index"))
	return &scratch{dir: dir, git: ours, files: files, have: map[string]bool{}}, nil
}

func (s *scratch) close() { _ = os.RemoveAll(s.dir) }

// load puts the rules of the given directories and all above them in place.
func (s *scratch) load(ctx context.Context, dirs []string) error {
	var want []string
	for _, d := range dirs {
		for ; !s.have[d]; d = parentOf(d) {
			s.have[d] = true
			want = append(want, path.Join(d, ".gitignore"), path.Join(d, ".gitattributes"))
			if d == "" {
				break
			}
		}
	}
	if len(want) == 0 {
		return nil
	}
	entries, err := s.files.stat(ctx, want)
	if err != nil {
		return err
	}
	for i, e := range entries {
		// A link is no rule file to git either.
		if e.Kind != fusefs.File || e.Size == 0 {
			continue
		}
		data, err := s.files.content(ctx, e, maxRules)
		if err != nil {
			return fmt.Errorf("cannot read %s: %w", want[i], err)
		}
		if err := s.put(want[i], data); err != nil {
			return err
		}
		if path.Base(want[i]) == ".gitattributes" {
			s.attributes = true
		}
	}
	return nil
}

func (s *scratch) put(rel string, data []byte) error {
	full := filepath.Join(s.dir, rel)
	if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
		return err
	}
	return os.WriteFile(full, data, 0o600)
}

// candidate is an untracked path that may be ignored.
type candidate struct {
	path  string
	dir   bool
	whole bool // a directory of which everything counts
}

// ignored asks git which of the untracked paths are ignored. The rules of their
// directories must be in place.
func (s *scratch) ignored(ctx context.Context, cands []candidate) ([]bool, error) {
	out := make([]bool, len(cands))
	if len(cands) == 0 {
		return out, nil
	}
	var in bytes.Buffer
	for _, c := range cands {
		if c.dir { // so that a pattern for directories alone sees one
			if err := os.MkdirAll(filepath.Join(s.dir, c.path), 0o700); err != nil {
				return nil, err
			}
		}
		in.WriteString("./") // lest a name with a colon first be taken for pathspec magic
		in.WriteString(c.path)
		in.WriteByte(0)
	}
	res, err := s.git.Output(ctx, &in, "check-ignore", "-z", "-v", "-n", "--no-index", "--stdin")
	var ge *gitcmd.Error
	if err != nil && !(errors.As(err, &ge) && ge.ExitCode == 1) { // 1: none is ignored
		return nil, err
	}
	fields := strings.Split(strings.TrimSuffix(string(res), "\x00"), "\x00")
	if len(fields) != 4*len(cands) {
		return nil, fmt.Errorf("git check-ignore answered %d fields for %d paths", len(fields), len(cands))
	}
	for i := range cands {
		pattern := fields[4*i+2]
		out[i] = pattern != "" && !strings.HasPrefix(pattern, "!")
	}
	return out, nil
}

// attrs are the attributes that change what is stored for a file.
type attrs struct {
	filter, text, eol, ident, encoding, crlf string
	config                                   bool // the configuration has line ends converted without any
}

// plain says that content is stored as it is, whatever is in it.
func (a attrs) plain() bool { return a == attrs{} }

// only line ends: a file without CRLF is stored as it is.
func (a attrs) lineEndsOnly() bool {
	return a.filter == "" && a.ident == "" && a.encoding == ""
}

// automatic says that git decides by the content whether to convert line ends.
func (a attrs) automatic() bool {
	return a.text == "auto" || a.crlf == "auto" || a.text == "" && a.eol == "" && a.crlf == ""
}

// attributesOf asks git for the attributes of paths; nil when no rule could give
// any.
func (s *scratch) attributesOf(ctx context.Context, paths []string, always bool) ([]attrs, error) {
	if len(paths) == 0 || !s.attributes && !always {
		return nil, nil
	}
	in := strings.NewReader(strings.Join(paths, "\x00") + "\x00")
	names := []string{"filter", "text", "eol", "ident", "working-tree-encoding", "crlf"}
	res, err := s.git.Output(ctx, in, append([]string{"check-attr", "-z", "--stdin"}, names...)...)
	if err != nil {
		return nil, err
	}
	fields := strings.Split(strings.TrimSuffix(string(res), "\x00"), "\x00")
	if len(fields) != 3*len(names)*len(paths) {
		return nil, fmt.Errorf("git check-attr answered %d fields for %d paths", len(fields), len(paths))
	}
	out := make([]attrs, len(paths))
	for i := range paths {
		a := &out[i]
		for j, dst := range []*string{&a.filter, &a.text, &a.eol, &a.ident, &a.encoding, &a.crlf} {
			v := fields[3*(i*len(names)+j)+2]
			if v != "unspecified" && v != "unset" {
				*dst = v
			}
		}
	}
	return out, nil
}

// clean stores a file's content as git's own filters and conversions make it,
// and returns the blob.
func (s *scratch) clean(ctx context.Context, rel, data string) (string, error) {
	f, err := openData(data)
	if err != nil {
		return "", err
	}
	defer f.Close()
	// Line ends that do not come back the same are warned of, not refused: the
	// commit is made for whoever wrote the file, and asks nobody.
	out, err := s.git.Output(ctx, f, "-c", "core.safecrlf=false", "hash-object", "-w", "--stdin", "--path="+rel)
	return strings.TrimSpace(string(out)), err
}

func parentOf(dir string) string {
	if i := strings.LastIndexByte(dir, '/'); i >= 0 {
		return dir[:i]
	}
	return ""
}

// openData opens a layer's data file; it is ours, but nothing there is worth
// following a link for.
func openData(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|oNofollow, 0)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
