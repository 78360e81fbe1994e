package layer

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// samples has a record of every kind with every field of that kind set.
func samples() []Record {
	return []Record{
		{Kind: KindIntro, Time: 1, Ino: 2, Parent: 1, Name: "a\xff", Mode: 0o100644, OID: bytes.Repeat([]byte{7}, 20), Size: 1 << 40},
		{Kind: KindCreate, Time: -5, Ino: 1<<63 | 1, Parent: 1, Name: "n\n", Mode: 0o120777, UID: 1, GID: 2, Rdev: 3, Target: "t"},
		{Kind: KindLink, Time: 2, Ino: 3, Parent: 4, Name: ""},
		{Kind: KindRemove, Time: 3, Parent: 4, Name: "x"},
		{Kind: KindRename, Time: 3, Parent: 4, Name: "x", Parent2: 5, Name2: "y", Flags: FlagExchange},
		{Kind: KindSetattr, Time: 4, Ino: 9, Mask: SetMode | SetUID | SetGID | SetAtime | SetMtime, Mode: 0o644, UID: 4, GID: 5, Atime: -1, Mtime: 1 << 60},
		{Kind: KindSetattr, Time: 4, Ino: 9, Mask: SetGID, GID: 5},
		{Kind: KindSetXattr, Time: 5, Ino: 9, Name: "user.x", Value: bytes.Repeat([]byte("v"), 64<<10)},
		{Kind: KindRemoveXattr, Time: 5, Ino: 9, Name: "user.x"},
		{Kind: KindDataUp, Time: 6, Ino: 9},
		{Kind: KindDirty, Time: 6, Ino: 9},
		{Kind: KindMark, Time: 7, Seq: 1 << 50, Commit: "abc"},
		{Kind: KindNode, Time: 8, Ino: 9, Parent: 1, Name: "n", Mode: 0o100644, Mask: SetUID | SetGID | SetAtime | SetMtime | SetCtime,
			UID: 1, GID: 2, Rdev: 3, Nlink: 4, Flags: NodeKnown | NodeData, Size: 5, Seq: 6, Atime: 7, Mtime: -8,
			OID: bytes.Repeat([]byte{7}, 32), Target: "t"},
		{Kind: KindNode, Ino: 9, Mode: 0o40755, Nlink: 1},
		{Kind: KindName, Ino: 9, Parent: 1, Name: "n"},
		{Kind: KindNoName, Parent: 1, Name: "n"},
		{Kind: KindDirtyDir, Ino: 9, Seq: 7, Whole: 8},
		{Kind: KindDirtyName, Parent: 9, Name: "n", Seq: 7},
		{Kind: KindGone, Ino: 9},
		{Kind: KindEnd, Seq: 9, Ino: 1<<63 | 10},
	}
}

func replayAll(t testing.TB, l *Layer) []Record {
	t.Helper()
	var got []Record
	must(t, l.Replay(func(r *Record) error {
		got = append(got, *r)
		return nil
	}))
	return got
}

func newLayer(t testing.TB, recs ...Record) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "l")
	l, err := Create(dir, Meta{ID: "l", Parent: "p", StartSeq: 7, FirstIno: 9})
	must(t, err)
	for _, r := range recs {
		must(t, l.Append(r))
	}
	must(t, l.Sync())
	must(t, l.Close())
	return dir
}

func TestRoundTrip(t *testing.T) {
	dir := newLayer(t, samples()...)
	for _, write := range []bool{false, true} {
		l, err := Open(dir, write)
		must(t, err)
		if got := replayAll(t, l); !reflect.DeepEqual(got, samples()) {
			t.Errorf("got %+v", got)
		}
		if l.Torn() {
			t.Error("torn")
		}
		if m := l.Meta(); m.Parent != "p" || m.StartSeq != 7 || m.FirstIno != 9 || m.Sealed {
			t.Errorf("meta %+v", m)
		}
		must(t, l.Close())
	}
}

