// Package api holds the requests and answers that the command line and the
// daemon exchange. Every type is plain data with JSON tags; the daemon and the
// command line are always of one version (a mismatch is refused at the
// handshake), so these shapes may change freely between versions.
package api
