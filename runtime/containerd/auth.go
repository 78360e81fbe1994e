package containerd

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	helperTimeout = 15 * time.Second
	hubHost       = "registry-1.docker.io"
	hubKey        = "https://index.docker.io/v1/"
)

// credentials reads the logins that `docker login` and its like have stored.
type credentials struct{ dir string }

func newCredentials() *credentials {
	dir := os.Getenv("DOCKER_CONFIG")
	if dir == "" {
		if home, err := os.UserHomeDir(); err == nil {
			dir = filepath.Join(home, ".docker")
		}
	}
	return &credentials{dir: dir}
}

type dockerConfig struct {
	Auths map[string]struct {
		Auth          string `json:"auth"`
		Username      string `json:"username"`
		Password      string `json:"password"`
		IdentityToken string `json:"identitytoken"`
	} `json:"auths"`
	CredsStore  string            `json:"credsStore"`
	CredHelpers map[string]string `json:"credHelpers"`
}

// lookUp returns user and password for a registry; both empty when there is no
// login. With an empty user the password is an identity token.
func (c *credentials) lookUp(host string) (user, secret string, err error) {
	data, err := os.ReadFile(filepath.Join(c.dir, "config.json"))
	if os.IsNotExist(err) || c.dir == "" {
		return "", "", nil
	}
	if err != nil {
		return "", "", fmt.Errorf("read registry logins: %w", err)
	}
	var config dockerConfig
	if err := json.Unmarshal(data, &config); err != nil {
		return "", "", fmt.Errorf("read registry logins: %w", err)
	}
	keys := []string{host, "https://" + host, "http://" + host, "https://" + host + "/v1/", "https://" + host + "/v2/"}
	if host == hubHost || host == "docker.io" {
		keys = append(keys, hubKey, "docker.io", "index.docker.io")
	}
	for _, key := range keys {
		if helper := config.CredHelpers[key]; helper != "" {
			return askHelper(helper, key)
		}
	}
	for _, key := range keys {
		entry, ok := config.Auths[key]
		if !ok {
			continue
		}
		if entry.IdentityToken != "" {
			return "", entry.IdentityToken, nil
		}
		if entry.Auth != "" {
			return decodeAuth(entry.Auth)
		}
		if entry.Username != "" {
			return entry.Username, entry.Password, nil
		}
	}
	if config.CredsStore != "" {
		for _, key := range keys {
			if user, secret, err := askHelper(config.CredsStore, key); err == nil && secret != "" {
				return user, secret, nil
			}
		}
	}
	return "", "", nil
}

func decodeAuth(auth string) (user, secret string, err error) {
	raw, err := base64.StdEncoding.DecodeString(auth)
	if err != nil {
		return "", "", fmt.Errorf("read registry logins: %w", err)
	}
	user, secret, ok := strings.Cut(string(raw), ":")
	if !ok {
		return "", "", fmt.Errorf("read registry logins: malformed entry")
	}
	return user, strings.TrimRight(secret, "\x00"), nil
}

// askHelper runs docker-credential-<name> get.
func askHelper(name, key string) (user, secret string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), helperTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker-credential-"+name, "get")
	cmd.Stdin = strings.NewReader(key)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		if bytes.Contains(out, []byte("credentials not found")) {
			return "", "", nil
		}
		return "", "", fmt.Errorf("ask docker-credential-%s: %w", name, err)
	}
	var login struct{ Username, Secret string }
	if err := json.Unmarshal(out, &login); err != nil {
		return "", "", fmt.Errorf("ask docker-credential-%s: %w", name, err)
	}
	if login.Username == "<token>" {
		return "", login.Secret, nil
	}
	return login.Username, login.Secret, nil
}
