package fusefs

import (
	"errors"

	"github.com/git-env/git-env/fusefs/layer"
)

// errNoUring reports that a mount cannot be served over io_uring. It has to be
// made again without.
var errNoUring = errors.New("no FUSE over io_uring")

// knownErrors are the errors that keep their identity over the socket.
func knownErrors() []error {
	return []error{
		ErrNotMounted, ErrMounted, layer.ErrDamaged, layer.ErrNewerFormat, layer.ErrSealed, errNoUring, ErrOpenForWriting,
	}
}
