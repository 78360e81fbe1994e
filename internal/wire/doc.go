// Package wire frames the conversation between the command line and the daemon:
// one request per connection, then frames both ways until a result or an error.
package wire
