package runtime

import (
	"context"
	"io"
	"syscall"

	"github.com/git-env/git-env/runtime/network"
)

// Image is a resolved starting point of a root filesystem.
type Image struct {
	// Ref is the normalised reference ("host" for the host image).
	Ref string
	// Digest is the manifest's digest; empty for the host image.
	Digest string
	// Host marks the host image.
	Host bool
	// Env is the image's environment, always with a PATH.
	Env []string
	// WorkingDir and User are the image's defaults; may be empty.
	WorkingDir string
	User       string
	// Command is what the image says to run; may be empty.
	Command []string
}

// Info describes the runtime that is in use.
type Info struct {
	Version string
	Socket  string
	// Private is true when the containerd is one that git env started.
	Private bool
	// Runtime is the OCI runtime: "io.containerd.runc.v2".
	Runtime string
	// Seccomp is true when a system call filter is applied.
	Seccomp bool
}

// Progress is reported while an image is brought in.
type Progress struct {
	// Phase is "resolve", "pull" or "unpack".
	Phase string
	// Done and Total are bytes; Total grows while manifests are read.
	Done, Total int64
}

// Mount is a host directory or file bound into a container.
type Mount struct {
	// Source is an absolute host path, Target an absolute path inside.
	Source, Target string
	ReadOnly       bool
	// Flat leaves out what is mounted below the source.
	Flat bool
}

// SecretFile is a file that exists in the memory of a container only.
type SecretFile struct {
	// Name is that of a file, not a path.
	Name string
	Data []byte
}

// Host is a name that a container is to know, and its address.
type Host struct{ Name, Addr string }

// RootChange is one difference between a root filesystem and its image.
type RootChange struct {
	// Status is 'A' for added, 'M' for modified, 'D' for deleted. What is in a
	// deleted directory is not listed.
	Status byte
	// Path is absolute, as seen inside.
	Path string
	Dir  bool
}

// Spec says how a container is to be.
type Spec struct {
	// ID is the container's id: letters, digits, '-', '_' and '.', at most 64.
	ID string
	// RootFS is the id of a root filesystem that exists. At most one running
	// container may use it.
	RootFS string
	Image  Image
	Mounts []Mount
	// Secrets asks for an empty tmpfs at /run/secrets, which PutSecrets fills.
	Secrets bool
	// Env is added to the image's environment, and wins.
	Env []string
	// Cwd is the default working directory of execs; "" takes the image's.
	Cwd      string
	Hostname string
	// Hosts are names beside those of the host's /etc/hosts.
	Hosts  []Host
	Labels map[string]string
	// PidsLimit is the largest number of processes; 0 takes the default, a
	// negative number means no limit.
	PidsLimit int64
	// MemoryBytes and CPUs limit the container; 0 means no limit.
	MemoryBytes int64
	CPUs        float64
	// Isolation is the level that it must have; "" takes the best there is. A level
	// that is not to be had fails the start with a *MissingError.
	Isolation Isolation
	// Network is what the container reaches; the zero value is everything but the
	// host itself.
	Network network.Rules
	// NetworkOf is the id of a running container whose network it shares, which has
	// the rules in Network.
	NetworkOf string
}

// Isolation is how far root inside is from root of the machine.
type Isolation string

// Levels of isolation. Each has namespaces, a filter of system calls, few
// capabilities, no way to gain more, and hidden parts of /proc and /sys.
const (
	IsolationAuto  Isolation = ""
	IsolationBasic Isolation = "basic" // no user namespace
	IsolationUser  Isolation = "userns"
)

// ExecSpec says what to run in a container.
type ExecSpec struct {
	// ID is unique among the execs of the container, of the same alphabet as
	// Spec.ID. Every process of the exec has GIT_ENV_EXEC=<ID> in its environment.
	ID   string
	Args []string
	// Env is added to the container's environment, and wins.
	Env []string
	// Cwd is absolute; "" takes the container's.
	Cwd string
	// User is a name or number in the container, a group may follow after a colon;
	// "" takes the image's.
	User string
	// TTY asks for a terminal: Stderr is not used then.
	TTY           bool
	Width, Height uint16
}

// IO connects an exec. The readers and writers are used from goroutines of the
// runtime, each from one, until Process.Wait returns; none is used after that,
// except that a Stdin which blocks in Read is abandoned there.
type IO struct {
	Stdin          io.Reader // nil: empty
	Stdout, Stderr io.Writer // nil: discarded
}

// Exit is how a process ended.
type Exit struct {
	// Code is the exit code, 128+n when signal n ended the process.
	Code int
	// Signal is the signal's name without SIG ("KILL"), empty when the process
	// exited by itself.
	Signal string
}

