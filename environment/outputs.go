package environment

import (
	"context"

	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
)

// Whole outputs are kept in a tree by exec id, which sorts by time. When they
// take more than the limit together, the oldest leave the tree; their records
// stay, and git keeps the blobs until it collects garbage.

// keepOutput returns the update that adds an exec's output to the ones that are
// kept. v.mu is held.
func (v *Env) keepOutput(ctx context.Context, id, blob string) (gitcmd.RefUpdate, error) {
	up := gitcmd.RefUpdate{Ref: OutputRef(v.name)}
	var err error
	if up.Old, err = v.e.store.ref(ctx, up.Ref); err != nil {
		return up, err
	}
	edits := []objects.Edit{{Path: id, Mode: objects.ModeFile, ID: blob}}
	root := up.Old
	if root == "" {
		root = objects.EmptyTree(v.e.store.Repo.ObjectFormat)
	} else {
		old, err := v.oldestOutputs(ctx, root, blob)
		if err != nil {
			return up, err
		}
		edits = append(edits, old...)
	}
	up.New, err = objects.EditTree(ctx, v.e.store.Reader, v.e.writer, root, edits)
	return up, err
}

// oldestOutputs returns the removal of the oldest outputs that have to go so that
// the rest and the new one stay within the limit.
func (v *Env) oldestOutputs(ctx context.Context, tree, blob string) ([]objects.Edit, error) {
	kept, err := v.e.store.Reader.Tree(ctx, tree)
	if err != nil {
		return nil, err
	}
	ids := []string{blob}
	for _, e := range kept {
		ids = append(ids, e.ID)
	}
	if err := v.sizeOutputs(ctx, ids); err != nil {
		return nil, err
	}
	var total int64
	for _, id := range ids {
		total += v.outputSizes[id]
	}
	var edits []objects.Edit
	for _, e := range kept { // in order of their ids, which is that of time
		if total <= v.e.setting.OutputLimit {
			break
		}
		total -= v.outputSizes[e.ID]
		edits = append(edits, objects.Edit{Path: e.Name})
	}
	return edits, nil
}

// sizeOutputs learns the sizes of outputs that are not known yet.
func (v *Env) sizeOutputs(ctx context.Context, ids []string) error {
	var ask []string
	for _, id := range ids {
		if _, known := v.outputSizes[id]; !known {
			ask = append(ask, id)
		}
	}
	if len(ask) == 0 {
		return nil
	}
	sizes, err := v.e.store.Reader.Sizes(ctx, ask)
	if err != nil {
		return err
	}
	if v.outputSizes == nil {
		v.outputSizes = map[string]int64{}
	}
	for i, id := range ask {
		v.outputSizes[id] = sizes[i]
	}
	return nil
}
