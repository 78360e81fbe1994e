package containerd

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/runtime"
)

func TestHostImage(t *testing.T) {
	p := newPlace(t)
	marker, err := os.MkdirTemp("/var/tmp", testPrefix()+"-marker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(marker) })
	b := p.open(t)
	c := hostContainer(t, b, "host")
	// What is not to be seen. Sockets, homes, other people's work.
	if got := sh(t, c, "ls -A /home /root /srv /mnt /media /tmp /workspace /var/tmp /var/log/apt; ls /run"); strings.ContainsAny(strings.NewReplacer(":", "", "/", "").Replace(strings.Join(onlyEntries(got), "")), "abcdefghijkmnpqstuvwxyz") {
		t.Errorf("visible: %q", got)
	}
	top := strings.Fields(sh(t, c, "ls -A /"))
	known := strings.Fields("bin boot dev etc home lib lib32 lib64 libx32 media mnt nix gnu opt proc root run sbin srv sys tmp usr var workspace")
	for _, name := range top {
		if !slices.Contains(known, name) {
			t.Errorf("/%s is visible", name)
		}
	}
	for _, tree := range hostTrees() {
		hidden, err := scanHidden(tree)
		if err != nil {
			t.Fatal(err)
		}
		for _, rel := range hidden {
			path := filepath.Join(tree, rel)
			if r := try(t, c, runtime.ExecSpec{Args: []string{"test", "-e", path}}); r.exit.Code == 0 {
				t.Errorf("%s is visible", path)
			}
		}
	}
	// Every file of its /etc is one that anybody may read, or one of ours.
	for _, rel := range strings.Fields(sh(t, c, "cd /etc && find . -type f")) {
		var st unix.Stat_t
		rel = strings.TrimPrefix(rel, "./")
		if slices.Contains([]string{"shadow", "gshadow", "machine-id", "fstab", "hostname", "hosts", "resolv.conf"}, rel) {
			continue
		}
		if err := unix.Lstat("/etc/"+rel, &st); err != nil || st.Mode&0o004 == 0 {
			t.Errorf("/etc/%s: %v, mode %o", rel, err, st.Mode)
		}
	}
	if got := sh(t, c, `grep -c '[$]' /etc/shadow || true; find / -xdev -name 'ssh_host_*' 2>/dev/null; grep -rl 'PRIVATE KEY---' /etc 2>/dev/null || true`); got != "0" {
		t.Errorf("%q", got)
	}
	hostWorks(t, c)
	hostIsIntact(t, c)
	hostIsHardened(t, c)
}

// onlyEntries drops the "dir:" lines of ls.
func onlyEntries(listing string) []string {
	var entries []string
	for line := range strings.Lines(listing) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasSuffix(line, ":") && line != "lock" {
			entries = append(entries, line)
		}
	}
	return entries
}

