// Package client is the thin end of the daemon's socket: it connects, starting
// the daemon when needed, sends one request and passes on what comes back. It
// holds no state.
package client
