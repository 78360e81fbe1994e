package gitindex

import (
	"bytes"
	"encoding/binary"
	"path"
	"strconv"
)

// cacheTree plans the extension that knows the trees of whole directories: those
// in which something changes are marked as unknown.
func (p *patcher) cacheTree(off, size int64) error {
	if size > maxTreeExt {
		return errCorrupt
	}
	data := make([]byte, size)
	if _, err := p.src.ReadAt(data, off); err != nil {
		return tooShort(err)
	}
	t := treeExt{p: p, in: data}
	if _, err := t.node("", 0, true); err != nil {
		return err
	}
	if len(t.in) > 0 {
		return errCorrupt
	}
	head := binary.BigEndian.AppendUint32([]byte("TREE"), uint32(len(t.out)))
	p.pieces = append(p.pieces, piece{data: head}, piece{data: t.out})
	return nil
}

type treeExt struct {
	p       *patcher
	in, out []byte
}

// maxDepth bounds the depth of directories.
const maxDepth = 4096

// node copies one directory and those below; kept is false for one that is left
// out because it, or one above it, is a file now.
func (t *treeExt) node(dir string, depth int, keep bool) (kept bool, err error) {
	name, rest, ok := bytes.Cut(t.in, []byte{0})
	line, rest, ok2 := bytes.Cut(rest, []byte{'\n'})
	count, subs, ok3 := bytes.Cut(line, []byte{' '})
	if !ok || !ok2 || !ok3 || depth > maxDepth || (depth == 0) != (len(name) == 0) {
		return false, errCorrupt
	}
	entries, err1 := strconv.Atoi(string(count))
	n, err2 := strconv.Atoi(string(subs))
	if err1 != nil || err2 != nil || n < 0 {
		return false, errCorrupt
	}
	var id []byte
	if entries >= 0 {
		if len(rest) < t.p.oidLen {
			return false, errCorrupt
		}
		id, rest = rest[:t.p.oidLen], rest[t.p.oidLen:]
	}
	t.in = rest
	dir = path.Join(dir, string(name))
	keep = keep && !t.p.files[dir]
	at := len(t.out)
	left := 0
	for range n {
		was := keep
		k, err := t.node(dir, depth+1, was)
		if err != nil {
			return false, err
		}
		if k {
			left++
		}
	}
	if !keep {
		t.out = t.out[:at]
		return false, nil
	}
	if t.p.dirs[dir] {
		entries, id = -1, nil
	}
	own := append([]byte{}, name...)
	own = append(own, 0)
	own = strconv.AppendInt(own, int64(entries), 10)
	own = append(own, ' ')
	own = strconv.AppendInt(own, int64(left), 10)
	own = append(own, '\n')
	own = append(own, id...)
	t.out = append(t.out[:at], append(own, t.out[at:]...)...)
	return true, nil
}
