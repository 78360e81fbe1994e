package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/runtime"
)

// Identity implements runtime.Backend. The host image's changes when what is copied
// of /etc does, when a package is installed or removed, and when anything appears
// in or vanishes from the top of a tree that is shown.
func (b *Backend) Identity(img runtime.Image) (string, error) {
	if !img.Host {
		return img.Digest, nil
	}
	etc, err := scanEtc("/etc")
	if err != nil {
		return "", fmt.Errorf("read /etc: %w", err)
	}
	return "host " + skeletonSignature(etc, hostTrees()) + " " + maskSignature(hostOverlays()), nil
}

// CreateRootFS implements runtime.Backend.
func (b *Backend) CreateRootFS(ctx context.Context, id string, img runtime.Image) error {
	if err := checkID(id); err != nil {
		return err
	}
	defer b.roots.lock(id)()
	if err := b.createRootFS(ctx, id, img); err != nil {
		return fmt.Errorf("create root filesystem: %w", err)
	}
	return nil
}

func (b *Backend) createRootFS(ctx context.Context, id string, img runtime.Image) error {
	if _, err := os.Lstat(b.roots.path(id)); err == nil {
		return &runtime.Error{Kind: runtime.ErrExists, Message: "root filesystem " + id + " exists"}
	}
	if err := os.MkdirAll(b.roots.dir, 0o700); err != nil {
		return err
	}
	if err := layersFit(b.roots.dir); err != nil {
		return err
	}
	st := &rootState{V: rootStateVersion, Image: img.Ref, Digest: img.Digest, Host: img.Host}
	if img.Host {
		var err error
		if st.Skeleton, err = b.roots.host.claimSkeleton(ctx, id); err != nil {
			return err
		}
		st.Overlays = hostOverlays()
	} else {
		if err := b.pinImage(ctx, id, img); err != nil {
			return err
		}
		st.Overlays = []overlay{{Name: "root", Target: "/"}}
	}
	base, err := b.baseOf(ctx, id, st)
	if err == nil {
		err = b.roots.create(id, st, base)
	}
	if err != nil {
		b.unpin(id, st)
	}
	return err
}

// layersFit refuses a directory that overlayfs cannot write its layers to.
func layersFit(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	kind := ""
	switch st.Type {
	case unix.OVERLAYFS_SUPER_MAGIC:
		kind = "overlayfs"
	case unix.NFS_SUPER_MAGIC:
		kind = "NFS"
	case unix.FUSE_SUPER_MAGIC:
		kind = "FUSE"
	case unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC:
		kind = "SMB"
	default:
		return nil
	}
	return &runtime.MissingError{What: "overlayfs",
		Detail: fmt.Sprintf("%s is on %s, which cannot hold the writable layers of containers", dir, kind)}
}

// unpin gives back what createRootFS took beside the layers.
func (b *Backend) unpin(id string, st *rootState) {
	if st.Host {
		b.roots.host.unref(id, st.Skeleton, st.Mask)
		return
	}
	if err := b.unpinImage(context.Background(), id); err != nil {
		b.warn("root filesystem %s: %v", id, err)
	}
}

// pinImage keeps an image's unpacked layers, however long the root filesystem
// lives: a read-only snapshot is a root of containerd's garbage collection.
func (b *Backend) pinImage(ctx context.Context, id string, img runtime.Image) error {
	return b.call(ctx, func(ctx context.Context, c *client.Client) error {
		chain, err := chainOf(ctx, c, img)
		if err != nil {
			return err
		}
		return pinChain(ctx, c, id, chain)
	})
}

// pinSame keeps for dst what src keeps.
func (b *Backend) pinSame(ctx context.Context, src, dst string) error {
	return b.call(ctx, func(ctx context.Context, c *client.Client) error {
		info, err := c.SnapshotService(snapshotter).Stat(ctx, viewKey(src))
		if err != nil {
			return err
		}
		return pinChain(ctx, c, dst, info.Parent)
	})
}

func pinChain(ctx context.Context, c *client.Client, id, chain string) error {
	_, err := c.SnapshotService(snapshotter).View(ctx, viewKey(id), chain, snapshots.WithLabels(map[string]string{
		"containerd.io/gc.root": "git-env",
	}))
	if errdefs.IsAlreadyExists(native(err)) {
		return nil // left by a crash, or by the first try of this call
	}
	return err
}

func (b *Backend) unpinImage(ctx context.Context, id string) error {
	return b.call(ctx, func(ctx context.Context, c *client.Client) error {
		err := c.SnapshotService(snapshotter).Remove(ctx, viewKey(id))
		if errdefs.IsNotFound(native(err)) {
			return nil
		}
		return err
	})
}

func viewKey(id string) string { return "rootfs-" + id }

