package layer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Damage is a part of a log that no record can be read from.
type Damage struct {
	Offset, Length int64 // bytes
}

// minFrame is the size of the shortest frame: kind, time and one field.
const minFrame = frameHeader + 3

// most is how many records the damaged part can have held.
func (d Damage) most() uint64 { return uint64(d.Length/minFrame) + 1 }

// scanner reads the frames of a log of size bytes.
type scanner struct {
	r    io.ReaderAt
	size int64
	buf  []byte // what was read last
	at   int64  // where in the log buf begins
}

// scanWindow is how much is read at once. Any frame fits in it.
const scanWindow = 4 * MaxRecord

// bytes returns n bytes at off, fewer at the end of the log. They are valid
// until the next call.
func (s *scanner) bytes(off int64, n int) ([]byte, error) {
	n = int(min(int64(n), s.size-off))
	if off < s.at || off+int64(n) > s.at+int64(len(s.buf)) {
		if s.buf == nil {
			s.buf = make([]byte, min(s.size-off, scanWindow))
		}
		s.buf = s.buf[:cap(s.buf)]
		got, err := s.r.ReadAt(s.buf, off)
		s.buf, s.at = s.buf[:got], off
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
	}
	i := int(off - s.at)
	return s.buf[i:min(i+n, len(s.buf))], nil
}

// frame returns the payload of the frame at off, or nil when there is none.
func (s *scanner) frame(off int64) ([]byte, error) {
	head, err := s.bytes(off, frameHeader)
	if err != nil || len(head) < frameHeader {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head)
	if n == 0 || n > MaxRecord {
		return nil, nil
	}
	sum := binary.LittleEndian.Uint32(head[4:])
	b, err := s.bytes(off, frameHeader+int(n))
	if err != nil || len(b) < frameHeader+int(n) || checksum(b[frameHeader:]) != sum {
		return nil, err
	}
	return b[frameHeader:], nil
}

// after returns where the first frame after a damage at off begins, or the
// size of the log when there is none.
func (s *scanner) after(off int64) (int64, error) {
	var rec Record
	for off++; off < s.size; off++ {
		payload, err := s.frame(off)
		if err != nil {
			return 0, err
		}
		if payload != nil && decodePayload(payload, &rec) == nil {
			return off, nil
		}
	}
	return s.size, nil
}

// scan calls fn with the record of every frame. In place of a damaged part it
// passes a KindGap and adds it to the result. The last frame ends at good.
func (s *scanner) scan(fn func(*Record) error) (good int64, damage []Damage, err error) {
	var rec Record
	for off := int64(0); off < s.size; {
		payload, err := s.frame(off)
		if err != nil {
			return good, damage, fmt.Errorf("at offset %d: %w", off, err)
		}
		if payload == nil {
			next, err := s.after(off)
			if err != nil {
				return good, damage, fmt.Errorf("after offset %d: %w", off, err)
			}
			if next == s.size {
				break // a torn tail
			}
			d := Damage{Offset: off, Length: next - off}
			damage = append(damage, d)
			if err := fn(&Record{Kind: KindGap, Size: d.Length, Seq: d.most()}); err != nil {
				return good, damage, fmt.Errorf("at offset %d: %w", off, err)
			}
			off = next
			continue
		}
		if err := decodePayload(payload, &rec); err != nil {
			return good, damage, fmt.Errorf("at offset %d: %w", off, err)
		}
		if err := fn(&rec); err != nil {
			return good, damage, fmt.Errorf("at offset %d: %w", off, err)
		}
		off += frameHeader + int64(len(payload))
		good = off
	}
	return good, damage, nil
}
