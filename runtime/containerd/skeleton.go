package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// skeletonDirs are made in every skeleton. What the host has under these names
// is not looked at.
var skeletonDirs = [...]struct {
	path string
	mode uint32
}{
	{"dev", 0o755}, {"etc", 0o755}, {"home", 0o755}, {"media", 0o755}, {"mnt", 0o755},
	{"proc", 0o555}, {"root", 0o700}, {"run", 0o755}, {"run/lock", 0o1777}, {"srv", 0o755},
	{"sys", 0o555}, {"tmp", 0o1777}, {"var", 0o755}, {"var/backups", 0o755},
	{"var/cache", 0o755}, {"var/cache/apt", 0o755}, {"var/cache/apt/archives", 0o755},
	{"var/cache/apt/archives/partial", 0o700}, {"var/cache/debconf", 0o755},
	{"var/lib", 0o755}, {"var/lib/misc", 0o755}, {"var/local", 0o2775}, {"var/log", 0o755},
	{"var/log/apt", 0o755}, {"var/mail", 0o2775}, {"var/opt", 0o755}, {"var/spool", 0o755},
	{"var/tmp", 0o1777}, {"workspace", 0o755},
}

// topLinks are the top-level symbolic links that are taken over from the host.
var topLinks = [...]string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// emptyFiles are made in every skeleton: the container's own ones are bound over
// the first three, the others are expected to be there.
var emptyFiles = [...]string{"etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/machine-id", "etc/fstab"}

// claimSkeleton returns the skeleton that fits the host as it is now.
func (h *hostStore) claimSkeleton(ctx context.Context, id string) (string, error) {
	etc, err := scanEtc("/etc")
	if err != nil {
		return "", fmt.Errorf("read /etc: %w", err)
	}
	trees := hostTrees()
	name := "skel-" + skeletonSignature(etc, trees)
	err = h.claim(ctx, "skel-", name, id, func(dir string) error {
		return buildSkeleton(filepath.Join(dir, "root"), etc, trees)
	})
	return name, err
}

