package layer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Kind tells what a record changes.
type Kind uint8

// The kinds of records. The numbers are on disk: never renumber.
const (
	// KindGap is never in a log: Replay passes it in place of a part that it
	// cannot read: Size, in bytes, and Seq, how many records that can have been
	// at most.
	KindGap Kind = 0
	// KindIntro names an entry of the lower tree before a record refers to its
	// inode: Ino, Parent, Name, Mode, OID, Size. Parents come first, so that
	// replay never has to read a tree.
	KindIntro Kind = 1
	// KindCreate makes a new inode and its first name: Ino, Parent, Name, Mode,
	// UID, GID, Rdev, Target (symbolic links).
	KindCreate Kind = 2
	// KindLink gives an inode one more name: Ino, Parent, Name.
	KindLink Kind = 3
	// KindRemove takes a name away, of a file or an empty directory: Parent, Name.
	KindRemove Kind = 4
	// KindRename moves Parent/Name to Parent2/Name2, replacing what is there, or
	// exchanges the two when Flags has FlagExchange.
	KindRename Kind = 5
	// KindSetattr changes the attributes in Mask: Ino, Mask, Mode, UID, GID,
	// Atime, Mtime.
	KindSetattr Kind = 6
	// KindSetXattr sets the extended attribute Name of Ino to Value.
	KindSetXattr Kind = 7
	// KindRemoveXattr removes the extended attribute Name of Ino.
	KindRemoveXattr Kind = 8
	// KindDataUp says that the bytes of Ino are in a data file of this layer.
	KindDataUp Kind = 9
	// KindDirty says that the content of Ino changed since it was last looked at.
	KindDirty Kind = 10
	// KindMark says that everything dirty with a sequence number up to Seq is
	// part of Commit.
	KindMark Kind = 11

	// The kinds from here on are in merged layers only. They say what is, not
	// what changed, and are not numbered. Their order in a log: KindMark,
	// KindNoName, KindNode with its KindSetXattr and KindNoName, KindName, KindDirtyDir with
	// its KindDirtyName, KindGone, KindEnd.

	// KindNode is an inode as it is: Ino, Mode, Mask, UID, GID, Rdev, Nlink,
	// Flags, Size, Atime, Mtime, Time (of its last change), Seq (of the last
	// record about its content), OID, Target. Owner and times are those of the
	// tree unless they are in Mask. With Parent it gets that name. With NodeMoved
	// in Flags, Name2.
	KindNode Kind = 12
	// KindName gives an inode a name: Ino, Parent, Name.
	KindName Kind = 13
	// KindNoName takes a name away, and nothing else: Parent, Name.
	KindNoName Kind = 14
	// KindDirtyDir is what counts as changed in directory Ino: Seq is the last
	// change below it, Whole when it became new.
	KindDirtyDir Kind = 15
	// KindDirtyName is a changed name of a directory: Parent, Name, Seq.
	KindDirtyName Kind = 16
	// KindGone forgets an inode without names: Ino.
	KindGone Kind = 17
	// KindEnd is the last record: Seq is the number of the last record that is
	// merged, Ino the first inode number that was never given.
	KindEnd Kind = 18

	lastKind = KindEnd
)

// The bits of Record.Flags of a KindNode.
const (
	NodeKnown    = 1 << iota
	NodeLower    // from the git tree
	NodeMtimeSet // the time of its data file does not count
	NodeTouched  // a directory in which something was changed
	NodeHasCap   // has the attribute security.capability
	NodeGitlink  // a submodule
	NodeData     // its bytes are in a data file of this layer
	NodeMoved    // from the git tree, where it has the path Name2
)

// FlagExchange makes a KindRename exchange its two names.
const FlagExchange = 1

// The bits of Record.Mask.
const (
	SetMode = 1 << iota
	SetUID
	SetGID
	SetAtime
	SetMtime
	SetCtime
	// MtimeHeld goes with SetMtime: the time is that of the record, whatever
	// the data file has, until the next KindDirty or KindDataUp of the inode.
	MtimeHeld
)

