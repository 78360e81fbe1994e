package fusefs

import "testing"

// everywhere runs fn in a plain directory, which shows that it asks for what
// the file system below gives, and then in a directory of each kind.
func everywhere(t *testing.T, files map[string]string, fn func(t *testing.T, dir string)) {
	t.Helper()
	r := newKinds(t, files)
	t.Run("plain", func(t *testing.T) {
		dir := t.TempDir() // on the file system that has the layers
		writeFiles(t, dir, files)
		fn(t, dir)
	})
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) { fn(t, r.path(kind)) })
	}
}
