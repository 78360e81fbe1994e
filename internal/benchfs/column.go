package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// session is one column set up on a fresh backing file system.
type session struct {
	*bench
	back    *backing
	fixture string // bare repository with the tree
	scratch string // files of the group that are not in the tree
	dir     string // the tree to work in, as the host sees it
	closers []func() error
}

// column is one way to have a tree to work in.
type column interface {
	// open sets up s.dir. What it started is taken down by s.closers, also when
	// open fails.
	open(ctx context.Context, s *session) error
	// work runs "benchfs work" with args in the tree and returns its output.
	work(ctx context.Context, s *session, args ...string) (string, error)
}

// newColumn is the column of that name, nil when there is none.
func newColumn(name string) column {
	switch name {
	case "native":
		return native{}
	case "overlay":
		return overlay{}
	case "fuse-overlayfs":
		return fuseOverlay{}
	case "ours":
		return &ours{}
	case "ours-inside":
		return &inside{}
	case "ours-io":
		return &ours{profile: "io"}
	}
	return nil
}

// later has f run when the session is closed, last in, first out.
func (s *session) later(f func() error) { s.closers = append(s.closers, f) }

// close takes the session down.
func (s *session) close() error {
	var err error
	for i := len(s.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, s.closers[i]())
	}
	s.closers = nil
	return err
}

// host runs the work as a process of the host.
type host struct{}

func (host) work(ctx context.Context, s *session, args ...string) (string, error) {
	args = append([]string{filepath.Join(s.scratch, "benchfs"), "work", "-scratch", s.scratch}, args...)
	return command{dir: s.dir, env: s.env(), args: args}.output(ctx)
}

// native is a clone on the backing file system itself.
type native struct{ host }

func (native) open(ctx context.Context, s *session) error {
	s.dir = filepath.Join(s.back.dir, "native")
	return checkout(ctx, s, s.dir)
}

// checkout clones the fixture into dir. The index is made to look younger than
// every file, as after a checkout that took a while: git would read files again
// whose times it cannot tell from the index's.
func checkout(ctx context.Context, s *session, dir string) error {
	if _, err := (command{env: s.env(), args: []string{"git", "clone", "-q", s.fixture, dir}}).output(ctx); err != nil {
		return err
	}
	soon := time.Now().Add(2 * time.Second)
	return os.Chtimes(filepath.Join(dir, ".git", "index"), soon, soon)
}

// overlay is kernel overlayfs with its defaults over a clone.
type overlay struct{ host }

func (overlay) open(ctx context.Context, s *session) error {
	opts, err := overlayDirs(ctx, s)
	if err != nil {
		return err
	}
	s.later(func() error { return unmount(s.dir) })
	return run(ctx, "mount", "-t", "overlay", "overlay", "-o", opts, s.dir)
}

// overlayDirs makes what an overlay needs, sets s.dir to where it is to be
// mounted and returns its options.
func overlayDirs(ctx context.Context, s *session) (string, error) {
	lower, upper, work := filepath.Join(s.back.dir, "lower"), filepath.Join(s.back.dir, "upper"), filepath.Join(s.back.dir, "work")
	s.dir = filepath.Join(s.back.dir, "merged")
	for _, d := range []string{upper, work, s.dir} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, work), checkout(ctx, s, lower)
}

// fuseOverlay is the fuse-overlayfs of the distribution over a clone.
type fuseOverlay struct{ host }

func (fuseOverlay) open(ctx context.Context, s *session) error {
	if _, err := exec.LookPath("fuse-overlayfs"); err != nil {
		return fmt.Errorf("%w; './install.sh --deps-only --bench-deps' installs it", err)
	}
	opts, err := overlayDirs(ctx, s)
	if err != nil {
		return err
	}
	s.later(func() error { return unmount(s.dir) })
	return run(ctx, "fuse-overlayfs", "-o", opts, s.dir)
}
