// Command git-env is the command line of git env: a thin client that parses,
// asks and prints. What it knows about environments it reads through package
// environment; what changes something it asks of the repository's daemon, or, in
// the user's own work tree, of package environment/integrate.
//
// One file holds one command: its flags (kong's grammar), its checks, its call
// and its output. Shared by all are
//
//	main.go     Main, hidden commands, signals, exit codes
//	grammar.go  the list of commands, and splitting of "--"
//	usage.go    help and usage in git's style, from the grammar
//	mandoc.go   manual pages, from the same grammar
//	app.go      the caller's surroundings; repository, store and daemon
//	output.go   JSON, tables, times; report.go errors and hints
//	pager.go    git's pager; progress.go long work; terminal.go raw mode
//
// Standard output carries data only. Exit codes are environment.ExitCode's.
package main
