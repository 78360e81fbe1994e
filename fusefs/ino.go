package fusefs

// RootIno is the inode number of a workspace's root.
const RootIno = 1

// LowerIno is the inode number under which an entry of the git tree shows, given
// that of its directory: the same in every mount, so that an index can be
// written whose stat data is true before anything was looked up.
func LowerIno(parent uint64, name string) uint64 { return hashIno(parent, name) }
