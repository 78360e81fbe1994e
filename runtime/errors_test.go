package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"
)

func TestErrors(t *testing.T) {
	err := fmt.Errorf("create: %w", &Error{Kind: ErrRegistry, Message: "registry x does not answer", Err: fs.ErrClosed})
	if !errors.Is(err, ErrRegistry) || !errors.Is(err, fs.ErrClosed) || errors.Is(err, ErrPlatform) || err.Error() != "create: registry x does not answer" {
		t.Errorf("%v", err)
	}
	err = fmt.Errorf("open: %w", &MissingError{What: "runc", Package: "runc", Detail: "not installed"})
	var missing *MissingError
	if !errors.Is(err, ErrMissing) || !errors.As(err, &missing) || missing.Package != "runc" || err.Error() != "open: runc: not installed" {
		t.Errorf("%v", err)
	}
	if text := (&MissingError{What: "overlayfs"}).Error(); text != "overlayfs is not available" {
		t.Error(text)
	}
}