// skeletonSignature changes when anything does that goes into a skeleton.
func skeletonSignature(etc []etcEntry, trees []string) string {
	h := sha256.New()
	fmt.Fprintln(h, "skeleton 2", trees)
	for _, link := range topLinks {
		target, _ := os.Readlink("/" + link)
		fmt.Fprintln(h, link, target)
	}
	for _, e := range etc {
		fmt.Fprintln(h, e.path, e.stat.Mode, e.stat.Uid, e.stat.Gid, e.stat.Size, e.stat.Mtim.Nano(), e.stat.Ctim.Nano())
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

func buildSkeleton(root string, etc []etcEntry, trees []string) error {
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	for _, d := range skeletonDirs {
		path := filepath.Join(root, d.path)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		if err := unix.Chmod(path, d.mode); err != nil {
			return err
		}
	}
	for _, link := range topLinks {
		if target, err := os.Readlink("/" + link); err == nil {
			if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
				return err
			}
		}
	}
	for _, tree := range trees { // where the overlays are mounted
		if err := os.MkdirAll(filepath.Join(root, tree), 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink("/run", filepath.Join(root, "var/run")); err != nil {
		return err
	}
	if err := os.Symlink("/run/lock", filepath.Join(root, "var/lock")); err != nil {
		return err
	}
	if err := copyEtc("/etc", filepath.Join(root, "etc"), etc); err != nil {
		return err
	}
	for _, file := range emptyFiles {
		if err := os.WriteFile(filepath.Join(root, file), nil, 0o644); err != nil {
			return err
		}
	}
	if err := os.Symlink("/proc/mounts", filepath.Join(root, "etc/mtab")); err != nil {
		return err
	}
	return lockAccounts(filepath.Join(root, "etc"))
}

// lockAccounts makes password files without passwords for the users and groups
// there are: tools that add users expect them.
func lockAccounts(etc string) error {
	for _, file := range [...]struct{ from, to, fields string }{
		{"passwd", "shadow", ":*:19000:0:99999:7:::"},
		{"group", "gshadow", ":*::"},
	} {
		data, err := os.ReadFile(filepath.Join(etc, file.from))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		var locked strings.Builder
		for line := range strings.Lines(string(data)) {
			if name, _, ok := strings.Cut(line, ":"); ok && name != "" && name[0] != '+' {
				locked.WriteString(name + file.fields + "\n")
			}
		}
		if err := os.WriteFile(filepath.Join(etc, file.to), []byte(locked.String()), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// etcEntry is one thing below /etc that an ordinary user could read.
type etcEntry struct {
	path string // relative to /etc
	stat unix.Stat_t
}

// scanEtc lists what goes into a copy of /etc, parents before children.
func scanEtc(root string) ([]etcEntry, error) {
	var entries []etcEntry
	var walk func(rel string) error
	walk = func(rel string) error {
		names, err := readNames(filepath.Join(root, rel))
		if err != nil {
			return err
		}
		sort.Strings(names)
		for _, name := range names {
			e := etcEntry{path: filepath.Join(rel, name)}
			if err := unix.Lstat(filepath.Join(root, e.path), &e.stat); err != nil || secretPath(e.path) {
				continue // vanished meanwhile, or not for an environment
			}
			switch e.stat.Mode & unix.S_IFMT {
			case unix.S_IFDIR:
				if e.stat.Mode&0o001 == 0 {
					continue
				}
				entries = append(entries, e)
				if err := walk(e.path); err != nil && !os.IsNotExist(err) {
					return err
				}
			case unix.S_IFREG:
				if e.stat.Mode&0o004 != 0 {
					entries = append(entries, e)
				}
			case unix.S_IFLNK:
				entries = append(entries, e)
			}
		}
		return nil
	}
	return entries, walk("")
}

// secretPaths are never copied, whatever their mode says; a trailing slash means
// the whole directory.
var secretPaths = [...]string{
	"shadow", "gshadow", "sudoers", "sudoers.d/", "machine-id", "ssl/private/", "pki/tls/private/",
	"hostname", "hosts", "resolv.conf", "mtab", "ppp/chap-secrets", "ppp/pap-secrets",
	"apt/auth.conf", "apt/auth.conf.d/", "krb5.keytab", "wpa_supplicant/", "wireguard/",
	"NetworkManager/system-connections/", "docker/key.json", "kubernetes/", "rancher/",
	"letsencrypt/", "cloudflared/", "tailscale/", "boto.cfg", "fstab", "crypttab",
}

// secretSuffixes and secretPrefixes are of base names.
var (
	secretSuffixes = [...]string{"-", ".key", ".p12", ".pfx", ".kdbx", ".keytab", ".netrc", ".htpasswd", "credentials", ".kubeconfig", ".token", "_rsa", "_ed25519", "_ecdsa"}
	secretPrefixes = [...]string{".netrc", "ssh_host_", "credentials", ".git-credentials", ".pgpass", "shadow", "gshadow"}
)

func secretPath(rel string) bool {
	for _, secret := range secretPaths {
		if rel == strings.TrimSuffix(secret, "/") {
			return true
		}
	}
	base := filepath.Base(rel)
	for _, suffix := range secretSuffixes {
		if strings.HasSuffix(base, suffix) {
			return true
		}
	}
	for _, prefix := range secretPrefixes {
		if strings.HasPrefix(base, prefix) {
			return true
		}
	}
	return false
}

// copyEtc copies the listed entries. A file that holds a private key is left out.
func copyEtc(src, dst string, entries []etcEntry) error {
	for i := range entries {
		e := &entries[i]
		from, to := filepath.Join(src, e.path), filepath.Join(dst, e.path)
		var err error
		switch e.stat.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			err = os.Mkdir(to, 0o755)
		case unix.S_IFLNK:
			var target string
			if target, err = os.Readlink(from); err == nil {
				err = os.Symlink(target, to)
			}
		default:
			var data []byte
			if data, err = readNoFollow(from); err != nil || holdsPrivateKey(data) {
				if err == nil || os.IsNotExist(err) {
					continue
				}
				return err
			}
			err = os.WriteFile(to, data, 0o600)
		}
		if os.IsNotExist(err) {
			continue // changed under us
		}
		if err != nil {
			return err
		}
	}
	// Directories last to first: their times are theirs once their content is there.
	for i := len(entries) - 1; i >= 0; i-- {
		to := filepath.Join(dst, entries[i].path)
		if err := applyMeta(to, &entries[i].stat); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

func holdsPrivateKey(data []byte) bool {
	text := string(data)
	i := strings.Index(text, "-----BEGIN ")
	return i >= 0 && strings.Contains(text[i:], "PRIVATE KEY")
}

// readNoFollow reads a regular file, refusing to follow a final link.
func readNoFollow(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o004 == 0 {
		return nil, fs.ErrNotExist
	}
	const limit = 16 << 20
	if info.Size() > limit {
		return nil, fs.ErrNotExist
	}
	return os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

func readNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}