// Wherever the log is cut, exactly the whole records before it remain, and
// appending goes on after them.
func TestTornTail(t *testing.T) {
	recs := samples()[:7]
	dir := newLayer(t, recs...)
	whole, err := os.ReadFile(filepath.Join(dir, "log"))
	must(t, err)
	ends := []int{0}
	for i := range recs {
		ends = append(ends, ends[i]+len(AppendFrame(nil, &recs[i])))
	}
	for cut := 0; cut < len(whole); cut += 3 {
		n, tail := 0, byte(0xee)
		for ends[n+1] <= cut {
			n++
		}
		if ends[n] == cut {
			tail = 0 // what a file system leaves when it lost the blocks
		}
		damaged := append(append([]byte{}, whole[:cut]...), bytes.Repeat([]byte{tail}, cut%2*100)...)
		must(t, os.WriteFile(filepath.Join(dir, "log"), damaged, 0o600))
		l, err := Open(dir, true)
		must(t, err)
		if got := replayAll(t, l); len(got) != n {
			t.Fatalf("cut at %d: %d records, want %d", cut, len(got), n)
		}
		if torn := len(damaged) != ends[n]; l.Torn() != torn {
			t.Errorf("cut at %d: torn %v", cut, l.Torn())
		}
		must(t, l.Append(Record{Kind: KindDirty, Ino: 77}))
		must(t, l.Close())
		l, err = Open(dir, false)
		must(t, err)
		if got := replayAll(t, l); len(got) != n+1 || got[n].Ino != 77 || l.Torn() {
			t.Fatalf("cut at %d: after appending: %d records, torn %v", cut, len(got), l.Torn())
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "log.cut")); err != nil {
		t.Errorf("what was cut is not kept: %v", err)
	}
}

// A flipped bit never gives a wrong record and costs no more than the one it
// is in.
func TestBitFlips(t *testing.T) {
	recs := samples()[:7]
	dir := newLayer(t, recs...)
	whole, err := os.ReadFile(filepath.Join(dir, "log"))
	must(t, err)
	var ends []int
	for i, n := 0, 0; i < len(recs); i++ {
		n += len(AppendFrame(nil, &recs[i]))
		ends = append(ends, n)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		data := append([]byte{}, whole...)
		at := rnd.IntN(len(data))
		data[at] ^= 1 << rnd.IntN(8)
		hit := 0
		for ends[hit] <= at {
			hit++
		}
		must(t, os.WriteFile(filepath.Join(dir, "log"), data, 0o600))
		l, err := Open(dir, false)
		must(t, err)
		got := replayAll(t, l)
		want := append([]Record{}, recs...)
		if hit == len(recs)-1 {
			want = want[:hit] // as good as a torn tail
		} else {
			size := int64(len(AppendFrame(nil, &recs[hit])))
			want[hit] = Record{Kind: KindGap, Size: size, Seq: uint64(size/minFrame) + 1}
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("flip at %d: records %+v", at, got)
		}
		if l.Torn() == (len(l.Damage()) == 1) || l.Torn() != (hit == len(recs)-1) {
			t.Fatalf("flip at %d: torn %v, damage %v", at, l.Torn(), l.Damage())
		}
	}
}

// Damage in the middle stays where it is, is the same at each replay, and is
// no obstacle to appending.
func TestDamage(t *testing.T) {
	var recs []Record
	for i := range 3000 {
		recs = append(recs, Record{Kind: KindSetXattr, Ino: uint64(i), Name: "user.x", Value: bytes.Repeat([]byte{byte(i)}, i+1)})
	}
	dir := newLayer(t, recs...)
	path := filepath.Join(dir, "log")
	data, err := os.ReadFile(path)
	must(t, err)
	clear(data[1000000:1900000])
	for i := 3000000; i < 3000100; i++ {
		data[i] = 0xff
	}
	must(t, os.WriteFile(path, data, 0o600))
	var first []Record
	for round := range 3 {
		l, err := Open(dir, true)
		must(t, err)
		got := replayAll(t, l)
		gaps, last := 0, uint64(0)
		for i, r := range got {
			switch {
			case r.Kind == KindGap:
				gaps++
			case r.Ino < last:
				t.Fatalf("record %d is of inode %d, after one of %d", i, r.Ino, last)
			case r.Ino < 3000 && !reflect.DeepEqual(r, recs[r.Ino]):
				t.Fatalf("record %d is wrong: %+v", i, r)
			default:
				last = r.Ino
			}
		}
		if gaps != 2 || len(l.Damage()) != 2 || l.Torn() || l.Damage()[0].Length < 900000 || l.Damage()[1].Length > 10000 {
			t.Fatalf("%d gaps, damage %v, torn %v", gaps, l.Damage(), l.Torn())
		}
		if round == 0 {
			first = got
		} else if !reflect.DeepEqual(got[:len(first)], first) || len(got) != len(first)+round {
			t.Fatalf("replay %d has %d records, the first had %d", round, len(got), len(first))
		}
		raw, err := l.ReadDamage(l.Damage()[1])
		must(t, err)
		if !bytes.Contains(raw, bytes.Repeat([]byte{0xff}, 100)) {
			t.Error("these are not the damaged bytes")
		}
		must(t, l.Append(Record{Kind: KindDirty, Ino: uint64(5000 + round)}))
		must(t, l.Close())
	}
}

