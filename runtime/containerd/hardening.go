package containerd

import (
	"context"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/git-env/git-env/runtime"
)

// capabilities are what root inside may do beyond an ordinary user: what package
// managers, and what they install, need. Not among them of what container runtimes
// usually give: NET_RAW, which reads and forges what others send, and MKNOD.
func capabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", // files of other users
		"CAP_SETUID", "CAP_SETGID", "CAP_KILL", // other users
		"CAP_SETPCAP", "CAP_SETFCAP", // gives up capabilities; marks files with them
		"CAP_SYS_CHROOT", "CAP_NET_BIND_SERVICE",
		"CAP_AUDIT_WRITE", // useradd, su and login want to log
	}
}

// noCores is a limit on core files that keeps them off the machine, too: with 0 the
// kernel would still hand a core to a program on the host when core_pattern names
// one, and with it the memory of whatever ran inside.
const noCores = 1

// hardened takes away what a container has by default and does not need.
func hardened(ctx context.Context, c oci.Client, container *containers.Container, s *specs.Spec) error {
	if err := oci.WithCapabilities(capabilities())(ctx, c, container, s); err != nil {
		return err
	}
	s.Process.NoNewPrivileges = true
	// All other limits are inherited from the daemon.
	s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_CORE", Soft: noCores, Hard: noCores}}
	return nil
}

// isolationOf says what level a container gets, or that the one it asks for is not
// to be had.
func isolationOf(asked runtime.Isolation) (runtime.Isolation, error) {
	switch asked {
	case runtime.IsolationAuto, runtime.IsolationBasic:
		return runtime.IsolationBasic, nil
	}
	return "", &runtime.MissingError{What: "isolation " + string(asked),
		Detail: "is not to be had in this version: root filesystems and workspaces are not mapped into a user namespace"}
}
