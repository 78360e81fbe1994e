package environment

import (
	"bytes"
	"context"
	"fmt"
	"strings"
)

// listTree is `git ls-tree -r -l -z`. In a partial clone that would fetch every
// blob that is not here, one by one, for its size; the size of such a one is "-".
func (s *Store) listTree(ctx context.Context, tree string) ([]byte, error) {
	if !s.Reader.Partial() {
		return s.Git.Output(ctx, nil, "ls-tree", "-r", "-l", "-z", "--full-tree", tree)
	}
	out, err := s.Git.Output(ctx, nil, "ls-tree", "-r", "-z", "--full-tree", tree)
	if err != nil {
		return nil, err
	}
	var metas, names, ids []string
	for item := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if item == "" {
			continue
		}
		meta, name, ok := strings.Cut(item, "\t")
		f := strings.Fields(meta)
		if !ok || len(f) != 3 {
			return nil, fmt.Errorf("git ls-tree: bad line %q", item)
		}
		metas, names, ids = append(metas, meta), append(names, name), append(ids, f[2])
	}
	sizes, err := s.Reader.SizesHere(ctx, ids)
	if err != nil {
		return nil, err
	}
	var list bytes.Buffer
	for i, meta := range metas {
		size := "-"
		if sizes[i] >= 0 {
			size = fmt.Sprint(sizes[i])
		}
		fmt.Fprintf(&list, "%s %s\t%s\x00", meta, size, names[i])
	}
	return list.Bytes(), nil
}
