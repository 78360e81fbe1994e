package containerd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/runtime"
)

// binDirs are searched after PATH: a user's PATH often lacks the sbin ones.
var binDirs = [...]string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// lookPath finds a program in PATH or in the system's directories.
func lookPath(name string) (string, bool) {
	if path, err := exec.LookPath(name); err == nil && filepath.IsAbs(path) {
		return path, true
	}
	for _, dir := range binDirs {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, true
		}
	}
	return "", false
}

// requirements fails with a *runtime.MissingError for the first thing that the
// private containerd needs and the host does not have.
func requirements() error {
	if os.Geteuid() != 0 {
		return &runtime.MissingError{What: "root", Detail: "permission denied: containers need root"}
	}
	for _, need := range [...]struct{ bin, pkg string }{
		{"containerd", "containerd"},
		{"containerd-shim-runc-v2", "containerd"},
		{"runc", "runc"},
	} {
		if _, ok := lookPath(need.bin); !ok {
			return &runtime.MissingError{What: need.bin, Package: need.pkg, Detail: "not installed"}
		}
	}
	return nil
}

// Check looks at what the backend needs from the host, for `git env doctor`. It
// starts nothing and changes nothing. socket is Options.Socket.
func Check(ctx context.Context, socket string) []runtime.Finding {
	var found []runtime.Finding
	if socket == "" {
		found = append(found, checkBinary(ctx, "containerd", "containerd"),
			checkBinary(ctx, "containerd-shim-runc-v2", "containerd"))
	} else {
		found = append(found, checkSocket(socket))
	}
	return append(found, checkBinary(ctx, "runc", "runc"), checkRoot(), checkOverlay(), checkCgroup())
}

func checkBinary(ctx context.Context, name, pkg string) runtime.Finding {
	path, ok := lookPath(name)
	if !ok {
		return runtime.Finding{Name: name, Detail: "not found in PATH", Hint: installHint(pkg)}
	}
	detail := path
	flag := "--version"
	if strings.HasPrefix(name, "containerd-shim") {
		flag = "-v"
	}
	if out, err := exec.CommandContext(ctx, path, flag).Output(); err == nil {
		if line, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n")); len(line) > 0 {
			detail += " (" + strings.TrimSpace(string(line)) + ")"
		}
	}
	return runtime.Finding{Name: name, OK: true, Detail: detail}
}

func installHint(pkg string) string {
	alpine := pkg
	if pkg == "containerd" {
		alpine = "containerd containerd-ctr"
	}
	return fmt.Sprintf("Debian/Ubuntu: apt install %s; Fedora: dnf install %s; Alpine: apk add %s; Arch: pacman -S %s",
		pkg, pkg, strings.Fields(alpine)[0], pkg)
}

func checkSocket(socket string) runtime.Finding {
	if !listening(socket) {
		return runtime.Finding{Name: "containerd", Detail: "nobody answers on " + socket,
			Hint: "start that containerd, or unset env.containerd to use a private one"}
	}
	return runtime.Finding{Name: "containerd", OK: true, Detail: socket}
}

func checkRoot() runtime.Finding {
	if os.Geteuid() != 0 {
		return runtime.Finding{Name: "root", Detail: fmt.Sprintf("running as uid %d", os.Geteuid()),
			Hint: "run git env as root (sudo -E git env …)"}
	}
	return runtime.Finding{Name: "root", OK: true, Detail: "running as root"}
}

func checkOverlay() runtime.Finding {
	const name = "overlayfs"
	list, err := os.ReadFile("/proc/filesystems")
	if err == nil && bytes.Contains(list, []byte("\toverlay\n")) {
		return runtime.Finding{Name: name, OK: true, Detail: "supported by the kernel"}
	}
	// A module that is not loaded yet is not in the list; mounting loads it.
	var uts unix.Utsname
	if err := unix.Uname(&uts); err == nil {
		release := unix.ByteSliceToString(uts.Release[:])
		if hits, _ := filepath.Glob("/lib/modules/" + release + "/kernel/fs/overlayfs/overlay.ko*"); len(hits) > 0 {
			return runtime.Finding{Name: name, OK: true, Detail: "kernel module available"}
		}
	}
	return runtime.Finding{Name: name, Detail: "not supported by the running kernel",
		Hint: "modprobe overlay, or use a kernel with CONFIG_OVERLAY_FS"}
}

func checkCgroup() runtime.Finding {
	const name = "cgroup"
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil {
		return runtime.Finding{Name: name, Detail: "/sys/fs/cgroup: " + err.Error(), Hint: "mount the cgroup file system"}
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		return runtime.Finding{Name: name, OK: true, Detail: "version 2"}
	}
	if _, err := os.Stat("/sys/fs/cgroup/freezer"); err != nil {
		return runtime.Finding{Name: name, Detail: "the freezer controller is not mounted",
			Hint: "mount the cgroup controllers, or boot with version 2 of them"}
	}
	return runtime.Finding{Name: name, OK: true, Detail: "version 1"}
}
