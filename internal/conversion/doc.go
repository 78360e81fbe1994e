// Package conversion finds out what `git checkout` would write for a file, byte
// for byte: line ends, ident, working-tree encodings and smudge filters.
//
// Git itself does both halves. `git check-attr` says which attributes a path of
// a tree has, and `git cat-file --filters` converts. Both run in a scratch work
// tree that holds nothing but the .gitattributes files of one tree, with an
// empty index, so that they see the attributes a checkout of that tree would
// see, whatever the user's own work tree looks like. The processes stay, so that
// a long-running filter, such as that of Git LFS, is started once.
//
// Filters are those of the host user's configuration and are run as a checkout
// would run them, in the scratch work tree: a command that is looked for in the
// tree itself is not found, because a tree may come out of a container.
package conversion
