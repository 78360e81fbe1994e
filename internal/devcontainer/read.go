package devcontainer

import (
	"context"
	"errors"
	"fmt"

	"github.com/git-env/git-env/internal/objects"
	"github.com/git-env/git-env/internal/settings"
)

// maxFile bounds the size of a devcontainer.json, in bytes.
const maxFile = 256 << 10

// Local is what "${local…}" and "${devcontainerId}" refer to.
type Local struct {
	// Environ holds the user's environment variables.
	Environ []string
	// WorkTree is the top of the user's work tree; "" for none.
	WorkTree string
	// ID is unique to the repository on this machine, and does not change.
	ID string
}

// Result is what a devcontainer.json says.
type Result struct {
	Entries []settings.Entry
	// Unused names fields that have no meaning here.
	Unused []string
	// Notes tells what is different from other tools.
	Notes []string
	// NoImage is why the image that the file asks for cannot be had; it counts
	// unless another origin names an image. Nil when all is well.
	NoImage error
}

// Files are the places where a devcontainer.json may be, in the order in which
// they are looked for.
func Files() []string { return []string{".devcontainer/devcontainer.json", ".devcontainer.json"} }

// Read reads the file of a commit; nil when there is none. A mistake in it, and
// what it asks for and cannot have, is a *settings.Error.
func Read(ctx context.Context, r *objects.Reader, commit string, local Local) (*Result, error) {
	for _, name := range Files() {
		e, err := r.Path(ctx, commit, name)
		if errors.Is(err, objects.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		at := settings.Entry{Scope: settings.Project, Origin: "blob:" + commit + ":" + name}
		if e.Mode != 0o100644 && e.Mode != 0o100755 {
			return nil, at.Errorf("not a regular file; symbolic links are not followed")
		}
		file, err := r.Bytes(ctx, e.ID, maxFile)
		if err != nil {
			return nil, fmt.Errorf("%s of %.12s: %w", name, commit, err)
		}
		return Parse(at.Origin, file, local)
	}
	return nil, nil
}
