package containerd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/git-env/git-env/runtime"
	"github.com/git-env/git-env/runtime/initproc"
)

// secretsMount is where secrets that are files come: memory that goes with the
// container. Whoever execs run as writes them, so anybody may, as in /tmp.
func secretsMount() specs.Mount {
	return specs.Mount{Type: "tmpfs", Source: "secrets", Destination: initproc.SecretsDir,
		Options: []string{"nosuid", "nodev", "noexec", "mode=1777", "size=4m", "nr_inodes=256"}}
}

// putSecretsID is that of the exec that writes the files.
const putSecretsID = "put-secrets"

// PutSecrets implements runtime.Container. The values go through a pipe to a
// process inside, which makes the files as what it is seen as there: nothing of
// them is in an argument, a variable or a file of the host, and no path inside is
// followed from outside.
func (c *container) PutSecrets(ctx context.Context, files []runtime.SecretFile) error {
	list := make([]initproc.SecretFile, len(files))
	for i, f := range files {
		list[i] = initproc.SecretFile{Name: f.Name, Data: f.Data}
	}
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	var said bytes.Buffer
	p, err := c.Exec(ctx, runtime.ExecSpec{ID: putSecretsID, Args: []string{initPath, "put-secrets"}, Cwd: "/"},
		runtime.IO{Stdin: bytes.NewReader(data), Stderr: &said})
	if err != nil {
		return err
	}
	defer p.Close()
	exit, err := p.Wait()
	if err != nil {
		return err
	}
	if exit.Code != 0 {
		if text := strings.TrimSpace(said.String()); text != "" {
			return errors.New(text)
		}
		return fmt.Errorf("it ended with exit code %d", exit.Code)
	}
	return nil
}
