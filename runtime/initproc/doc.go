// Package initproc is the first process of a container: it reaps orphans and
// does nothing else. It is the body of the hidden command `git-env init`, whose
// binary is bound read-only into every container, so that any image will do,
// also one without a shell.
package initproc
