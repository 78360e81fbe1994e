package fusefs

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// The bits and the capabilities that lend privilege go with every change of
// the content, and stay where they do in a plain directory.
func TestPrivilegeIsTaken(t *testing.T) {
	// Version 2: permitted CAP_NET_RAW, effective.
	capability, err := hex.DecodeString("0100000200200000000000000000000000000000")
	must(t, err)
	changes := []struct {
		name string
		do   func(path string) error
		// anybody is where the kernel does not say who it is: nobody has privilege.
		anybody bool
	}{
		{"write", func(path string) error { return openClose(path, unix.O_WRONLY, []byte("y")) }, false},
		{"append", func(path string) error { return openClose(path, unix.O_WRONLY|unix.O_APPEND, []byte("y")) }, false},
		{"write of nothing", func(path string) error { return openClose(path, unix.O_WRONLY, nil) }, false},
		{"truncate", func(path string) error { return unix.Truncate(path, 2) }, false},
		{"truncate to the size", func(path string) error { return unix.Truncate(path, 7) }, false},
		{"ftruncate", func(path string) error { return withFile(path, func(fd int) error { return unix.Ftruncate(fd, 100) }) }, false},
		{"open with O_TRUNC", func(path string) error { return openClose(path, unix.O_WRONLY|unix.O_TRUNC, nil) }, false},
		{"fallocate", func(path string) error {
			return withFile(path, func(fd int) error { return unix.Fallocate(fd, 0, 0, 10000) })
		}, true},
		{"punch", func(path string) error {
			return withFile(path, func(fd int) error {
				return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096)
			})
		}, true},
		{"chown to the same", func(path string) error { return unix.Chown(path, 1000, 1000) }, false},
		{"chown of the group", func(path string) error { return unix.Chown(path, -1, 77) }, false},
		{"chmod", func(path string) error { return unix.Chmod(path, 0o6755) }, false},
		{"read", func(path string) error { return openClose(path, unix.O_RDONLY, nil) }, false},
		{"rename", func(path string) error { return unix.Rename(path, path) }, false},
	}
	files := map[string]string{}
	callers := append([]who{{name: "own group", uid: 1000, gid: 1000, groups: []int{77}}}, callers...)
	for i := range changes {
		for j := range callers {
			for k := range 2 {
				files[fmt.Sprintf("%d-%d-%d", i, j, k)] = "content"
			}
		}
	}
	plain := map[string]string{}
	run := func(t *testing.T, dir string, profile Profile) {
		for path := dir; path != os.TempDir() && path != "/"; path = filepath.Dir(path) {
			must(t, unix.Chmod(path, 0o755)) // so that others get there
		}
		for i, change := range changes {
			if profile == ProfileIO && change.name == "write of nothing" {
				continue // what may be written without the server counts as written
			}
			for j, caller := range callers {
				for k, mode := range []uint32{0o6777, 0o4767} {
					path := filepath.Join(dir, fmt.Sprintf("%d-%d-%d", i, j, k))
					must(t, unix.Chown(path, 1000, 1000))
					must(t, unix.Chmod(path, mode))
					must(t, unix.Setxattr(path, capXattr, capability, 0))
					err := as(caller, func() error { return change.do(path) })
					size, capErr := unix.Getxattr(path, capXattr, make([]byte, 100))
					key := fmt.Sprintf("%s by %s, %o", change.name, caller.name, mode)
					got := fmt.Sprintf("%v: mode %o, capability of %d bytes, %v", err, lstat(t, path).Mode, size, capErr)
					if t.Name() == "TestPrivilegeIsTaken/plain" {
						plain[key] = got
						continue
					}
					if change.anybody && caller.name == "root" {
						key = fmt.Sprintf("%s by other, %o", change.name, mode)
					}
					if want := plain[key]; got != want {
						t.Errorf("%s: %s, in a plain directory %s", key, got, want)
					}
				}
			}
		}
	}
	everywhere(t, files, func(t *testing.T, dir string) { run(t, dir, "") })
	r := newKinds(t, files)
	r.unmount()
	r.spec.Profile = ProfileIO
	r.mount()
	for _, kind := range kinds {
		t.Run("io/"+kind, func(t *testing.T) { run(t, r.path(kind), ProfileIO) })
	}
	if want := "<nil>: mode 100777, capability of -1 bytes, no data available"; plain["write by other, 6777"] != want {
		t.Errorf("%q, want %q", plain["write by other, 6777"], want)
	}
}