// hostWorks checks that the tools of the host are there and usable.
func hostWorks(t *testing.T, c runtime.Container) {
	for line, want := range map[string]string{
		"id -un; getent passwd root | cut -d: -f1,6":                     "root\nroot:/root",
		"echo $HOME; cd && pwd":                                          "/root\n/root",
		"hostname; getent hosts box | tr -s ' '":                         "box\n127.0.1.1 box",
		"stat -c '%a %u' /tmp /root":                                     "1777 0\n700 0",
		"readlink /bin; cat /proc/1/comm":                                "usr/bin\ninit",
		"echo x >/usr/share/x && cat /usr/share/x":                       "x",
		"ls /dev/shm; df /dev/shm | tail -1 | tr -s ' ' | cut -d' ' -f2": "65536",
	} {
		if strings.HasPrefix(line, "readlink") {
			if link, err := os.Readlink("/bin"); err != nil || link != "usr/bin" {
				continue
			}
			want = "usr/bin\n" + filepath.Base("init")
		}
		if got := sh(t, c, line); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	if certs := "/etc/ssl/certs/ca-certificates.crt"; exists(certs) {
		sh(t, c, "grep -q 'BEGIN CERTIFICATE' "+certs)
	}
	if exists("/usr/bin/dpkg") {
		sh(t, c, "dpkg -l bash >/dev/null && dpkg --configure -a && useradd -m someone && su someone -c 'test $(id -un) = someone && touch ~/x'")
	}
}

// hostIsIntact changes and deletes things and looks at the host.
func hostIsIntact(t *testing.T, c runtime.Container) {
	sh(t, c, "rm /usr/bin/env && rm -rf /usr/share/doc && rm -rf /opt/* && echo broken >/etc/passwd && chmod 777 /usr")
	info, err := os.Stat("/usr")
	if err != nil || info.Mode().Perm() != 0o755 || !exists("/usr/bin/env") {
		t.Errorf("the host has changed: %v %v", info.Mode(), err)
	}
	if data, err := os.ReadFile("/etc/passwd"); err != nil || strings.Contains(string(data), "broken") {
		t.Errorf("the host has changed: %v", err)
	}
	if r := try(t, c, runtime.ExecSpec{Args: []string{"/usr/bin/env"}}); r.err == nil {
		t.Error("the deleted file is still there")
	}
}

func hostIsHardened(t *testing.T, c runtime.Container) {
	status := sh(t, c, "grep -E '^(NoNewPrivs|Seccomp|CapBnd|CapEff):' /proc/self/status | tr -d '\\t' | tr '\\n' ' '")
	if status != "CapEff:00000000a00405fb CapBnd:00000000a00405fb NoNewPrivs:1 Seccomp:2" {
		t.Errorf("%q", status)
	}
	if limits := sh(t, c, "grep '^Max core' /proc/self/limits | tr -s ' '"); limits != "Max core file size 1 1 bytes" {
		t.Errorf("%q", limits)
	}
	for _, line := range []string{
		"mknod /tmp/n c 1 3", "ulimit -Hc unlimited", "mount -t tmpfs none /mnt", "mount --bind / /mnt", "echo 1 >/proc/sys/kernel/panic", "echo x >/proc/1/oom_score_adj",
		"unshare -U true", "dd if=/dev/vda of=/dev/null count=1", "mknod /tmp/d b 254 0 && head -c1 /tmp/d",
		"mkdir /sys/fs/cgroup/freezer/x || mkdir /sys/fs/cgroup/x", "echo x >/dev/.git-env/init", "head -c1 /proc/kcore | grep -q .",
		"ls /proc/1/root/../../home/../etc/ssl/private", "dmesg", "ls /run/containerd /var/run/docker.sock",
	} {
		if r := try(t, c, runtime.ExecSpec{Args: []string{"/bin/sh", "-c", line}}); r.err == nil && r.exit.Code == 0 && !strings.HasPrefix(line, "echo x >/proc/1/oom") {
			t.Errorf("%s works: %+v", line, r)
		}
	}
}

func TestMask(t *testing.T) {
	need(t)
	tree, dst := t.TempDir(), filepath.Join(t.TempDir(), "mask")
	for _, dir := range []string{"open/deep", "closed/deep", "execonly", "listonly"} {
		if err := os.MkdirAll(filepath.Join(tree, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{"open/deep/secret": 0o640, "open/deep/public": 0o644, "open/exec": 0o711,
		"closed/deep/x": 0o644, "execonly/known": 0o644, "execonly/private": 0o600, "listonly/x": 0o644} {
		writeFile(t, filepath.Join(tree, name), "x", 0o600)
		if err := os.Chmod(filepath.Join(tree, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{"closed": 0o750, "execonly": 0o711, "listonly": 0o754, "open/deep": 0o755 | os.ModeSetgid} {
		if err := os.Chmod(filepath.Join(tree, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(tree, "fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/shadow", filepath.Join(tree, "link")); err != nil {
		t.Fatal(err)
	}
	hidden, err := scanHidden(tree)
	slices.Sort(hidden)
	if want := []string{"closed", "execonly/private", "fifo", "listonly", "open/deep/secret", "open/exec"}; err != nil || !slices.Equal(hidden, want) {
		t.Errorf("%v %v", hidden, err)
	}
	if err := buildMask(tree, dst); err != nil {
		t.Fatal(err)
	}
	for _, rel := range hidden {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dst, rel), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
			t.Errorf("%s: no whiteout: %v", rel, err)
		}
	}
	for _, rel := range []string{"", "open", "open/deep", "execonly"} {
		if same, err := sameDirMeta(filepath.Join(tree, rel), filepath.Join(dst, rel)); err != nil || !same {
			t.Errorf("%q does not look the same: %v", rel, err)
		}
	}
}

func TestSecretPaths(t *testing.T) {
	for path, want := range map[string]bool{
		"shadow": true, "shadow-": true, "passwd": false, "passwd-": true, "group": false, "ssh/ssh_host_rsa_key": true,
		"ssh/ssh_host_rsa_key.pub": true, "ssh/ssh_config": false, "ssl/private": true, "ssl/certs/ca-certificates.crt": false,
		"ssl/openssl.cnf": false, "apt/auth.conf": true, "apt/auth.conf.d": true, "apt/sources.list": false, ".netrc": true,
		"pam.d/common-password": false, "machine-id": true, "alternatives/cc": false, "x/server.key": true, "localtime": false,
	} {
		if got := secretPath(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
	if !holdsPrivateKey([]byte("a\n-----BEGIN EC PRIVATE KEY-----\n")) || holdsPrivateKey([]byte("-----BEGIN CERTIFICATE-----")) {
		t.Error("private keys are not recognised")
	}
}

func TestHostEnv(t *testing.T) {
	env := hostEnv("/home/me/bin:/usr/local/special/bin:relative:/opt/tool/bin:/opt/../home/x:/root/go/bin:/usr/bin")
	want := "PATH=/usr/local/special/bin:"
	if exists("/opt") {
		want += "/opt/tool/bin:"
	}
	if want += "/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/bin"; !strings.HasPrefix(env[0], want) {
		t.Errorf("%q", env[0])
	}
}
