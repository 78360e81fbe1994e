package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/containerd/api/types"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// maxOptions is what we let a mount's options grow to before the directories are
// named by short links: the kernel takes a page, its end included.
const maxOptions = 3400

// mountPlan is how a root filesystem is put together.
type mountPlan struct {
	// root is mounted by the shim, before the container exists.
	root *types.Mount
	// inner are mounted by the runtime, inside.
	inner []specs.Mount
}

// plan prepares the mounts of a root filesystem. The caller holds its lock.
func (b *Backend) plan(ctx context.Context, id string) (*mountPlan, error) {
	st, err := b.roots.load(id)
	if err != nil {
		return nil, err
	}
	if len(st.Sealed) > maxSealed {
		if err := b.roots.squash(id, st); err != nil {
			return nil, err
		}
	}
	var lowers []string // of the image, for the root overlay
	if st.Host {
		if err := b.refreshMask(ctx, id, st); err != nil {
			return nil, err
		}
		lowers = []string{b.roots.host.skeletonRoot(st.Skeleton)}
	} else if lowers, err = b.imageLowers(ctx, id); err != nil {
		return nil, err
	}
	p := &mountPlan{}
	for _, o := range st.Overlays {
		dirs := b.roots.lowerDirs(st, o)
		if o.Target == "/" {
			dirs = append(dirs, lowers...)
		} else {
			dirs = append(dirs, b.roots.host.maskDir(st.Mask, o.Name))
			if _, err := os.Stat(o.Target); err == nil { // the host may have lost it
				dirs = append(dirs, o.Target)
			}
		}
		options, err := b.overlayOptions(id, o, dirs)
		if err != nil {
			return nil, err
		}
		if o.Target == "/" {
			p.root = &types.Mount{Type: "overlay", Source: "overlay", Options: options}
			continue
		}
		p.inner = append(p.inner, specs.Mount{Type: "overlay", Source: "overlay", Destination: o.Target,
			Options: append(options, "nodev")})
	}
	return p, nil
}

// refreshMask makes sure that the mask is today's. No container is running on the
// root filesystem, so the old one is not in use by it.
func (b *Backend) refreshMask(ctx context.Context, id string, st *rootState) error {
	mask, err := b.roots.host.claimMask(ctx, id, st.Overlays)
	if err != nil || mask == st.Mask {
		return err
	}
	old := st.Mask
	st.Mask = mask
	if err := b.roots.save(id, st); err != nil {
		return err
	}
	b.roots.host.unref(id, old)
	return nil
}

// overlayOptions are the options of one overlay; lowers go from top to bottom.
// Directories are named in full where that is possible, else by short links: the
// kernel takes a page of options, and cannot be told of a comma or a colon.
func (b *Backend) overlayOptions(id string, o overlay, lowers []string) ([]string, error) {
	dirs := append([]string{b.roots.path(id, "top", o.Name), b.roots.path(id, "work", o.Name)}, lowers...)
	if all := strings.Join(dirs, ""); len(all)+len(dirs) > maxOptions || strings.ContainsAny(all, ",:\\\n") {
		if strings.ContainsAny(b.opts.RunDir, ",:\\\n") {
			return nil, fmt.Errorf("overlayfs cannot use a directory with such a name: %q", b.opts.RunDir)
		}
		var err error
		if dirs, err = b.shortLinks(id, o, dirs); err != nil {
			return nil, err
		}
	}
	return []string{
		"index=off", "metacopy=off", "redirect_dir=off",
		"upperdir=" + dirs[0], "workdir=" + dirs[1], "lowerdir=" + strings.Join(dirs[2:], ":"),
	}, nil
}

// linkDir has the short links of a root filesystem.
func (b *Backend) linkDir(id string) string {
	sum := sha256.Sum256([]byte(b.roots.path(id)))
	return filepath.Join(b.opts.RunDir, "l", strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5])))
}

// shortLinks names directories by short links: to 0, 1, 2, … in a directory of
// their own, which containerd can leave out by mounting from there.
func (b *Backend) shortLinks(id string, o overlay, dirs []string) ([]string, error) {
	base := filepath.Join(b.linkDir(id), o.Name)
	if err := os.RemoveAll(base); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, err
	}
	links := make([]string, len(dirs))
	for i, dir := range dirs {
		links[i] = filepath.Join(base, strconv.Itoa(i))
		if err := os.Symlink(dir, links[i]); err != nil {
			return nil, err
		}
	}
	return links, nil
}
