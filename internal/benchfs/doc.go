// Benchfs runs the same file system work on the native file system, kernel
// overlayfs, fuse-overlayfs and workspaces of git env, side by side in one run,
// and prints a table of medians. It fails for no time: the goals it prints, and
// the marks where one is missed, are for orientation. docs/benchmarks.md says how to run it and what each row means.
//
// One run is made of sessions: a group of workloads, in one column, in one
// round. Each session has a fresh backing file system, is set up from the same
// commit, and is taken down before the next one; the columns of a group follow
// one another, so that what else the machine does is shared by neighbours.
//
// The work itself is done and timed by this program called as "benchfs work":
// on the host with its working directory in the tree, or through "git env run"
// in the container, so that starting it is never part of the time.
package main
