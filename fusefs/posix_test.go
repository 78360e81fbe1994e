package fusefs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

// TestPosix runs go-fuse's suite in three kinds of directory: the root's
// child, a new one deeper down, and one of the tree.
func TestPosix(t *testing.T) {
	skip := []string{
		"FcntlFlockLocksFile", // locks by one process do not conflict, here or anywhere
		"OpenSymlinkRace",     // fails on a plain file system too
	}
	files := map[string]string{}
	for name := range posixtest.All {
		files["lower/"+name+"/x"] = "x"
	}
	r := newRig(t, files)
	for _, sub := range []string{"", "new/deeper", "lower"} {
		for name, fn := range posixtest.All {
			if slices.Contains(skip, name) {
				continue
			}
			t.Run(filepath.Join("at", sub, name), func(t *testing.T) {
				dir := r.path(filepath.Join(sub, name))
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				os.Remove(filepath.Join(dir, "x"))
				fn(t, dir)
			})
		}
	}
}
