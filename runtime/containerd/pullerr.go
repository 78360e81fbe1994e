package containerd

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"

	"github.com/git-env/git-env/runtime"
)

// explainPull makes one clear line of what went wrong.
func explainPull(name string, err error) error {
	fail := func(kind error, format string, a ...any) error {
		return &runtime.Error{Kind: kind, Message: oneLine(fmt.Sprintf(format, a...)), Err: err}
	}
	host := name
	if named, parseErr := reference.ParseNormalizedNamed(name); parseErr == nil {
		host = reference.Domain(named)
	}
	var mismatch *platformError
	if errors.As(err, &mismatch) {
		return fail(runtime.ErrPlatform, "image %s is not made for %s, only for %s",
			name, platforms.DefaultString(), strings.Join(mismatch.offered, ", "))
	}
	var status remoteerrors.ErrUnexpectedStatus
	hasStatus := errors.As(err, &status)
	switch {
	case errors.Is(err, errSilent):
		return fail(runtime.ErrRegistry, "registry %s does not answer", host)
	case errors.Is(err, docker.ErrInvalidAuthorization), hasStatus && (status.StatusCode == 401 || status.StatusCode == 403):
		return fail(runtime.ErrRegistry, "registry %s refuses access to %s: not logged in, not allowed, or no such image", host, name)
	case hasStatus && status.StatusCode == 429:
		return fail(runtime.ErrRegistry, "registry %s refuses more requests for now (429 Too Many Requests)", host)
	case hasStatus && status.StatusCode == 404, errdefs.IsNotFound(err):
		return fail(runtime.ErrImageNotFound, "image %s not found", name)
	case hasStatus:
		return fail(runtime.ErrRegistry, "registry %s answers %s", host, status.Status)
	}
	return fail(runtime.ErrRegistry, "registry %s: %s", host, networkCause(err))
}

// networkCause is the innermost words of a network failure.
func networkCause(err error) string {
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return "cannot resolve the host name: " + dns.Err
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "connection refused"
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "timed out"
	}
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		return urlErr.Err.Error()
	}
	return err.Error()
}
