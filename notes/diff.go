package notes

import (
	"context"
	"slices"
	"strings"

	"github.com/git-env/git-env/internal/objects"
)

// change is where a note was in one tree and is in another.
type change struct{ from, to []place }

// diff returns the notes that differ between two trees, by commit, whatever
// their layouts. Directories that are the same in both are not read.
func (n *Ref) diff(ctx context.Context, from, to string) (map[string]change, error) {
	changed := map[string]change{}
	if err := n.diffTrees(ctx, "", from, to, changed); err != nil {
		return nil, err
	}
	for commit, ch := range changed {
		if slices.EqualFunc(ch.from, ch.to, func(a, b place) bool { return a.blob == b.blob }) {
			delete(changed, commit) // it has only moved
		}
	}
	return changed, nil
}

func (n *Ref) diffTrees(ctx context.Context, dir, from, to string, changed map[string]change) error {
	if from == to {
		return nil
	}
	sides := [2]map[string]objects.TreeEntry{}
	for i, id := range [2]string{from, to} {
		sides[i] = map[string]objects.TreeEntry{}
		if id == "" {
			continue
		}
		entries, err := n.r.Tree(ctx, id)
		if err != nil {
			return err
		}
		for _, e := range entries {
			sides[i][e.Name] = e
		}
	}
	for name, a := range sides[0] {
		b := sides[1][name]
		delete(sides[1], name)
		if a == b {
			continue
		}
		if err := n.diffEntries(ctx, dir+name, a, b, changed); err != nil {
			return err
		}
	}
	for name, b := range sides[1] {
		if err := n.diffEntries(ctx, dir+name, objects.TreeEntry{}, b, changed); err != nil {
			return err
		}
	}
	return nil
}

// diffEntries compares two entries of one path; a missing one has no id.
func (n *Ref) diffEntries(ctx context.Context, path string, a, b objects.TreeEntry, changed map[string]change) error {
	commit := strings.ReplaceAll(path, "/", "")
	if strings.Trim(commit, "0123456789abcdef") != "" {
		return nil // not a note
	}
	trees := [2]string{}
	for i, e := range [2]objects.TreeEntry{a, b} {
		switch {
		case e.ID == "":
		case e.Mode.IsTree():
			if len(e.Name) == 2 {
				trees[i] = e.ID
			}
		case len(commit) == len(e.ID):
			ch := changed[commit]
			side := []*[]place{&ch.from, &ch.to}[i]
			*side = append(*side, place{path, e.ID})
			changed[commit] = ch
		}
	}
	return n.diffTrees(ctx, path+"/", trees[0], trees[1], changed)
}
