// Package integrate brings an environment's work into the user's own work tree:
// merge, apply, diff and checkout.
//
// Everything a user would expect git's exact behaviour of is done by git itself,
// as the user's command: with the user's configuration, hooks and output. This
// package asks the questions before and after, so that every way out is one of
// three: done and verified, refused with nothing changed, or stopped in a state
// that has a way forward and a way back.
//
// # Vocabulary
//
//   - Tree: the user's work tree, with its index and HEAD.
//   - Source: the environment to take from: its branch, tip and base.
//   - give back: to put the user's own uncommitted edits, set aside in a stash
//     entry, back into the tree. A stash entry is dropped only when everything in
//     it is back.
//   - snapshot: what an apply may touch, saved before anything changes, from which
//     an abort restores index and files.
//
// A Tree is used by one goroutine at a time.
package integrate
