package objects

import (
	"bytes"
	"crypto"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	githash "github.com/go-git/go-git/v5/plumbing/hash"
)

// ErrNotFound means that there is no such object, revision or path.
var ErrNotFound = errors.New("object not found")

// Mode is the type and permission of a tree entry, as git stores it.
type Mode uint32

// The modes that git writes. Old trees may have others, such as 0o100664.
const (
	ModeFile    Mode = 0o100644
	ModeExec    Mode = 0o100755
	ModeSymlink Mode = 0o120000
	ModeGitlink Mode = 0o160000
	ModeTree    Mode = 0o040000

	modeType Mode = 0o170000
)

// IsTree reports whether the entry is a directory.
func (m Mode) IsTree() bool { return m&modeType == ModeTree }

// IsFile reports whether the entry is a regular file, executable or not.
func (m Mode) IsFile() bool { return m&modeType == ModeFile&modeType }

// Kind is the type of an object.
type Kind string

// The kinds of objects.
const (
	KindBlob   Kind = "blob"
	KindTree   Kind = "tree"
	KindCommit Kind = "commit"
	KindTag    Kind = "tag"
)

// The object formats.
const (
	SHA1   = "sha1"
	SHA256 = "sha256"
)

// TreeEntry is one name in a tree.
type TreeEntry struct {
	Name string
	Mode Mode
	ID   string
}

// Commit is a commit object, taken apart only as far as needed: encoding it
// again gives the same bytes.
type Commit struct {
	Tree    string
	Parents []string
	// Author and Committer are raw: "Name <mail> seconds zone".
	Author, Committer string
	Message           string
	// Extra holds all other header lines as they are, each ended by a newline.
	Extra []byte
}

// Signature formats an identity and a time for Commit.Author and Committer. As
// git does, it takes out what would break the format.
func Signature(name, mail string, t time.Time) string {
	return fmt.Sprintf("%s <%s> %d %s", cleanIdent(name), cleanIdent(mail), t.Unix(), t.Format("-0700"))
}

func cleanIdent(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == '<' || r == '>' || r == '\n' || r == 0 {
			return -1
		}
		return r
	}, s)
	return strings.Trim(s, " .,:;\"\\'\t\r")
}

// EmptyTree returns the id of the tree without entries.
func EmptyTree(format string) string {
	id, err := Hash(format, KindTree, nil)
	if err != nil {
		return ""
	}
	return id
}

// HashBlob returns the id a blob has, without writing it.
func HashBlob(format string, data []byte) (string, error) {
	return Hash(format, KindBlob, data)
}

// Hash returns the id an object has, without writing it.
func Hash(format string, kind Kind, data []byte) (string, error) {
	h, err := newHash(format)
	if err != nil {
		return "", err
	}
	h.Write(header(kind, int64(len(data))))
	h.Write(data)
	return sum(h)
}

// HashReader is Hash for a stream of size bytes; it is an error if the stream
// is shorter or longer.
func HashReader(format string, kind Kind, r io.Reader, size int64) (string, error) {
	h, err := newHash(format)
	if err != nil {
		return "", err
	}
	h.Write(header(kind, size))
	if err := copyExactly(h, r, size); err != nil {
		return "", err
	}
	return sum(h)
}

func newHash(format string) (hash.Hash, error) {
	switch format {
	case SHA1:
		return githash.New(crypto.SHA1), nil
	case SHA256:
		return githash.New(crypto.SHA256), nil
	}
	return nil, fmt.Errorf("unknown object format '%s'", format)
}

