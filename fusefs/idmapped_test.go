package fusefs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// userns returns a user namespace whose ids 0 to 65535 are first and up outside.
func userns(t *testing.T, first int) *os.File {
	t.Helper()
	cmd := exec.Command("cat") // until its input ends
	in, err := cmd.StdinPipe()
	must(t, err)
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	must(t, cmd.Start())
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	must(t, err)
	in.Close()
	must(t, cmd.Wait())
	t.Cleanup(func() { ns.Close() })
	return ns
}

// idmapped mounts dir at to with the ids of ns.
func idmapped(t *testing.T, dir, to string, ns *os.File) {
	t.Helper()
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	must(t, err)
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	must(t, unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr))
	must(t, unix.MoveMount(tree, "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH))
	t.Cleanup(func() {
		if err := unix.Unmount(to, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// Through an ID-mapped mount, as the root of a container with ids of its own
// has it, what root makes is root's in the workspace.
func TestIDMappedMount(t *testing.T) {
	const first = 100000
	r := newKinds(t, map[string]string{"f": "content", "mine": "x", "d/f": "y"})
	for _, kind := range kinds {
		must(t, os.Chown(r.path(kind+"/mine"), 1000, 1000))
		must(t, os.Chmod(r.path(kind+"/mine"), 0o600))
	}
	to := t.TempDir()
	must(t, os.Chmod(filepath.Dir(to), 0o755))
	must(t, os.Chmod(to, 0o755))
	must(t, os.Chmod(filepath.Dir(filepath.Dir(r.spec.Dir)), 0o755))
	idmapped(t, r.spec.Dir, to, userns(t, first))
	root := who{name: "mapped root", uid: first, gid: first}
	user := who{name: "mapped user", uid: first + 1000, gid: first + 1000}
	owner := func(path string) string { st := lstat(t, path); return fmt.Sprint(st.Uid, ":", st.Gid) }
	for _, kind := range kinds {
		in := func(name string) string { return filepath.Join(to, kind, name) }
		below := func(name string) string { return r.path(kind + "/" + name) }
		do := func(w who, what string, want error, fn func() error) {
			t.Helper()
			if err := as(w, fn); err != want {
				t.Errorf("%s: %s by %s: %v, want %v", kind, what, w.name, err, want)
			}
		}
		do(root, "create", nil, func() error { return openClose(in("new"), unix.O_CREAT|unix.O_WRONLY, []byte("made")) })
		do(root, "mkdir", nil, func() error { return unix.Mkdir(in("dir"), 0o755) })
		do(root, "mkfifo", nil, func() error { return unix.Mkfifo(in("fifo"), 0o644) })
		do(root, "symlink", nil, func() error { return unix.Symlink("x", in("link")) })
		do(root, "open of a file without a name", nil, func() error {
			fd, err := unix.Open(in("d"), unix.O_TMPFILE|unix.O_RDWR, 0o644)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			var st unix.Stat_t
			if err := unix.Fstat(fd, &st); err != nil || st.Uid != first {
				return fmt.Errorf("owner %d, %v", st.Uid, err)
			}
			return nil
		})
		do(root, "write", nil, func() error { return openClose(in("f"), unix.O_WRONLY, []byte("changed")) })
		do(root, "chmod", nil, func() error { return unix.Chmod(in("f"), 0o640) })
		do(root, "rename", nil, func() error { return unix.Rename(in("f"), in("dir/f")) })
		do(root, "remove", nil, func() error { return unix.Unlink(in("d/f")) })
		for _, name := range []string{"new", "dir", "fifo", "link", "dir/f"} {
			if inside, outside := owner(in(name)), owner(below(name)); inside != fmt.Sprint(first, ":", first) || outside != "0:0" {
				t.Errorf("%s/%s: owner %s through the mapped mount, %s below", kind, name, inside, outside)
			}
		}
		wantFile(t, below("new"), "made")
		wantFile(t, below("dir/f"), "changed")
		// Others are who they are in the map, and who is not in it is nobody.
		do(user, "write of an own file", nil, func() error { return openClose(in("mine"), unix.O_WRONLY, []byte("y")) })
		do(user, "write of root's file", unix.EACCES, func() error { return openClose(in("new"), unix.O_WRONLY, nil) })
		do(who{name: "another id", uid: 1000, gid: 1000}, "open of the file of the same id below", unix.EACCES, func() error {
			return openClose(in("mine"), unix.O_RDONLY, nil)
		})
		if err := openClose(in("unmapped"), unix.O_CREAT|unix.O_WRONLY, nil); err != unix.EOVERFLOW {
			t.Errorf("%s: created by who is not in the map: %v", kind, err)
		}
	}
	before := snapshot(t, r.spec.Dir)
	r.freeze()
	same(t, "frozen", snapshot(t, r.spec.Dir), before, exact)
}
