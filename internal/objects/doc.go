// Package objects reads and writes single git objects.
//
// A [Reader] asks long-lived git cat-file processes, which is right for every
// repository: packs, multi-pack indexes, alternates, partial clones, both hash
// functions. A [Writer] makes loose objects in process. What a Writer has
// written a Reader sees at once; it is durable only after [Writer.Sync], which
// must return before a ref comes to name it. Until then a crash may leave the
// object damaged, so a Writer that meets an object it did not write itself
// reads it through before it relies on it, and writes it again if it is broken.
//
// Object ids are lower-case hexadecimal strings of 40 or 64 characters. Trees
// are kept in git's order. [EditTree] makes a new tree from an old one and
// rewrites nothing but the directories on the way to what changed.
package objects
