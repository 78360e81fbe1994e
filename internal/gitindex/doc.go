// Package gitindex changes git's index files (gitformat-index(5)) without
// starting git: what is not changed is copied in large pieces, so that an edit of
// one entry among a hundred thousand costs about what copying the file does.
package gitindex