// sum refuses content made to collide in SHA-1, which git would refuse to read.
func sum(h hash.Hash) (string, error) {
	if d, ok := h.(interface {
		CollisionResistantSum([]byte) ([]byte, bool)
	}); ok {
		s, collision := d.CollisionResistantSum(nil)
		if collision {
			return "", errors.New("content is part of a SHA-1 collision attack")
		}
		return hex.EncodeToString(s), nil
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func header(kind Kind, size int64) []byte {
	b := make([]byte, 0, 32)
	b = append(b, kind...)
	b = append(b, ' ')
	b = strconv.AppendInt(b, size, 10)
	return append(b, 0)
}

func copyExactly(w io.Writer, r io.Reader, size int64) error {
	n, err := io.Copy(w, io.LimitReader(r, size))
	if err != nil {
		return err
	}
	if n < size {
		return fmt.Errorf("%w: %d of %d bytes", io.ErrUnexpectedEOF, n, size)
	}
	var extra [1]byte
	if n, err := io.ReadFull(r, extra[:]); n > 0 {
		return fmt.Errorf("more than the %d bytes announced", size)
	} else if err != nil && err != io.EOF {
		return err
	}
	return nil
}

// isID reports whether s is a full object id.
func isID(s string) bool {
	if len(s) != 40 && len(s) != 64 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// encodeTree sorts a copy of entries the way git does and encodes it.
func encodeTree(entries []TreeEntry, idLen int) ([]byte, error) {
	sorted := entries
	if !slices.IsSortedFunc(entries, compareEntries) { // as they seldom are
		sorted = slices.Clone(entries)
		slices.SortFunc(sorted, compareEntries)
	}
	names := make(map[string]bool, len(sorted))
	size := 0
	for i := range sorted {
		e := &sorted[i]
		switch {
		case e.Name == "" || strings.ContainsAny(e.Name, "/\x00"):
			return nil, fmt.Errorf("invalid name %q in tree", e.Name)
		case names[e.Name]:
			return nil, fmt.Errorf("name %q is twice in tree", e.Name)
		case len(e.ID) != idLen || !isID(e.ID):
			return nil, fmt.Errorf("invalid id '%s' for %q in tree", e.ID, e.Name)
		case !validMode(e.Mode):
			return nil, fmt.Errorf("invalid mode %o for %q in tree", e.Mode, e.Name)
		}
		names[e.Name] = true
		size += 8 + len(e.Name) + idLen/2
	}
	buf := make([]byte, 0, size)
	for i := range sorted {
		e := &sorted[i]
		buf = strconv.AppendUint(buf, uint64(e.Mode), 8)
		buf = append(buf, ' ')
		buf = append(buf, e.Name...)
		buf = append(buf, 0)
		buf, _ = hex.AppendDecode(buf, []byte(e.ID)) // isID holds
	}
	return buf, nil
}

// compareEntries orders entries as git does.
func compareEntries(a, b TreeEntry) int {
	switch {
	case lessEntry(&a, &b):
		return -1
	case lessEntry(&b, &a):
		return 1
	}
	return 0
}

func validMode(m Mode) bool {
	switch m & modeType {
	case ModeTree, ModeFile & modeType, ModeSymlink, ModeGitlink:
		return m&^(modeType|0o7777) == 0
	}
	return false
}

// lessEntry orders directories as if their names ended in a slash.
func lessEntry(a, b *TreeEntry) bool {
	n := min(len(a.Name), len(b.Name))
	if c := strings.Compare(a.Name[:n], b.Name[:n]); c != 0 {
		return c < 0
	}
	return charAt(a, n) < charAt(b, n)
}

func charAt(e *TreeEntry, i int) byte {
	switch {
	case i < len(e.Name):
		return e.Name[i]
	case e.Mode.IsTree():
		return '/'
	}
	return 0
}

func parseTree(data []byte, idLen int) ([]TreeEntry, error) {
	raw := idLen / 2
	entries := make([]TreeEntry, 0, len(data)/(raw+16)+1)
	for len(data) > 0 {
		space := bytes.IndexByte(data, ' ')
		nul := bytes.IndexByte(data, 0)
		if space < 1 || nul <= space+1 || nul+1+raw > len(data) {
			return nil, errors.New("malformed tree")
		}
		mode, err := strconv.ParseUint(string(data[:space]), 8, 32)
		if err != nil {
			return nil, fmt.Errorf("malformed tree: %w", err)
		}
		entries = append(entries, TreeEntry{
			Name: string(data[space+1 : nul]),
			Mode: Mode(mode),
			ID:   hex.EncodeToString(data[nul+1 : nul+1+raw]),
		})
		data = data[nul+1+raw:]
	}
	return entries[:len(entries):len(entries)], nil
}
