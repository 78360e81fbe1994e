package layer

import (
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
// In place of a part that no record can be read from, fn gets one of KindGap:
// what follows may refer to what was in it. Such parts stay where they are, so
// that every replay is the same, and are listed by Damage.
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
			return fmt.Errorf("layer %s: %w: its log is gone: %w", l.meta.ID, ErrDamaged, err)
		}
		if err != nil {
			return err
		}
		defer f.Close()
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	s := scanner{r: f, size: st.Size()}
	good, damage, err := s.scan(fn)
	if err != nil {
		return fmt.Errorf("log of layer %s: %w", l.meta.ID, err)
	}
	l.size, l.torn, l.damage = good, good < st.Size(), damage
	if l.torn && l.log != nil {
		return l.cut(st.Size())
	}
	return nil
}

// cut takes the torn tail off a log of size bytes.
func (l *Layer) cut(size int64) error {
	keep, err := os.OpenFile(filepath.Join(l.dir, "log.cut"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(keep, io.NewSectionReader(l.log, l.size, size-l.size))
	if cerr := keep.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := l.log.Truncate(l.size); err != nil {
		return err
	}
	return l.log.Sync()
}
