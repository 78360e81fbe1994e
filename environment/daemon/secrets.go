package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/internal/secret"
	"github.com/git-env/git-env/internal/wire"
)

// asker asks the client at the other end of a connection for secrets.
type asker struct {
	conn    *wire.Conn
	mu      sync.Mutex // one question at a time
	answers chan []byte
	gone    chan struct{} // closed when the client has gone
}

func newAsker(conn *wire.Conn) *asker {
	return &asker{conn: conn, answers: make(chan []byte, 1), gone: make(chan struct{})}
}

// take takes a frame of the client's that is an answer.
func (a *asker) take(t wire.Type, data []byte) bool {
	if t != wire.Answer {
		return false
	}
	select {
	case a.answers <- data:
	default: // to nothing that was asked
	}
	return true
}

// ask is an environment.SecretSource.
func (a *asker) ask(ctx context.Context, specs []secret.Spec) ([]secret.Value, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-a.answers: // from a question that was given up
	default:
	}
	if err := a.conn.SendJSON(wire.Ask, api.Ask{Secrets: specs}); err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-a.gone:
		return nil, errors.New("who asked for it has gone, and with them their secrets")
	case data := <-a.answers:
		var ans api.Answer
		if err := json.Unmarshal(data, &ans); err != nil {
			return nil, err
		}
		if ans.Error != "" {
			return nil, &environment.Error{Code: ans.Code, Msg: ans.Error, Hint: ans.Hint}
		}
		return ans.Values, nil
	}
}
