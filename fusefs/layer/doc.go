// Package layer keeps one copy-on-write layer of a workspace on disk.
//
// A layer is a directory:
//
//	meta   JSON: format version, parent layer, first sequence number, first
//	       free inode number, sealed flag; replaced atomically
//	log    append-only records of every change of the namespace
//	data/  file bytes by inode: data/<2 hex>/<inode hex>
//
// The namespace is nowhere stored as such: it is what the records of all
// layers of a stack, bottom to top, make of the immutable tree underneath.
// A record is in the log before the change is visible to anybody, so the log
// is the journal of the file system, its crash recovery and its list of dirty
// paths at once.
//
// A sealed layer never changes again and may be shared by any number of
// stacks. Only the top layer of a stack is open for writing, by one process.
//
// A merged layer (Writer) has the net effect of several sealed ones and may be
// in a stack in their place. Its records say what is, not what changed.
//
// # Log format
//
// A log is a sequence of frames: a little-endian uint32 payload length, the
// CRC-32C of the payload, the payload. A payload is the kind byte, the time in
// nanoseconds, and the fields of its kind; integers are varints, strings carry
// their length.
//
// A frame that is cut short or does not match its checksum with nothing
// readable behind it is the tail that was being written when the machine lost
// power. The top layer cuts it off when it is opened for writing. One with
// whole frames behind it is damage: it stays, and replay goes on behind it.
// Records are numbered as if the damage had as many as fit, so that a mark
// behind it never covers a change that it did not.
package layer
