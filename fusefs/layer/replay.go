package layer

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Replay calls fn with every record of the log in order. The record is only
// valid during the call. An error of fn stops it and is returned.
//
// A torn tail ends the log without an error and is reported by Torn. In a
// layer that is open for writing it is cut off; what is cut is first copied to
// the file log.cut, since it is all that is left of the last changes.
func (l *Layer) Replay(fn func(*Record) error) error {
	f := l.log
	if f == nil {
		var err error
		f, err = os.Open(filepath.Join(l.dir, "log"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
	}
	good, torn, err := scan(io.NewSectionReader(f, 0, 1<<62), fn)
	if err != nil {
		return fmt.Errorf("log of layer %s: %w", l.meta.ID, err)
	}
	l.size, l.torn = good, torn
	if torn && l.log != nil {
		return l.cut(good)
	}
	return nil
}

// scan reads frames until the end or the first one that is not whole.
func scan(r io.Reader, fn func(*Record) error) (good int64, torn bool, err error) {
	br := bufio.NewReaderSize(r, 1<<16)
	var head [frameHeader]byte
	var buf []byte
	var rec Record
	for {
		if _, err := io.ReadFull(br, head[:]); err != nil {
			return good, errors.Is(err, io.ErrUnexpectedEOF), ignoreEOF(err)
		}
		n := binary.LittleEndian.Uint32(head[:])
		if n == 0 || n > MaxRecord {
			return good, true, nil
		}
		if uint32(cap(buf)) < n {
			buf = make([]byte, n)
		}
		buf = buf[:n]
		if _, err := io.ReadFull(br, buf); err != nil {
			return good, true, ignoreEOF(err)
		}
		if checksum(buf) != binary.LittleEndian.Uint32(head[4:]) {
			return good, true, nil
		}
		if err := decodePayload(buf, &rec); err != nil {
			return good, false, fmt.Errorf("at offset %d: %w", good, err)
		}
		if err := fn(&rec); err != nil {
			return good, false, fmt.Errorf("at offset %d: %w", good, err)
		}
		good += frameHeader + int64(n)
	}
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

func (l *Layer) cut(good int64) error {
	st, err := l.log.Stat()
	if err != nil {
		return err
	}
	keep, err := os.OpenFile(filepath.Join(l.dir, "log.cut"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(keep, io.NewSectionReader(l.log, good, st.Size()-good))
	if cerr := keep.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := l.log.Truncate(good); err != nil {
		return err
	}
	return l.log.Sync()
}
