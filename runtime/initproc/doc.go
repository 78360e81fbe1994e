// Package initproc is the first process of a container: it reaps orphans and
// runs the commands that the daemon asks for. It is the body of the hidden
// command `git-env init`, whose binary is bound read-only into every container,
// so that any image will do, also one without a shell.
//
// # How the daemon reaches it
//
// Called as `git-env init serve`, it makes a pair of connected sockets. One end
// it reads; the other it keeps, under the fixed number RendezvousFd, for the
// daemon to take a copy of with pidfd_getfd(2). There is no name anywhere that
// could be connected to, and nothing to take over: whoever has the right to
// trace this process gets the same end, also a daemon that was started later.
// Each message on it carries one descriptor, a connection for one command
// (see Request), and nothing else.
//
// # What keeps the rest of the container away from it
//
// pidfd_getfd, /proc/1/fd, /proc/1/mem, ptrace and process_vm_writev all ask the
// kernel for the same right. The process is not dumpable from its first moment,
// before any command runs: so the right takes CAP_SYS_PTRACE in the user
// namespace that the container was started in, which no process in it has or can
// get. Same user ids do not matter. Every descriptor beyond the standard ones is
// closed on exec; none of them is a directory, so that no working directory under
// /proc/self/fd leads anywhere. Commands can disturb it as root can: lower its
// resource limits, or stop the container by a signal that it takes. Both harm no
// other container.
//
// What it says is believed about this container only.
package initproc
