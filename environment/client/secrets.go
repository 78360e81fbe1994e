package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/internal/secret"
	"github.com/git-env/git-env/internal/wire"
)

// maxSecrets bounds the values that are sent at once, in bytes: in base64 they
// have to fit into a frame.
const maxSecrets = wire.MaxFrame / 2

// answer fetches the secrets that the daemon asks for and sends them.
func (c *Client) answer(ctx context.Context, conn *wire.Conn, ask []byte) error {
	var a api.Ask
	if err := json.Unmarshal(ask, &a); err != nil {
		return err
	}
	ans := api.Answer{}
	size := 0
	for _, s := range a.Secrets {
		v, err := c.secret(ctx, s)
		if size += len(v.Data); err == nil && size > maxSecrets {
			err = fmt.Errorf("all secrets together have more than %d bytes", maxSecrets)
		}
		if err != nil {
			ans = api.Answer{Code: environment.ExitCode(err), Error: err.Error(), Hint: environment.Hint(err)}
			break
		}
		ans.Values = append(ans.Values, v)
	}
	return conn.SendJSON(wire.Answer, ans)
}

func (c *Client) secret(ctx context.Context, s secret.Spec) (secret.Value, error) {
	if c.opts.Secret == nil {
		return secret.Value{}, fmt.Errorf("secret '%s' cannot be fetched here", s.Target())
	}
	v, err := c.opts.Secret(ctx, s)
	var e *secret.Error
	if errors.As(err, &e) {
		code := environment.ExitFailed
		if e.Missing != "" {
			code = environment.ExitCapability
		}
		return v, &environment.Error{Code: code, Msg: e.Error(), Hint: e.Hint, Err: err}
	}
	return v, err
}