// imageLowers are the directories of the unpacked layers, top first.
func (b *Backend) imageLowers(ctx context.Context, id string) ([]string, error) {
	var mounts []mount.Mount
	err := b.call(ctx, func(ctx context.Context, c *client.Client) (err error) {
		mounts, err = c.SnapshotService(snapshotter).Mounts(ctx, viewKey(id))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("image layers: %w", err)
	}
	if len(mounts) != 1 {
		return nil, fmt.Errorf("image layers: unexpected mounts %v", mounts)
	}
	if m := mounts[0]; m.Type == "bind" {
		return []string{m.Source}, nil // an image of one layer
	}
	for _, option := range mounts[0].Options {
		if dirs, ok := strings.CutPrefix(option, "lowerdir="); ok {
			return strings.Split(dirs, ":"), nil
		}
	}
	return nil, fmt.Errorf("image layers: unexpected mount %v", mounts[0])
}

// baseOf gives, for each overlay, the directory just below the writable layer.
func (b *Backend) baseOf(ctx context.Context, id string, st *rootState) (func(overlay) string, error) {
	if n := len(st.Sealed); n > 0 {
		return func(o overlay) string { return b.roots.sealedPath(st.Sealed[n-1], o.Name) }, nil
	}
	if st.Host {
		return func(o overlay) string {
			if o.Target == "/" {
				return b.roots.host.skeletonRoot(st.Skeleton)
			}
			return o.Target
		}, nil
	}
	lowers, err := b.imageLowers(ctx, id)
	if err != nil {
		return nil, err
	}
	return func(overlay) string { return lowers[0] }, nil
}

// ForkRootFS implements runtime.Backend. The image is the source's, whatever img says.
func (b *Backend) ForkRootFS(ctx context.Context, src, dst string, _ runtime.Image) error {
	if err := checkID(dst); err != nil {
		return err
	}
	if src == dst {
		return fmt.Errorf("fork root filesystem: %s onto itself", src)
	}
	// In the order of the names, so that two forks cannot wait for each other.
	first, second := min(src, dst), max(src, dst)
	defer b.roots.lock(first)()
	defer b.roots.lock(second)()
	if err := b.forkRootFS(ctx, src, dst); err != nil {
		return fmt.Errorf("fork root filesystem: %w", err)
	}
	return nil
}

func (b *Backend) forkRootFS(ctx context.Context, src, dst string) error {
	if _, err := os.Lstat(b.roots.path(dst)); err == nil {
		return &runtime.Error{Kind: runtime.ErrExists, Message: "root filesystem " + dst + " exists"}
	}
	st, err := b.roots.load(src)
	if err != nil {
		return err
	}
	user, err := b.userOf(ctx, src)
	if err != nil {
		return err
	}
	base, err := b.baseOf(ctx, src, st)
	if err != nil {
		return err
	}
	if user == nil {
		clean, err := b.roots.clean(src, st, base)
		if err != nil {
			return err
		}
		if !clean {
			if err := b.roots.seal(src, st); err != nil {
				return err
			}
			if base, err = b.baseOf(ctx, src, st); err != nil {
				return err
			}
		}
	}
	return b.branch(ctx, src, dst, st, base, user)
}

// branch makes dst from src's sealed layers and, when a container is running on
// src, from a copy of what it has written since.
func (b *Backend) branch(ctx context.Context, src, dst string, st *rootState, base func(overlay) string, user *container) error {
	copied := *st
	copied.Mask = ""
	copied.Sealed = append([]string(nil), st.Sealed...)
	if st.Host {
		if err := b.roots.host.ref(dst, st.Skeleton); err != nil {
			return err
		}
	} else if err := b.pinSame(ctx, src, dst); err != nil {
		return err
	}
	tmp := b.roots.path(newDir, dst)
	err := os.RemoveAll(tmp)
	if err == nil {
		err = makeTops(tmp, st.Overlays, base)
	}
	if err == nil && user != nil {
		err = user.frozen(ctx, func() error { return copyTops(ctx, b.roots.path(src, "top"), tmp, st.Overlays) })
	}
	if err != nil {
		_ = os.RemoveAll(tmp)
		b.unpin(dst, &copied)
		return err
	}
	if err := b.roots.publish(dst, &copied, tmp); err != nil {
		b.unpin(dst, &copied)
		return err
	}
	return nil
}

// RemoveRootFS implements runtime.Backend.
func (b *Backend) RemoveRootFS(ctx context.Context, id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	defer b.roots.lock(id)()
	if _, err := os.Lstat(b.roots.path(id)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	user, err := b.userOf(ctx, id)
	if err != nil {
		return fmt.Errorf("remove root filesystem: %w", err)
	}
	if user != nil {
		return fmt.Errorf("remove root filesystem %s: container %s is running on it", id, user.id)
	}
	st, err := b.roots.remove(id)
	if err != nil {
		return fmt.Errorf("remove root filesystem: %w", err)
	}
	if !st.Host {
		if err := b.unpinImage(ctx, id); err != nil {
			return fmt.Errorf("remove root filesystem: %w", err)
		}
	}
	return nil
}

// userOf returns the container that is running on a root filesystem, nil if
// none. A dead one is cleaned away: its mounts would hold the layers.
func (b *Backend) userOf(ctx context.Context, rootID string) (*container, error) {
	ids, err := b.List(ctx, labelRootFS, rootID)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		c, err := b.attach(ctx, id)
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, runtime.ErrNotFound) {
			return nil, err
		}
		if err := b.remove(ctx, id); err != nil {
			return nil, err
		}
	}
	return nil, nil
}
