// Package fusefs is the copy-on-write file system of an environment's
// workspace.
//
// A workspace shows an immutable git tree with changes on top. The tree is
// read through the Objects interface, directory by directory and blob by blob
// as they are looked at; the changes live in a stack of layers (package
// layer). Nothing is copied to make a workspace, to freeze or to fork it.
//
// Two processes use this package:
//
//   - the file server (ServerMain) serves every mount of a repository over
//     FUSE and does nothing else. It never opens, maps or executes anything
//     below its own mounts.
//   - the daemon talks to it through a Client: Mount, Unmount, Dirty, Mark,
//     Freeze and so on, over a socket pair. The daemon owns the /dev/fuse
//     descriptors and the mounts. When either process dies the other one
//     aborts the connections and detaches the mounts, so that nobody hangs.
//
// # Transports
//
// Requests come over FUSE's io_uring transport where the kernel has it and
// ServerOptions.Uring is set, else over /dev/fuse. With io_uring each possible
// processor has one thread, for all mounts together, which answers what comes
// from that processor: a request then costs no wake-up of another one, which
// is most of what it costs otherwise. What would keep such a thread (slow.go)
// is done by a goroutine. When a mount cannot have its rings after all the
// client makes it again without.
//
// # Vocabulary
//
//	lower    an entry of the git tree, or a node whose content still is
//	top      the one writable layer of a stack
//	up       a node whose bytes are in a data file of a layer; "copy up"
//	         brings them to the top before they change
//	intro    the record that makes a lower node known to the log, written
//	         before another record refers to it
//	convert  a file of the tree whose content a checkout would have written in
//	         another way than it is stored (convert.go); origin, the path in the
//	         tree that decides about it
//	dirty    changed since the last Mark; whole: a directory that is new or
//	         came from somewhere else
//
// # Invariants
//
// Every change of the namespace is one or more records that are in the log of
// the top layer before they are applied in memory, and the same code applies
// them now and at replay: what is seen live is what a remount shows.
//
// Inode numbers are the FUSE node ids. They survive copy-up, rename, freeze
// and remount and are never used twice.
//
// Locks are taken in this order: workspace.using, workspace.gate, a shard of workspace.shards,
// workspace.mu. Nobody notifies the kernel with one of them held.
package fusefs
