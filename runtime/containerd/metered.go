package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// resolver wraps a resolver so that everything that comes through it is counted.
func (m *meter) resolver(inner remotes.Resolver) remotes.Resolver {
	return &meteredResolver{Resolver: inner, m: m}
}

type meteredResolver struct {
	remotes.Resolver
	m *meter
}

func (r *meteredResolver) Resolve(ctx context.Context, ref string) (string, ocispec.Descriptor, error) {
	r.m.asked()
	defer r.m.answered()
	return r.Resolver.Resolve(ctx, ref)
}

func (r *meteredResolver) Fetcher(ctx context.Context, ref string) (remotes.Fetcher, error) {
	inner, err := r.Resolver.Fetcher(ctx, ref)
	if err != nil {
		return nil, err
	}
	return remotes.FetcherFunc(func(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
		r.m.asked()
		rc, err := inner.Fetch(ctx, desc)
		if err != nil {
			r.m.answered()
			return nil, err
		}
		return &meteredReader{rc: rc, m: r.m}, nil
	}), nil
}

type meteredReader struct {
	rc   io.ReadCloser
	m    *meter
	over sync.Once
}

func (r *meteredReader) Read(p []byte) (int, error) {
	n, err := r.rc.Read(p)
	r.m.received(n)
	if err != nil {
		r.over.Do(r.m.answered)
	}
	return n, err
}

// Seek lets a blob that was fetched in part be resumed.
func (r *meteredReader) Seek(offset int64, whence int) (int64, error) {
	if seeker, ok := r.rc.(io.Seeker); ok {
		return seeker.Seek(offset, whence)
	}
	return 0, errors.New("cannot seek in this answer of the registry")
}

func (r *meteredReader) Close() error {
	r.over.Do(r.m.answered)
	return r.rc.Close()
}

// platformError says what an image offers instead of this platform.
type platformError struct{ offered []string }

func (e *platformError) Error() string { return "no variant for this platform" }

// platformCheck refuses an image for other platforms before its layers are
// fetched.
type platformCheck struct {
	store   content.Provider
	matcher platforms.MatchComparer
}

// wrap makes the handler wrapper of a pull: it counts what will be fetched and
// looks at what tells the platform.
func (p *platformCheck) wrap(m *meter) func(images.Handler) images.Handler {
	return func(inner images.Handler) images.Handler {
		return images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
			m.expect(desc)
			children, err := inner.Handle(ctx, desc)
			if err != nil {
				if mismatch := p.index(ctx, desc); mismatch != nil {
					return nil, mismatch
				}
				return nil, err
			}
			if images.IsConfigType(desc.MediaType) {
				if err := p.config(ctx, desc); err != nil {
					return nil, err
				}
			}
			for _, child := range children {
				m.expect(child)
			}
			return children, nil
		})
	}
}

// index returns an error when an index has nothing for this platform.
func (p *platformCheck) index(ctx context.Context, desc ocispec.Descriptor) error {
	if !images.IsIndexType(desc.MediaType) {
		return nil
	}
	data, err := content.ReadBlob(ctx, p.store, desc)
	if err != nil {
		return nil
	}
	var index ocispec.Index
	if err := json.Unmarshal(data, &index); err != nil {
		return nil
	}
	mismatch := &platformError{}
	for _, manifest := range index.Manifests {
		if manifest.Platform == nil || p.matcher.Match(*manifest.Platform) {
			return nil
		}
		if manifest.Platform.OS != "unknown" { // attestations
			mismatch.offered = append(mismatch.offered, platforms.Format(*manifest.Platform))
		}
	}
	return mismatch
}

// config returns an error when a configuration is of another platform.
func (p *platformCheck) config(ctx context.Context, desc ocispec.Descriptor) error {
	data, err := content.ReadBlob(ctx, p.store, desc)
	if err != nil {
		return err
	}
	var config ocispec.Image
	if err := json.Unmarshal(data, &config); err != nil {
		return fmt.Errorf("configuration of the image: %w", err)
	}
	if config.OS == "" || p.matcher.Match(platforms.Normalize(config.Platform)) {
		return nil
	}
	return &platformError{offered: []string{platforms.Format(platforms.Normalize(config.Platform))}}
}
