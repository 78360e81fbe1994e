package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// required says that a missing capability is a failure.
func required() bool {
	v := os.Getenv("GITENV_TEST_REQUIRE")
	return v != "" && v != "0"
}

// lacks says what is missing for a capability; "" when the host has it. An
// unknown capability is an error, so that a misspelt one is not a silent skip.
func lacks(capability string) (string, error) {
	switch capability {
	case "root":
		if os.Getuid() != 0 {
			return "not root", nil
		}
	case "fuse":
		f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
		if err != nil {
			return err.Error(), nil
		}
		return "", f.Close()
	case "containerd":
		for _, tool := range []string{"containerd", "runc"} {
			if _, err := exec.LookPath(tool); err != nil {
				return tool + " is not installed", nil
			}
		}
	case "postgres":
		// Debian keeps the server out of PATH.
		found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
		if err != nil {
			return "", err
		}
		for _, tool := range []string{"postgres", "psql"} {
			if _, err := exec.LookPath(tool); err != nil && (tool == "psql" || len(found) == 0) {
				return tool + " is not installed", nil
			}
		}
	case "python3", "git-lfs", "make":
		if _, err := exec.LookPath(capability); err != nil {
			return capability + " is not installed", nil
		}
	case "network":
		f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
		if err != nil {
			return err.Error(), nil
		}
		if _, err := exec.LookPath("ip"); err != nil {
			return "ip is not installed", f.Close()
		}
		return "", f.Close()
	default:
		return "", fmt.Errorf("unknown capability %q (root, fuse, containerd, network, python3, git-lfs, make, postgres)", capability)
	}
	return "", nil
}

// tbKey finds the testing.TB in a script's values.
type tbKey struct{}

func siteTB(ts *testscript.TestScript) testing.TB { return ts.Value(tbKey{}).(testing.TB) }