// What a layer lacks is said, and never taken for an empty layer.
func TestMissingParts(t *testing.T) {
	for name, damage := range map[string]func(dir string) error{
		"meta":       func(dir string) error { return os.Remove(filepath.Join(dir, "meta")) },
		"empty meta": func(dir string) error { return os.WriteFile(filepath.Join(dir, "meta"), nil, 0o600) },
		"bad meta":   func(dir string) error { return os.WriteFile(filepath.Join(dir, "meta"), []byte(`{"id":""}`), 0o600) },
	} {
		dir := newLayer(t, samples()...)
		must(t, damage(dir))
		if _, err := Open(dir, true); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: open: %v", name, err)
		}
		if _, err := Create(dir, Meta{ID: "l"}); err == nil {
			t.Errorf("%s: something new is made over it", name)
		}
		meta := Meta{ID: "l", StartSeq: 7, FirstIno: 9}
		if got := replayAll(t, Assume(dir, meta)); !reflect.DeepEqual(got, samples()) {
			t.Errorf("%s: assumed: %+v", name, got)
		}
		must(t, Rebuild(dir, meta))
		l, err := Open(dir, true)
		must(t, err)
		if got := replayAll(t, l); !reflect.DeepEqual(got, samples()) || l.Meta().StartSeq != 7 {
			t.Errorf("%s: rebuilt: %+v", name, got)
		}
		must(t, l.Close())
	}
	dir := newLayer(t, samples()...)
	must(t, os.Remove(filepath.Join(dir, "log")))
	if _, err := Open(dir, true); !errors.Is(err, ErrDamaged) {
		t.Errorf("no log: %v", err)
	}
	l, err := Open(dir, false)
	must(t, err)
	if err := l.Replay(func(*Record) error { return nil }); !errors.Is(err, ErrDamaged) {
		t.Errorf("no log: %v", err)
	}
}

func TestNewerFormat(t *testing.T) {
	dir := newLayer(t)
	must(t, os.WriteFile(filepath.Join(dir, "meta"), fmt.Appendf(nil, `{"version":%d}`, Version+1), 0o600))
	if _, err := Open(dir, false); !errors.Is(err, ErrNewerFormat) {
		t.Errorf("got %v", err)
	}
	// A kind of record we do not know is an error, not a torn tail to cut off.
	dir = newLayer(t)
	r := Record{Kind: KindDirty}
	frame := AppendFrame(nil, &r)
	frame[frameHeader] = 99
	copy(frame[4:], []byte{0, 0, 0, 0})
	sum := checksum(frame[frameHeader:])
	for i := range 4 {
		frame[4+i] = byte(sum >> (8 * i))
	}
	must(t, os.WriteFile(filepath.Join(dir, "log"), frame, 0o600))
	l, err := Open(dir, true)
	must(t, err)
	if err := l.Replay(func(*Record) error { return nil }); !errors.Is(err, errRecord) {
		t.Errorf("got %v", err)
	}
	must(t, l.Close())
}

func TestSeal(t *testing.T) {
	dir := newLayer(t, samples()[0])
	l, err := Open(dir, true)
	must(t, err)
	replayAll(t, l)
	must(t, l.Seal())
	must(t, l.Seal())
	must(t, l.Close())
	if err := l.Append(samples()[1]); !errors.Is(err, ErrSealed) {
		t.Errorf("append: %v", err)
	}
	if _, err := Open(dir, true); !errors.Is(err, ErrSealed) {
		t.Errorf("open: %v", err)
	}
	if _, err := Create(dir, Meta{}); !errors.Is(err, os.ErrExist) {
		t.Errorf("create: %v", err)
	}
	l, err = Open(dir, false)
	must(t, err)
	if len(replayAll(t, l)) != 1 || !l.Meta().Sealed {
		t.Error("sealed layer is damaged")
	}
}

func TestDataFiles(t *testing.T) {
	dir := newLayer(t)
	l, err := Open(dir, true)
	must(t, err)
	defer l.Close()
	want := map[uint64]bool{1: true, 0xabcdef0123456789: true}
	for ino := range want {
		f, err := l.CreateData(ino)
		must(t, err)
		must(t, f.Close())
	}
	got := map[uint64]bool{}
	must(t, l.DataFiles(func(ino uint64) error {
		got[ino] = true
		return nil
	}))
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
	if rel, _ := filepath.Rel(dir, l.DataPath(0xabcdef0123456789)); rel != "data/89/abcdef0123456789" {
		t.Errorf("path %s", rel)
	}
}

func FuzzDecode(f *testing.F) {
	for _, r := range samples() {
		f.Add(r.appendPayload(nil))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		var r Record
		if decodePayload(p, &r) != nil {
			return
		}
		var again Record
		must(t, decodePayload(r.appendPayload(nil), &again))
		if !reflect.DeepEqual(r, again) {
			t.Errorf("%+v became %+v", r, again)
		}
	})
}
