// Package secret keeps values out of what is written down. It parses references
// to secrets, resolves them on behalf of the user who has them, and finds and
// masks their values, raw and in the encodings that commonly occur, in streams of
// any size.
//
// It knows nothing of environments: who may refer to what, where values are kept
// and for how long is decided by its callers.
package secret
