package initproc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// SecretFile is what PutSecrets reads an array of, as JSON.
type SecretFile struct {
	Name string `json:"name"`
	Data []byte `json:"data"`
}

// SecretsDir is where PutSecrets writes.
const SecretsDir = "/run/secrets"

// PutSecrets is the body of the hidden command `git-env put-secrets`, which the
// daemon runs in a container that has just started, before any other: it writes
// the files that its input lists into a tmpfs. It returns the exit code, and says
// on stderr what went wrong.
func PutSecrets(in io.Reader, stderr io.Writer) int {
	if err := putSecrets(in); err != nil {
		_, _ = fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func putSecrets(in io.Reader) error {
	var files []SecretFile
	if err := json.NewDecoder(in).Decode(&files); err != nil {
		return fmt.Errorf("read the secrets: %w", err)
	}
	// Whatever a name is, it leads nowhere else.
	root, err := os.OpenRoot(SecretsDir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, f := range files {
		if f.Name == "" || strings.ContainsRune(f.Name, '/') {
			return errors.New("not the name of a file: '" + f.Name + "'")
		}
		out, err := root.OpenFile(f.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
		if err != nil {
			return err
		}
		_, err = out.Write(f.Data)
		if err = errors.Join(err, out.Close()); err != nil {
			return err
		}
	}
	return nil
}
