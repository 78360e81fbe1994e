package containerd

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/git-env/git-env/runtime"
)

const (
	defaultPath      = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	defaultPidsLimit = 4096
	// initPath is where the binary of the first process is bound to. It is on the
	// container's own /dev, so that no trace of it gets into the root filesystem.
	initPath = "/dev/.git-env/init"
	// execVariable marks the processes of an exec.
	execVariable = "GIT_ENV_EXEC"

	cgroupParent = "/git-env"
	cpuPeriod    = 100_000 // microseconds
)

// Labels of containers.
const (
	labelRootFS = "io.git-env.rootfs"
	labelUser   = "io.git-env.user" // whom execs run as, in the image's words
	labelCwd    = "io.git-env.cwd"
	// labelIsolation is the level that the container was started with.
	labelIsolation = "io.git-env.isolation"
)

// ociSpec builds the container's configuration.
func (b *Backend) ociSpec(ctx context.Context, spec *runtime.Spec, plan *mountPlan) (*specs.Spec, error) {
	pids := spec.PidsLimit
	if pids == 0 {
		pids = defaultPidsLimit
	}
	opts := []oci.SpecOpts{
		oci.WithProcessArgs(b.initArgs()...),
		oci.WithProcessCwd("/"),
		oci.WithHostname(spec.Hostname),
		oci.WithoutRunMount, // /run persists like everything else
		b.withNetwork(spec),
		oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.CgroupNamespace}),
		oci.WithCgroup(cgroupParent + "/" + spec.ID),
		oci.WithDefaultUnixDevices,
		oci.WithMounts([]specs.Mount{{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
			Options: []string{"ro", "nosuid", "noexec", "nodev"}}}),
		oci.WithPidsLimit(pids),
		hardened,
		seccomp.WithDefaultProfile(),
	}
	if spec.MemoryBytes > 0 {
		// The same limit for memory and swap together: a limit that swaps is none.
		opts = append(opts, oci.WithMemoryLimit(uint64(spec.MemoryBytes)), oci.WithMemorySwap(spec.MemoryBytes))
	}
	if spec.CPUs > 0 {
		opts = append(opts, oci.WithCPUCFS(int64(spec.CPUs*cpuPeriod), cpuPeriod))
	}
	s, err := oci.GenerateSpec(namespaces.WithNamespace(ctx, namespace), nil, &containers.Container{ID: spec.ID}, opts...)
	if err != nil {
		return nil, err
	}
	// With a cgroup namespace the directory around the hierarchies stays writable.
	s.Linux.ReadonlyPaths = append(s.Linux.ReadonlyPaths, "/sys/fs/cgroup")
	s.Process.User.AdditionalGids = []uint32{0}
	s.Process.Env = mergeEnv(containerEnv(spec), nil)
	s.Mounts = append(plan.inner, s.Mounts...)
	own, err := b.ownMounts(spec)
	if err != nil {
		return nil, err
	}
	s.Mounts = append(s.Mounts, own...)
	if spec.Secrets {
		s.Mounts = append(s.Mounts, secretsMount())
	}
	for _, m := range spec.Mounts {
		mode := "rw"
		if m.ReadOnly {
			mode = "ro"
		}
		bind := "rbind"
		if m.Flat {
			bind = "bind"
		}
		s.Mounts = append(s.Mounts, specs.Mount{Type: "bind", Source: m.Source, Destination: m.Target,
			Options: []string{bind, "rprivate", mode, "nosuid", "nodev"}})
	}
	return s, nil
}

// containerEnv is what every process of the container gets.
func containerEnv(spec *runtime.Spec) []string {
	base := []string{"PATH=" + defaultPath}
	return mergeEnv(append(base, spec.Image.Env...), spec.Env)
}

// mergeEnv lays over onto base; the last value of a name wins.
func mergeEnv(base, over []string) []string {
	at := make(map[string]int, len(base)+len(over))
	merged := make([]string, 0, len(base)+len(over))
	for _, list := range [...][]string{base, over} {
		for _, kv := range list {
			key, _, ok := strings.Cut(kv, "=")
			if !ok || key == "" {
				continue
			}
			if i, seen := at[key]; seen {
				merged[i] = kv
				continue
			}
			at[key] = len(merged)
			merged = append(merged, kv)
		}
	}
	return merged
}

// ownMounts are the files that we provide: names, resolver, the first process.
func (b *Backend) ownMounts(spec *runtime.Spec) ([]specs.Mount, error) {
	box := b.boxDir(spec.ID)
	if err := os.MkdirAll(box, 0o700); err != nil {
		return nil, err
	}
	hosts, resolv := namesFiles(spec)
	var mounts []specs.Mount
	for _, file := range [...]struct {
		name string
		data []byte
	}{{"hosts", hosts}, {"resolv.conf", resolv}, {"hostname", []byte(spec.Hostname + "\n")}} {
		path := filepath.Join(box, file.name)
		if err := os.WriteFile(path, file.data, 0o644); err != nil {
			return nil, err
		}
		mounts = append(mounts, specs.Mount{Type: "bind", Source: path, Destination: "/etc/" + file.name,
			Options: []string{"bind", "rprivate", "nosuid", "nodev", "noexec"}})
	}
	return append(mounts, specs.Mount{Type: "bind", Source: b.opts.Exe, Destination: initPath,
		Options: []string{"bind", "rprivate", "ro", "nosuid", "nodev"}}), nil
}

// seccompSupported reports whether the kernel has system call filters.
func seccompSupported() bool {
	_, err := os.Stat("/proc/sys/kernel/seccomp/actions_avail")
	return err == nil
}
