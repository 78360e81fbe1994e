// Package settings knows every setting of git env: its name, what values it
// takes, who may set it, and what a file of a repository may not ask for without
// consent. It checks what git lists, finds the lines of mistakes, and merges the
// origins of values.
//
// The table in schema.go is the only place where a setting is described. The
// parser, 'git env config', and docs/config.md all come from it.
package settings
