package gitindex

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // git's own format
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"
)

// Edit is one change of an index: the entry at Path becomes ID with Mode, whatever
// was there in any stage; with an empty ID it goes away. A new entry has no stat
// data: git looks at the file when it next compares.
type Edit struct {
	Path string
	Mode uint32
	ID   string // hexadecimal
	// Skip marks a new entry as skip-worktree: the file is not to be there.
	Skip bool
}

// ErrUnsupported means that an index is well-formed, for all that was looked at,
// but has something in it that only git can change: version 4, a split or sparse
// index, the untracked cache, a file system monitor.
var ErrUnsupported = errors.New("an index that only git can change")

// errCorrupt means that a file is no index.
var errCorrupt = errors.New("not a git index, or a damaged one")

const (
	headerLen  = 12
	statLen    = 40     // before the object id
	flagExt    = 0x4000 // more flags follow
	flagSkip   = 0x4000 // among those
	flagName   = 0x0fff
	maxName    = 64 << 10 // bytes of a path; far more than a system takes
	maxTreeExt = 1 << 30
)

// Patch writes to dst the index that src, of size bytes, is with the edits
// applied. hexLen is the length of object ids, 40 or 64. A file that an edit adds
// replaces everything below its path, and files that are where its directories
// are to be. dst is useless after an error.
func Patch(dst io.Writer, src io.ReaderAt, size int64, hexLen int, edits []Edit) error {
	p := &patcher{src: src, size: size, oidLen: hexLen / 2}
	if err := p.prepare(edits); err != nil {
		return err
	}
	if err := p.scan(); err != nil {
		return err
	}
	return p.write(dst)
}

// piece is a part of the result: a range of the old file, or new bytes.
type piece struct {
	off, n int64
	data   []byte
}

type patcher struct {
	src    io.ReaderAt
	size   int64
	oidLen int

	adds     []Edit          // sorted by path
	exact    []string        // sorted: entries that go away
	prefixes []string        // sorted: directories whose entries go away
	dirs     map[string]bool // directories in which something changes
	files    map[string]bool // paths of adds
	version  uint32
	count    uint32 // entries of the result
	pieces   []piece
	trailer  []byte // the old checksum
}

func (p *patcher) prepare(edits []Edit) error {
	p.dirs, p.files = map[string]bool{}, map[string]bool{}
	if len(edits) > 0 {
		p.dirs[""] = true
	}
	for _, e := range edits {
		if e.Path == "" || len(e.Path) > maxName || strings.ContainsRune(e.Path, 0) {
			return fmt.Errorf("bad path %q", e.Path)
		}
		p.exact = append(p.exact, e.Path)
		for dir := parent(e.Path); dir != ""; dir = parent(dir) {
			if e.ID != "" {
				p.exact = append(p.exact, dir)
			}
			p.dirs[dir] = true
		}
		if e.ID == "" {
			continue
		}
		if len(e.ID) != 2*p.oidLen {
			return fmt.Errorf("bad object id %q", e.ID)
		}
		p.adds = append(p.adds, e)
		p.files[e.Path] = true
		p.prefixes = append(p.prefixes, e.Path+"/")
	}
	slices.SortFunc(p.adds, func(a, b Edit) int { return strings.Compare(a.Path, b.Path) })
	for i := 1; i < len(p.adds); i++ {
		if p.adds[i].Path == p.adds[i-1].Path {
			return fmt.Errorf("two edits of %q", p.adds[i].Path)
		}
	}
	slices.Sort(p.exact)
	p.exact = slices.Compact(p.exact)
	slices.Sort(p.prefixes)
	return nil
}

func parent(p string) string {
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		return p[:i]
	}
	return ""
}

// keep adds a range of the old file to the result.
func (p *patcher) keep(off, n int64) {
	if last := len(p.pieces) - 1; last >= 0 && p.pieces[last].data == nil && p.pieces[last].off+p.pieces[last].n == off {
		p.pieces[last].n += n
		return
	}
	p.pieces = append(p.pieces, piece{off: off, n: n})
}

// insert adds the entries that come up to name, or all that are left for none.
func (p *patcher) insert(name []byte) error {
	for len(p.adds) > 0 && (len(name) == 0 || p.adds[0].Path <= string(name)) {
		e := p.adds[0]
		p.adds = p.adds[1:]
		id, err := hex.DecodeString(e.ID)
		if err != nil {
			return fmt.Errorf("bad object id %q", e.ID)
		}
		fixed, flags := statLen+p.oidLen+2, uint16(min(len(e.Path), flagName))
		if e.Skip {
			fixed, flags, p.version = fixed+2, flags|flagExt, 3
		}
		b := make([]byte, entryLen(fixed, len(e.Path)))
		binary.BigEndian.PutUint32(b[24:], e.Mode)
		copy(b[statLen:], id)
		binary.BigEndian.PutUint16(b[statLen+p.oidLen:], flags)
		if e.Skip {
			binary.BigEndian.PutUint16(b[fixed-2:], flagSkip)
		}
		copy(b[fixed:], e.Path)
		p.pieces = append(p.pieces, piece{data: b})
		p.count++
	}
	return nil
}

// entryLen is the size of an entry, which ends with one to eight zero bytes.
func entryLen(fixed, name int) int { return (fixed + name + 8) &^ 7 }

// drops says whether the entry of that name goes away. Names come in order.
func (p *patcher) drops(name []byte) bool {
	for len(p.exact) > 0 && p.exact[0] < string(name) {
		p.exact = p.exact[1:]
	}
	if len(p.exact) > 0 && p.exact[0] == string(name) {
		return true
	}
	for len(p.prefixes) > 0 && p.prefixes[0] <= string(name) {
		if bytes.HasPrefix(name, []byte(p.prefixes[0])) {
			return true
		}
		p.prefixes = p.prefixes[1:]
	}
	return false
}

// write puts the result together.
func (p *patcher) write(dst io.Writer) error {
	var h hash.Hash
	if p.oidLen == sha1.Size {
		h = sha1.New() //nolint:gosec // git's own format
	} else {
		h = sha256.New()
	}
	w := io.MultiWriter(dst, h)
	// index.skipHash leaves the checksum zero.
	skip := !slices.ContainsFunc(p.trailer, func(b byte) bool { return b != 0 })
	if skip {
		w = dst
	}
	head := binary.BigEndian.AppendUint32(append(make([]byte, 0, headerLen), "DIRC"...), p.version)
	if _, err := w.Write(binary.BigEndian.AppendUint32(head, p.count)); err != nil {
		return err
	}
	buf := make([]byte, 256<<10)
	for _, x := range p.pieces {
		if x.data != nil {
			if _, err := w.Write(x.data); err != nil {
				return err
			}
			continue
		}
		n, err := io.CopyBuffer(w, struct{ io.Reader }{io.NewSectionReader(p.src, x.off, x.n)}, buf)
		if err == nil && n != x.n {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	if skip {
		_, err := dst.Write(p.trailer)
		return err
	}
	_, err := dst.Write(h.Sum(nil))
	return err
}
