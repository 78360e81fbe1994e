// Package gitcmd is the only package that executes git.
//
// There are two ways to run it, and they must not be confused:
//
//   - [Git] is git as a tool of ours. Its environment is scrubbed of every GIT_*
//     variable, it speaks C English, never prompts, and never runs a hook, a
//     file system monitor, or a background gc. It works on the git directory it
//     was made for and nowhere else.
//   - [UserCommand] is git as the user would run it, with the user's hooks,
//     pager and configuration, for what users expect git's exact behaviour of:
//     merge, diff, log, checkout.
//
// No shell is ever involved, pathspecs are literal, and contents travel through
// standard input, never through arguments, whose size the kernel limits.
//
// Failures are a [*Error], which keeps arguments, exit code and standard error.
// What callers have to tell apart has a sentinel: [ErrNotRepo], [ErrRefChanged],
// [ErrUnknownRevision]. They are decided by exit codes and by looking again at
// the repository, not by reading messages.
package gitcmd