// Limits are the limits of a container, and how often it ran into them since it
// was started.
type Limits struct {
	// Memory is in bytes, Processes a number; 0 where there is no limit.
	Memory, Processes int64
	// OutOfMemory is how many processes the kernel killed for lack of memory, the
	// container's or the machine's.
	OutOfMemory int64
	// Refused is how often no process could be made.
	Refused int64
}

// Backend is a container runtime.
type Backend interface {
	// Info describes the runtime; it starts it when it is not up.
	Info(ctx context.Context) (Info, error)
	// Resolve makes an image locally available: "host", or an OCI reference,
	// pulled when it is not there. progress may be nil; it is called from one
	// goroutine at a time. Fails with ErrImageNotFound, ErrPlatform, ErrRegistry.
	Resolve(ctx context.Context, ref string, progress func(Progress)) (Image, error)
	// Identity names what a root filesystem of an image would begin with: as long as
	// it is the same, so is that.
	Identity(img Image) (string, error)
	// CreateRootFS makes a root filesystem of an image. Fails with ErrExists.
	CreateRootFS(ctx context.Context, id string, img Image) error
	// ForkRootFS makes dst a copy of src as it is now; src is unaffected. The
	// cost does not depend on the size when no container runs on src; otherwise
	// that container stands still while what it wrote is copied.
	ForkRootFS(ctx context.Context, src, dst string, img Image) error
	// CopyTree copies a directory that containers write to, and that none writes to
	// now: owners, modes, times, extended attributes, holes and hard links too. dst
	// must not exist. No symbolic link below src is followed.
	CopyTree(ctx context.Context, src, dst string) error
	// DiffRootFS calls fn for what differs between a root filesystem and its image,
	// sorted within each of its mounts. What a running container writes meanwhile may be
	// seen or not. Fails with ErrNotFound.
	DiffRootFS(ctx context.Context, id string, fn func(RootChange) error) error
	// RemoveRootFS forgets a root filesystem; one that does not exist is no error.
	RemoveRootFS(ctx context.Context, id string) error
	// Start creates and starts a container, or returns the running one of that id.
	Start(ctx context.Context, spec Spec) (Container, error)
	// Get returns a running container, or ErrNotFound.
	Get(ctx context.Context, id string) (Container, error)
	// Remove kills everything in a container and forgets it; its root filesystem
	// stays. A container that does not exist is no error.
	Remove(ctx context.Context, id string) error
	// List returns the ids of the containers with a label, running or not.
	List(ctx context.Context, labelKey, labelValue string) ([]string, error)
	// Close releases the client; containers keep running. A runtime that was
	// started on demand and that nobody else uses is stopped.
	Close() error
}

// Container is a running container.
type Container interface {
	ID() string
	// Pid is the host's pid of the container's first process.
	Pid() int
	// Exec starts a command. Fails with ErrCommandNotFound, ErrNotExecutable,
	// ErrBadCwd, ErrLimit. A file that only the kernel can refuse (a format it does not know,
	// a missing interpreter) may instead end at once with exit code 126, the reason
	// on its standard error. The context bounds the start only.
	Exec(ctx context.Context, spec ExecSpec, streams IO) (Process, error)
	// PutSecrets writes files into the tmpfs of Spec.Secrets, each with mode 0400 and
	// owned by whom execs run as. Nothing of them is kept outside of it.
	PutSecrets(ctx context.Context, files []SecretFile) error
	// Running asks whether the container is alive; it does not ask the runtime.
	Running(ctx context.Context) bool
	// Isolation is the level reached.
	Isolation() Isolation
	// Limits asks the kernel; what cannot be read is zero. It works until the
	// container is removed.
	Limits() Limits
	// Done yields one Exit when the container ends, and is closed then.
	Done() <-chan Exit
	// Network is the container's own, or nil when it is on the host's or served by
	// another process. It ends with the container.
	Network() *network.Network
	// Pause freezes every process; Resume thaws them.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// Process is one exec.
type Process interface {
	// Pid is the host's pid.
	Pid() int
	// Wait returns when the process has ended and its output is drained. When
	// children still hold the pipes, that is at most 100 ms later; what they
	// write afterwards is discarded. It may be called more than once.
	Wait() (Exit, error)
	// Signal sends a signal to the process and its process group, as a terminal
	// does; one that has ended is no error.
	Signal(ctx context.Context, sig syscall.Signal) error
	// Resize sets the size of the terminal.
	Resize(ctx context.Context, width, height uint16) error
	// KillTree ends every process that this exec started, whatever it did to get
	// away: double forks, new sessions, cleared environments of the sole exec.
	KillTree(ctx context.Context) error
	// SignalTree sends a signal to all of these and returns how many there are; 0
	// sends nothing. It may be called after the process has ended, and then means
	// what that has left behind.
	SignalTree(ctx context.Context, sig syscall.Signal) (int, error)
	// Close forgets the process; one that is still running is killed with its tree.
	Close() error
}
