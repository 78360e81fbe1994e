package e2e

import (
	goruntime "runtime"
	"testing"

	"github.com/git-env/git-env/internal/ocitest"
)

// images are what scripts find in the registry on loopback.
type images struct{ registry, busybox, foreign string }

// startRegistry serves a busybox for this machine and one for another.
func startRegistry(t *testing.T) images {
	t.Helper()
	r := ocitest.NewRegistry()
	t.Cleanup(r.Close)
	push := func(name string, c ocitest.Config) string {
		img, err := ocitest.Image(c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Push(name, img); err != nil {
			t.Fatal(err)
		}
		return r.Ref(name)
	}
	foreign := "s390x"
	if goruntime.GOARCH == foreign {
		foreign = "riscv64"
	}
	return images{
		registry: r.Host(),
		busybox:  push("busybox:1", ocitest.Config{}),
		foreign:  push("foreign:1", ocitest.Config{Arch: foreign}),
	}
}
