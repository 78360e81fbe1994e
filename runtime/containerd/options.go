package containerd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/git-env/git-env/runtime/network"
)

// Options say where a Backend lives.
type Options struct {
	// Socket is an existing containerd's socket; "" means the private one.
	Socket string
	// DataDir holds what the private containerd stores. Default:
	// ${XDG_DATA_HOME:-~/.local/share}/git-env/containerd. The parts of the host
	// image are kept beside it, in <parent of DataDir>/host.
	DataDir string
	// RunDir holds sockets, pipes and state. Default:
	// ${XDG_RUNTIME_DIR:-/run}/git-env/containerd.
	RunDir string
	// StateDir holds the writable layers of root filesystems, in StateDir/rootfs.
	StateDir string
	// Exe is a statically linked binary that runs initproc.Main when called as
	// `<Exe> init`; "" means the running one.
	Exe string
	// NoInitExec has containerd start the processes of new containers, as where
	// the first process cannot.
	NoInitExec bool
	// Path is the PATH that the host image takes entries from; "" means $PATH.
	Path string
	// Network says how the networks of containers work.
	Network network.Options
	// Log receives warnings, a line each; nil discards them.
	Log io.Writer
	// RegistryTimeout is how long a registry may be silent; 0 means 25 s.
	RegistryTimeout time.Duration
}

// maxSocketPath keeps the socket, and containerd's second one with its longer
// name, below what sockaddr_un holds.
const maxSocketPath = 100

const defaultRegistryTimeout = 25 * time.Second

func (o Options) withDefaults() (Options, error) {
	if o.StateDir == "" {
		return o, errors.New("no state directory given")
	}
	if o.DataDir == "" {
		base := os.Getenv("XDG_DATA_HOME")
		if base == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return o, fmt.Errorf("find the data directory: %w", err)
			}
			base = filepath.Join(home, ".local", "share")
		}
		o.DataDir = filepath.Join(base, "git-env", "containerd")
	}
	if o.RunDir == "" {
		base := os.Getenv("XDG_RUNTIME_DIR")
		if base == "" {
			base = "/run"
		}
		o.RunDir = filepath.Join(base, "git-env", "containerd")
	}
	if o.Exe == "" {
		exe, err := os.Executable()
		if err != nil {
			return o, fmt.Errorf("find the own binary: %w", err)
		}
		o.Exe = exe
	}
	if o.Path == "" {
		o.Path = os.Getenv("PATH")
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.RegistryTimeout == 0 {
		o.RegistryTimeout = defaultRegistryTimeout
	}
	for _, dir := range []string{o.DataDir, o.RunDir, o.StateDir, o.Exe} {
		if !filepath.IsAbs(dir) {
			return o, fmt.Errorf("not an absolute path: %s", dir)
		}
	}
	return o, nil
}
