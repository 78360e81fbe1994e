package fusefs

import (
	"context"
	"errors"
	"io"
	"time"
)

// Objects reads git objects. Ids are lower-case hex. Implementations must be
// safe for concurrent use and must not touch anything below a mount.
type Objects interface {
	// Tree returns the entries of a tree, in any order.
	Tree(ctx context.Context, id string) ([]TreeEntry, error)
	// Sizes returns the sizes of blobs in bytes, in the order of ids; -1 for one
	// that the repository does not have.
	Sizes(ctx context.Context, ids []string) ([]int64, error)
	// Blob writes the content of a blob to w and returns its size.
	Blob(ctx context.Context, id string, w io.Writer) (int64, error)
	// Blobs reads many blobs with one exchange. For each, in the order of ids, it
	// calls take with the index, the size and the content, or with why there is
	// none; an error of take ends it.
	Blobs(ctx context.Context, ids []string, take func(i int, size int64, content io.Reader, err error) error) error
}

// A TreeEntry is an entry of a git tree. Mode is git's: 0100644, 0100755,
// 0120000, 0160000 or 040000.
type TreeEntry struct {
	Name string
	Mode uint32
	ID   string
}

// MountSpec says what to mount, and where.
type MountSpec struct {
	// ID names the mount in later calls.
	ID string
	// Dir is the mount point, an absolute path.
	Dir string
	// Tree is the id of the git tree underneath.
	Tree string
	// Time is the modification time of everything in that tree.
	Time time.Time
	// Layers are layer ids from bottom to top. The last one is written to and
	// made when it does not exist; the others are sealed or treated so.
	Layers []string
	// DotGit is the content of a read-only file .git at the root that belongs
	// to the mount and not to the tree: it cannot be changed or removed from
	// inside and is never reported as dirty. "" for no such file.
	DotGit string
	// Held starts the mount with Hold on.
	Held bool
	// UID and GID own everything in the tree.
	UID, GID uint32
	// Paths are what is shown of the tree, from its root, each with all that is
	// below it; nothing else of the tree is to be seen, changed or replaced, but
	// for the directories that lead to them. Empty for the whole tree.
	Paths []string
	// Quota is how many bytes the workspace may keep on the disk: those allocated
	// for data files, in whichever layer of the stack, that it still has, and
	// the log of the top layer. 0 for no limit but the file system's.
	Quota int64
	// ReadOnly refuses every change; no layer is made or written.
	ReadOnly bool
	// Profile is what the mount is to be good at.
	Profile Profile
}

// A Profile says what a mount is to be good at.
type Profile string

// The profiles.
const (
	// ProfileMeta is for many files: opening and closing one costs nothing.
	ProfileMeta Profile = ""
	// ProfileIO is for large files: the kernel reads and writes the backing
	// files itself, but must be asked for each open and close, and Freeze fails
	// with ErrOpenForWriting while a file is open for writing.
	ProfileIO Profile = "io"
)

// Kind is what a name is now.
type Kind uint8

// The kinds of entries.
const (
	Deleted Kind = iota // there is no such name
	File
	Symlink
	Dir
	Other // fifo, socket or device
)

// A DirtyEntry describes a name as it is now.
type DirtyEntry struct {
	Name string
	Kind Kind
	// Whole: a directory that is new or came from elsewhere since the last
	// mark, so that everything in it counts as changed (use List).
	Whole bool
	// Below: a directory with dirty names somewhere in it; ask for its path.
	Below bool
	// Exec is the owner's executable bit of a file.
	Exec  bool
	Size  int64
	Mtime time.Time
	Ino   uint64
	// Data is the path on the host of a file's bytes. It may change or vanish
	// while the workspace is in use; such a change is dirty again.
	Data string
	// Source is the id of the blob that Data was converted from, for a file of
	// the tree that nobody has written to. Such a Data is part of a cache: when
	// it has vanished, Stat makes it again.
	Source string
	// Blob is the id of the blob a file or symbolic link still consists of.
	// For a file with neither Data nor Blob the content is empty.
	Blob string
	// Tree is the id of the git tree a directory still equals, for one in
	// which nothing was ever changed; "" otherwise. For a gitlink, which shows
	// as an empty directory, it is "" and Gitlink is the commit.
	Tree    string
	Gitlink string
	// Target is where a symbolic link points to, when it is not a Blob.
	Target string
}

// Dirty is what changed since the last mark in each directory asked for.
type Dirty struct {
	// Seq is to be given to Mark when the entries, as they are now, are
	// committed. Changes made after the call have a higher number.
	Seq     uint64
	Entries [][]DirtyEntry
}

// Errors of the client's calls, for errors.Is.
var (
	// ErrServerDead reports that the file server is gone, and all mounts with
	// it. What was written is in the layers: start a new one and mount again.
	ErrServerDead = errors.New("file server is gone")
	// ErrNotMounted reports an unknown mount id.
	ErrNotMounted = errors.New("no such mount")
	// ErrMounted reports a mount id or directory that is in use.
	ErrMounted = errors.New("already mounted")
	// ErrOpenForWriting reports a freeze of a mount with ProfileIO while
	// something writes.
	ErrOpenForWriting = errors.New("open for writing")
)
