package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/git-env/git-env/runtime"
)

// hostRef is the reference of the host image.
const hostRef = "host"

// Resolve implements runtime.Backend.
func (b *Backend) Resolve(ctx context.Context, ref string, progress func(runtime.Progress)) (runtime.Image, error) {
	if ref == hostRef {
		b.roots.host.warmMask()
		return runtime.Image{Ref: hostRef, Host: true, Env: hostEnv(b.opts.Path)}, nil
	}
	name, err := normalise(ref)
	if err != nil {
		return runtime.Image{}, err
	}
	img, err := b.local(ctx, name)
	if err == nil {
		return img, nil
	}
	if !errdefs.IsNotFound(err) {
		return runtime.Image{}, fmt.Errorf("image %s: %w", name, err)
	}
	if err := b.pull(ctx, name, progress); err != nil {
		return runtime.Image{}, err
	}
	if img, err = b.local(ctx, name); err != nil {
		return runtime.Image{}, fmt.Errorf("image %s: %w", name, err)
	}
	return img, nil
}

// normalise makes a full reference of one as people write it: "golang:1.26".
func normalise(ref string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", &runtime.Error{Kind: runtime.ErrImageNotFound, Message: fmt.Sprintf("invalid image reference %q: %v", ref, err), Err: err}
	}
	return named.String(), nil
}

// local returns an image that is complete and unpacked here; the error is
// errdefs.IsNotFound when any part of it is missing.
func (b *Backend) local(ctx context.Context, name string) (runtime.Image, error) {
	img := runtime.Image{Ref: name}
	err := b.call(ctx, func(ctx context.Context, c *client.Client) error {
		record, err := c.ImageService().Get(ctx, name)
		if err != nil {
			return err
		}
		config, chain, err := imageConfig(ctx, c, record)
		if err != nil {
			return err
		}
		if _, err := c.SnapshotService(snapshotter).Stat(ctx, chain); err != nil {
			return err
		}
		img.Digest = record.Target.Digest.String()
		img.Env = mergeEnv([]string{"PATH=" + defaultPath}, config.Config.Env)
		img.WorkingDir = config.Config.WorkingDir
		img.User = config.Config.User
		img.Command = slices.Concat(config.Config.Entrypoint, config.Config.Cmd)
		return nil
	})
	return img, err
}

// imageConfig reads the configuration of an image's variant for this platform,
// and names the snapshot of its unpacked layers.
func imageConfig(ctx context.Context, c *client.Client, record images.Image) (config ocispec.Image, chain string, err error) {
	image := client.NewImageWithPlatform(c, record, platforms.Default())
	desc, err := image.Config(ctx)
	if err != nil {
		return config, "", err
	}
	data, err := content.ReadBlob(ctx, c.ContentStore(), desc)
	if err != nil {
		return config, "", err
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return config, "", fmt.Errorf("configuration of the image: %w", err)
	}
	return config, identity.ChainID(config.RootFS.DiffIDs).String(), nil
}

// chainOf names the snapshot of a resolved image's unpacked layers, also when the
// tag has moved to another image since.
func chainOf(ctx context.Context, c *client.Client, img runtime.Image) (string, error) {
	missing := func(err error) error {
		return &runtime.Error{Kind: runtime.ErrImageNotFound, Message: "image " + img.Ref + " is not present", Err: err}
	}
	record, err := c.ImageService().Get(ctx, img.Ref)
	if err != nil && !errdefs.IsNotFound(native(err)) {
		return "", err
	}
	if err != nil || (img.Digest != "" && record.Target.Digest.String() != img.Digest) {
		desc, err := describe(ctx, c, img.Digest)
		if err != nil {
			return "", missing(err)
		}
		record = images.Image{Name: img.Ref, Target: desc}
	}
	_, chain, err := imageConfig(ctx, c, record)
	if errdefs.IsNotFound(native(err)) {
		return "", missing(err)
	}
	return chain, err
}

// describe makes a descriptor for a manifest or index of which only the digest is
// known.
func describe(ctx context.Context, c *client.Client, text string) (ocispec.Descriptor, error) {
	id, err := digest.Parse(text)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	info, err := c.ContentStore().Info(ctx, id)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	desc := ocispec.Descriptor{Digest: id, Size: info.Size}
	data, err := content.ReadBlob(ctx, c.ContentStore(), desc)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	var kind struct {
		MediaType string            `json:"mediaType"`
		Manifests []json.RawMessage `json:"manifests"`
	}
	if err := json.Unmarshal(data, &kind); err != nil {
		return ocispec.Descriptor{}, err
	}
	desc.MediaType = kind.MediaType
	if desc.MediaType == "" {
		desc.MediaType = ocispec.MediaTypeImageManifest
		if kind.Manifests != nil {
			desc.MediaType = ocispec.MediaTypeImageIndex
		}
	}
	return desc, nil
}

// hostEnv is the environment of the host image: the caller's PATH as far as it
// can be seen inside, then the usual one.
func hostEnv(callerPath string) []string {
	const goBin = "/usr/local/go/bin"
	dirs := filepath.SplitList(defaultPath)
	if info, err := os.Stat(goBin); err == nil && info.IsDir() {
		dirs = append(dirs, goBin)
	}
	trees := hostTrees()
	visible := func(dir string) bool {
		for _, tree := range trees {
			if strings.HasPrefix(dir, tree+"/") {
				return true
			}
		}
		return false
	}
	var path []string
	seen := make(map[string]bool)
	for _, dir := range append(filepath.SplitList(callerPath), dirs...) {
		isDefault := strings.Contains(":"+defaultPath+":", ":"+dir+":")
		if !seen[dir] && filepath.IsAbs(dir) && filepath.Clean(dir) == dir && (isDefault || visible(dir)) {
			seen[dir] = true
			path = append(path, dir)
		}
	}
	env := []string{"PATH=" + strings.Join(path, ":"), "HOME=/root"}
	if lang := os.Getenv("LANG"); lang != "" {
		env = append(env, "LANG="+lang)
	}
	return env
}
