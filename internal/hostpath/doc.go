// Package hostpath opens paths of this machine that somebody else has named, so
// that what is opened is what was looked at: by one step after the other, without
// following a link that others may have planted, and not in places that are
// refused. What was opened is told from anything else by its ID, also where it
// has been mounted since.
package hostpath
