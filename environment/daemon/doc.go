// Package daemon is the server in front of an environment.Engine: one process
// per repository, exclusive by lock, reached through a socket in the state
// directory, ready when it says so on an inherited pipe. It leaves when nothing
// has needed it for a while.
package daemon
