// Archlint checks the shape of this module: which package may import which,
// where processes may be started, and a few rules of style that a compiler does
// not know. It reads source files only, so it needs no build, no network and no
// tool beyond the standard library.
//
//	go run ./internal/archlint [dir]
//
// prints one line per offence and exits 1 when there is any. The rules, each
// with its reason, are the tables in rules.go; a new exception belongs there,
// with the reason why it is one.
package main
