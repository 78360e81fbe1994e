package environment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/git-env/git-env/internal/objects"
)

// maxInsideRefs bounds how many refs of a private git directory are looked at.
const maxInsideRefs = 100_000

// insideOnly names the branches, the stash and the detached HEAD of git inside
// whose commits are nowhere else, which a delete would destroy.
func (v *Env) insideOnly(ctx context.Context) ([]string, error) {
	root, err := os.OpenRoot(filepath.Join(v.dir(), "git"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	refs, err := insideRefs(root)
	if err != nil {
		return nil, err
	}
	here := map[string]bool{}
	var lost []string
	for ref, id := range refs {
		if _, asked := here[id]; !asked {
			_, _, _, err := v.e.store.Reader.Kind(ctx, id)
			if err != nil && !errors.Is(err, objects.ErrNotFound) {
				return nil, err
			}
			here[id] = err == nil
		}
		if !here[id] {
			lost = append(lost, ref)
		}
	}
	slices.Sort(lost)
	return lost, nil
}

// insideRefs reads the refs of a private git directory that work may be on.
func insideRefs(root *os.Root) (map[string]string, error) {
	refs := map[string]string{}
	add := func(ref, id string) error {
		if len(refs) >= maxInsideRefs {
			return fmt.Errorf("git inside has more than %d refs", maxInsideRefs)
		}
		if isObjectID(id) && (ref == "HEAD" || ref == "refs/stash" || strings.HasPrefix(ref, "refs/heads/")) {
			refs[ref] = id
		}
		return nil
	}
	if data, err := rootRead(root, "packed-refs", maxPackedRefs); err == nil {
		for line := range bytes.Lines(data) {
			id, ref, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
			if err := add(ref, id); err != nil {
				return nil, err
			}
		}
	}
	loose := func(name string) error {
		data, err := rootRead(root, name, maxLooseRef)
		if err != nil {
			return nil //nolint:nilerr // no ref to git either
		}
		return add(name, strings.TrimSpace(string(data)))
	}
	err := fs.WalkDir(root.FS(), "refs/heads", func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && d.IsDir() {
			return nil
		}
		if err != nil {
			return err
		}
		return loose(p)
	})
	return refs, errors.Join(err, loose("HEAD"), loose("refs/stash"))
}
