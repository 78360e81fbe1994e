package gitindex

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// scan goes through the old index and plans the pieces of the new one.
func (p *patcher) scan() error {
	var head [headerLen]byte
	if _, err := p.src.ReadAt(head[:], 0); err != nil {
		return tooShort(err)
	}
	p.version = binary.BigEndian.Uint32(head[4:])
	if string(head[:4]) != "DIRC" {
		return errCorrupt
	}
	if p.version != 2 && p.version != 3 {
		return fmt.Errorf("%w: version %d", ErrUnsupported, p.version)
	}
	p.trailer = make([]byte, p.oidLen)
	end := p.size - int64(p.oidLen)
	if end < headerLen {
		return errCorrupt
	}
	if _, err := p.src.ReadAt(p.trailer, end); err != nil {
		return tooShort(err)
	}
	off, err := p.entries(binary.BigEndian.Uint32(head[8:]), end)
	if err != nil {
		return err
	}
	return p.extensions(off, end)
}

func tooShort(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errCorrupt
	}
	return err
}

// entries plans the n entries and returns where they end.
func (p *patcher) entries(n uint32, end int64) (int64, error) {
	off := int64(headerLen)
	r := bufio.NewReaderSize(io.NewSectionReader(p.src, off, end-off), 256<<10)
	for range n {
		raw, name, err := p.entry(r)
		if err != nil {
			return 0, err
		}
		if err := p.insert(name); err != nil {
			return 0, err
		}
		if !p.drops(name) {
			p.keep(off, int64(raw))
			p.count++
		}
		off += int64(raw)
		if _, err := r.Discard(raw); err != nil {
			return 0, tooShort(err)
		}
	}
	return off, p.insert(nil)
}

// entry looks at the next entry without consuming it. The name is good until the
// reader goes on.
func (p *patcher) entry(r *bufio.Reader) (size int, name []byte, err error) {
	fixed := statLen + p.oidLen + 2
	b, err := r.Peek(fixed)
	if err != nil {
		return 0, nil, tooShort(err)
	}
	flags := binary.BigEndian.Uint16(b[fixed-2:])
	if flags&flagExt != 0 {
		if p.version < 3 {
			return 0, nil, errCorrupt
		}
		fixed += 2
	}
	n := int(flags & flagName)
	if n == flagName {
		// The length does not fit in: it ends with the first zero byte.
		b, err = r.Peek(fixed + maxName)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, nil, err
		}
		if len(b) < fixed+flagName {
			return 0, nil, errCorrupt
		}
		i := bytes.IndexByte(b[fixed+flagName:], 0)
		if i < 0 {
			return 0, nil, errCorrupt
		}
		n += i
	}
	size = entryLen(fixed, n)
	if b, err = r.Peek(size); err != nil {
		return 0, nil, tooShort(err)
	}
	if n == 0 || b[fixed+n] != 0 {
		return 0, nil, errCorrupt
	}
	return size, b[fixed : fixed+n], nil
}

// extensions plans what follows the entries.
func (p *patcher) extensions(off, end int64) error {
	for off < end {
		var head [8]byte
		if end-off < int64(len(head)) {
			return errCorrupt
		}
		if _, err := p.src.ReadAt(head[:], off); err != nil {
			return tooShort(err)
		}
		size := int64(binary.BigEndian.Uint32(head[4:]))
		if size > end-off-int64(len(head)) {
			return errCorrupt
		}
		switch sig := string(head[:4]); sig {
		case "REUC": // of conflicts that were resolved
			p.keep(off, int64(len(head))+size)
		case "EOIE", "IEOT": // offsets, which change; git does without
		case "TREE":
			if err := p.cacheTree(off+int64(len(head)), size); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%w: extension %q", ErrUnsupported, sig)
		}
		off += int64(len(head)) + size
	}
	return nil
}
