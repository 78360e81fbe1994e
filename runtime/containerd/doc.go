// Package containerd implements runtime.Backend on containerd and runc.
//
// # The daemon
//
// Unless told to use an existing socket, a Backend uses a private containerd,
// started by the first Backend that needs it and shared by all of the user's.
// Its content lives under Options.DataDir, with
//
//	start.lock        held (flock) while it is started or stopped
//	users             held shared (flock) by every Backend that uses it; the one
//	                  that can take it exclusively is the last and stops it
//	rundir            the run directory it was started with
//
// and its socket, logs and state under Options.RunDir:
//
//	containerd.sock   the socket; whoever listens there is the daemon
//	config.toml       generated at every start
//	containerd.log    its log, cut at every start when it has grown
//	io/               named pipes of running execs
//	box/<id>/         per container: resolv.conf, hosts, hostname
//	l/<hash>/         short names of layers that are too many to be named in full
//
// Containers survive the daemon: their shims keep running, and the next start
// finds them again.
//
// # Root filesystems
//
// A root filesystem is a stack of overlays whose writable layers belong to this
// package, not to containerd's snapshotter: StateDir/rootfs/<id>/ has the
// writable layer of each overlay in top/<overlay> and a file `layers` that names
// the sealed layers below, kept in StateDir/rootfs/sealed/<layer>/. Forking
// seals the top by renaming it, whatever its size; both sides then share it.
// What is below the lowest layer depends on the image: for an OCI image a
// read-only snapshot of its unpacked layers, for the host image the host's own
// directories under a mask.
//
// # The host image
//
// The root is a skeleton directory with a copy of what anybody may read of /etc;
// /usr, /opt and the package databases are overlays on the host's directories.
// A mask layer of whiteouts hides everything in them that an ordinary user of
// the host could not read. The host's packages may be upgraded meanwhile: an
// environment then sees new files below its own changes.
//
// # Execs
//
// The container's first process starts them (package initproc): an exec costs a
// fork. Containerd does where that cannot be: the first process is not ours to
// reach, or is of another version. Both are a supervisor to a process, and a test
// runs one suite with either.
//
// # Isolation
//
// Own mount, pid, ipc, uts and cgroup namespaces, few capabilities,
// seccomp filter, masked paths and no_new_privs. The network namespace is the
// container's own, see package network, unless the host's is asked for: then
// ports are shared with the host, and abstract unix sockets of the host can be
// connected to. Sockets in the file system are not visible.
package containerd
