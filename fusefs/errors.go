package fusefs

import "github.com/git-env/git-env/fusefs/layer"

// knownErrors are the errors that keep their identity over the socket.
func knownErrors() []error {
	return []error{ErrNotMounted, ErrMounted, layer.ErrNewerFormat, layer.ErrSealed}
}
