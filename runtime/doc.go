// Package runtime describes what git env asks of a container runtime: root
// filesystems that persist and fork, containers that stay up between commands,
// and processes inside them whose output streams live.
//
// Vocabulary:
//
//   - An image is where a root filesystem starts: an OCI image, or "host", a
//     view of the machine's own /usr and friends that needs no registry.
//   - A root filesystem has an id of its own and outlives every container that
//     used it. Forking one is cheap and leaves the source as it was.
//   - A container runs on one root filesystem. It holds no state that matters:
//     it can be removed and started again at any time.
//   - A process is one command in a running container.
//
// The interfaces promise the same whatever is behind them: methods are safe for
// concurrent use, honour their context, undo what they began when they fail, and
// fail with one of the errors declared here where a caller can do something
// about it. Messages of those errors are one line, meant for people.
package runtime
