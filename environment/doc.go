// Package environment is the engine of git env: it ties a branch, a
// copy-on-write workspace, a container and a record of every exec together.
//
// # Vocabulary
//
//   - Store: what is on disk below $GIT_COMMON_DIR/env, and reading it. A Store
//     never writes, mounts or starts anything; the command line uses it for every
//     read-only command.
//   - State: one environment's env.json.
//   - Engine: the writing side, held by the one daemon of a repository.
//   - Env: one environment inside an Engine.
//
// # Invariants
//
//   - Refs move only by compare-and-swap, and the branch, the exec note and the
//     output ref of one exec move in one transaction.
//   - env.json is written before the thing it describes comes into being and
//     removed after it is gone, so that a crash leaves a described half, never a
//     hidden orphan.
//   - A layer is referenced by env.json before anything is written into it.
//   - What the workspace holds is marked as committed only after the commit is
//     reachable from the branch.
//
// Locks: Engine.mu guards the map of environments and the lazily started parts;
// Env.mu guards one environment and is held while it is mounted, committed,
// forked or deleted, never while an exec runs.
package environment