// A Record is one change of the namespace. Which fields count is said at its
// Kind. Times are nanoseconds since the epoch.
type Record struct {
	Kind    Kind
	Time    int64
	Ino     uint64
	Parent  uint64
	Name    string
	Parent2 uint64
	Name2   string
	Mode    uint32
	UID     uint32
	GID     uint32
	Rdev    uint32
	Nlink   uint32
	Mask    uint32
	Flags   uint32
	Size    int64
	Atime   int64
	Mtime   int64
	Seq     uint64
	Whole   uint64
	OID     []byte
	Target  string
	Value   []byte
	Commit  string
}

// errRecord is the reason inside an error about a payload that has a valid
// checksum and makes no sense: a newer program wrote it, or a bug.
var errRecord = errors.New("unreadable record")

// MaxRecord bounds a payload: a 64 KiB extended attribute and some names.
const MaxRecord = 256 << 10

const frameHeader = 8

// AppendFrame appends the framed encoding of r to b.
func AppendFrame(b []byte, r *Record) []byte {
	e := encoder{b}
	e.frame(r)
	return e.b
}

// frame appends the framed encoding of r.
func (e *encoder) frame(r *Record) {
	start := len(e.b)
	e.b = append(e.b, make([]byte, frameHeader)...)
	r.encode(e)
	payload := e.b[start+frameHeader:]
	binary.LittleEndian.PutUint32(e.b[start:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(e.b[start+4:], checksum(payload))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

func (r *Record) appendPayload(b []byte) []byte {
	e := encoder{b}
	r.encode(&e)
	return e.b
}

func (r *Record) encode(e *encoder) {
	e.b = append(e.b, byte(r.Kind))
	e.b = binary.AppendVarint(e.b, r.Time)
	r.fields(e)
}

// decodePayload parses what appendPayload wrote. Fields that a later version
// adds at the end of a kind are ignored.
func decodePayload(p []byte, r *Record) error {
	*r = Record{}
	if len(p) == 0 {
		return fmt.Errorf("%w: empty", errRecord)
	}
	r.Kind = Kind(p[0])
	if r.Kind < KindIntro || r.Kind > lastKind {
		return fmt.Errorf("%w: kind %d", errRecord, p[0])
	}
	d := decoder{b: p[1:]}
	d.int(&r.Time)
	r.fields(&d)
	if d.bad {
		return fmt.Errorf("%w: kind %d is cut short", errRecord, p[0])
	}
	return nil
}

// fielder visits the fields of a record; the encoder and the decoder are the
// two visitors, so that they cannot disagree about the order.
type fielder interface {
	int(*int64)
	uint(*uint64)
	word(*uint32)
	text(*string)
	blob(*[]byte)
}

func (r *Record) fields(f fielder) {
	switch r.Kind {
	case KindIntro:
		f.uint(&r.Ino)
		f.uint(&r.Parent)
		f.text(&r.Name)
		f.word(&r.Mode)
		f.blob(&r.OID)
		f.int(&r.Size)
	case KindCreate:
		f.uint(&r.Ino)
		f.uint(&r.Parent)
		f.text(&r.Name)
		f.word(&r.Mode)
		f.word(&r.UID)
		f.word(&r.GID)
		f.word(&r.Rdev)
		f.text(&r.Target)
	case KindLink:
		f.uint(&r.Ino)
		f.uint(&r.Parent)
		f.text(&r.Name)
	case KindRemove:
		f.uint(&r.Parent)
		f.text(&r.Name)
	case KindRename:
		f.uint(&r.Parent)
		f.text(&r.Name)
		f.uint(&r.Parent2)
		f.text(&r.Name2)
		f.word(&r.Flags)
	case KindSetattr:
		r.attrFields(f)
	case KindSetXattr:
		f.uint(&r.Ino)
		f.text(&r.Name)
		f.blob(&r.Value)
	case KindRemoveXattr:
		f.uint(&r.Ino)
		f.text(&r.Name)
	case KindDataUp, KindDirty:
		f.uint(&r.Ino)
	case KindMark:
		f.uint(&r.Seq)
		f.text(&r.Commit)
	default:
		r.mergedFields(f)
	}
}

func (r *Record) mergedFields(f fielder) {
	switch r.Kind {
	case KindNode:
		r.nodeFields(f)
	case KindName:
		f.uint(&r.Ino)
		f.uint(&r.Parent)
		f.text(&r.Name)
	case KindNoName:
		f.uint(&r.Parent)
		f.text(&r.Name)
	case KindDirtyDir:
		f.uint(&r.Ino)
		f.uint(&r.Seq)
		f.uint(&r.Whole)
	case KindDirtyName:
		f.uint(&r.Parent)
		f.text(&r.Name)
		f.uint(&r.Seq)
	case KindGone:
		f.uint(&r.Ino)
	case KindEnd:
		f.uint(&r.Seq)
		f.uint(&r.Ino)
	}
}

func (r *Record) nodeFields(f fielder) {
	f.uint(&r.Ino)
	f.uint(&r.Parent)
	f.text(&r.Name)
	f.word(&r.Mode)
	f.word(&r.Mask)
	f.word(&r.Flags)
	f.word(&r.Nlink)
	f.word(&r.Rdev)
	f.int(&r.Size)
	f.uint(&r.Seq)
	f.blob(&r.OID)
	f.text(&r.Target)
	if r.Flags&NodeMoved != 0 {
		f.text(&r.Name2)
	}
	if r.Mask&SetUID != 0 {
		f.word(&r.UID)
	}
	if r.Mask&SetGID != 0 {
		f.word(&r.GID)
	}
	if r.Mask&SetAtime != 0 {
		f.int(&r.Atime)
	}
	if r.Mask&SetMtime != 0 {
		f.int(&r.Mtime)
	}
}

func (r *Record) attrFields(f fielder) {
	f.uint(&r.Ino)
	f.word(&r.Mask)
	if r.Mask&SetMode != 0 {
		f.word(&r.Mode)
	}
	if r.Mask&SetUID != 0 {
		f.word(&r.UID)
	}
	if r.Mask&SetGID != 0 {
		f.word(&r.GID)
	}
	if r.Mask&SetAtime != 0 {
		f.int(&r.Atime)
	}
	if r.Mask&SetMtime != 0 {
		f.int(&r.Mtime)
	}
}

type encoder struct{ b []byte }

func (e *encoder) int(v *int64)   { e.b = binary.AppendVarint(e.b, *v) }
func (e *encoder) uint(v *uint64) { e.b = binary.AppendUvarint(e.b, *v) }
func (e *encoder) word(v *uint32) { e.b = binary.AppendUvarint(e.b, uint64(*v)) }
func (e *encoder) text(v *string) {
	e.b = binary.AppendUvarint(e.b, uint64(len(*v)))
	e.b = append(e.b, *v...)
}
func (e *encoder) blob(v *[]byte) {
	e.b = binary.AppendUvarint(e.b, uint64(len(*v)))
	e.b = append(e.b, *v...)
}

type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) int(v *int64) {
	x, n := binary.Varint(d.b)
	*v = x
	d.skip(n)
}

func (d *decoder) uint(v *uint64) {
	x, n := binary.Uvarint(d.b)
	*v = x
	d.skip(n)
}

func (d *decoder) word(v *uint32) {
	var x uint64
	d.uint(&x)
	*v = uint32(x)
}

func (d *decoder) text(v *string) {
	*v = string(d.counted())
}

func (d *decoder) blob(v *[]byte) {
	if b := d.counted(); len(b) > 0 {
		*v = append([]byte(nil), b...)
	}
}

// counted returns the next bytes that carry their length, not to be kept.
func (d *decoder) counted() []byte {
	var n uint64
	d.uint(&n)
	if d.bad || n > uint64(len(d.b)) {
		d.bad = true
		return nil
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) skip(n int) {
	if n <= 0 {
		d.bad = true
		return
	}
	d.b = d.b[n:]
}
