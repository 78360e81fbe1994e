package fusefs

import (
	"fmt"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// transport carries the requests of a mount from the kernel to the workspace
// and the answers back.
type transport interface {
	// serve answers until the kernel asks no more. When it cannot go on before
	// that it calls broken, which aborts the mount.
	serve(broken func())
}

// transport answers the kernel's first message on fd, which it owns even when
// it fails.
func (s *server) transport(w *workspace, fd int, uring bool) (transport, error) {
	if uring {
		if pool := s.pool(); pool != nil {
			t, err := newUringTransport(pool, fd, w)
			if err != nil {
				return nil, err
			}
			return t, nil
		}
	}
	w.openChannel(fd)
	fs, err := fuse.NewServer(w, fmt.Sprintf("/dev/fd/%d", fd), mountOptions(w))
	if err != nil {
		return nil, err
	}
	return device{fs}, nil
}

// pool returns the rings, or nil when there are none to be had.
func (s *server) pool() *uringPool {
	s.ringsMu.Lock()
	defer s.ringsMu.Unlock()
	if s.rings == nil && s.ringsErr == nil {
		s.rings, s.ringsErr = newUringPool(s.shared.log)
		if s.ringsErr != nil {
			s.shared.log.Printf("no io_uring: %v", s.ringsErr)
		}
	}
	return s.rings
}

// device is the classic transport, over /dev/fuse alone.
type device struct{ fs *fuse.Server }

func (d device) serve(func()) { d.fs.Serve() }

func mountOptions(w *workspace) *fuse.MountOptions {
	opts := &fuse.MountOptions{
		AllowOther:               true,
		MaxWrite:                 maxIO,
		MaxBackground:            64,
		EnableSymlinkCaching:     true,
		ExplicitDataCacheControl: true,
		IDMappedMount:            true,
		Logger:                   w.log,
		ExtraCapabilities:        fuse.CAP_NO_OPENDIR_SUPPORT | fuse.CAP_HANDLE_KILLPRIV_V2,
	}
	// Passthrough and a cache of opens exclude each other.
	if w.io() {
		opts.ExtraCapabilities |= fuse.CAP_ATOMIC_O_TRUNC
	} else {
		opts.DisabledCapabilities = fuse.CAP_PASSTHROUGH
	}
	return opts
}
