package client

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/internal/wire"
)

// Events receives what a call reports while it runs; either may be nil.
type Events struct {
	Progress func(wire.ProgressMsg)
	Warn     func(string)
}

// Call sends one request and waits for its answer. Cancelling ctx drops the
// connection, upon which the daemon undoes what it had begun.
func (c *Client) Call(ctx context.Context, method string, params, result any, ev Events) error {
	return c.Stream(ctx, method, params, result, nil, nil, ev)
}

// Stream is Call for a method whose answer carries output.
func (c *Client) Stream(ctx context.Context, method string, params, result any, stdout, stderr io.Writer, ev Events) error {
	conn, err := c.take(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := request(conn, method, params); err != nil {
		return lost(ctx, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.CloseWrite() })
	defer stop()
	return c.answers(ctx, conn, result, ev, &output{stdout: stdout, stderr: stderr})
}

// Control is what the caller's terminal or signals ask of a running exec.
type Control struct {
	// Signal is a name without SIG ("INT"); empty for a change of size.
	Signal        string
	Width, Height uint16
}

// Run runs one exec, streaming stdin to it and its output back. It returns after
// the commit and the record are made. A nil stdin is an empty one.
func (c *Client) Run(ctx context.Context, params api.Run, stdin io.Reader, stdout, stderr io.Writer, control <-chan Control, ev Events) (*api.Ran, error) {
	conn, err := c.take(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	params.Stdin = stdin != nil
	if err := request(conn, api.MethodRun, params); err != nil {
		return nil, lost(ctx, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.CloseWrite() })
	defer stop()
	done := make(chan struct{})
	defer close(done)
	acks := &acked{more: make(chan struct{}, 1)}
	if stdin != nil {
		go sendStdin(conn, stdin, acks, done)
	}
	go sendControl(conn, control, done)
	ran := &api.Ran{}
	return ran, c.answers(ctx, conn, ran, ev, &output{stdout: stdout, stderr: stderr, acks: acks})
}

func request(conn *wire.Conn, method string, params any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	return conn.SendJSON(wire.Request, wire.RequestMsg{Method: method, Params: raw})
}

// sendStdin passes stdin on, never more than the window ahead of what the exec
// took.
func sendStdin(conn *wire.Conn, stdin io.Reader, acks *acked, done <-chan struct{}) {
	buf := make([]byte, 64<<10)
	var sent int64
	for {
		n, err := stdin.Read(buf)
		for sent+int64(n)-acks.bytes.Load() > wire.StdinWindow {
			select {
			case <-acks.more:
			case <-done:
				return
			}
		}
		if n > 0 && conn.Send(wire.Stdin, buf[:n]) != nil {
			return
		}
		sent += int64(n)
		if err != nil {
			_ = conn.Send(wire.StdinEOF, nil)
			return
		}
	}
}

func sendControl(conn *wire.Conn, control <-chan Control, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case c, ok := <-control:
			if !ok {
				return
			}
			if c.Signal != "" {
				_ = conn.Send(wire.Signal, []byte(c.Signal))
			} else {
				_ = conn.SendJSON(wire.Resize, wire.ResizeMsg{Width: c.Width, Height: c.Height})
			}
		}
	}
}

// output is where an exec's frames go.
type output struct {
	stdout, stderr io.Writer
	acks           *acked
}

// acked counts the bytes of stdin that the exec took.
type acked struct {
	bytes atomic.Int64
	more  chan struct{} // a token when bytes grew
}

func (a *acked) add(n int64) {
	a.bytes.Add(n)
	select {
	case a.more <- struct{}{}:
	default:
	}
}

// write passes output on. A reader that went away ends nothing: the exec runs on
// and is recorded; what it prints is dropped here.
func (o *output) write(t wire.Type, data []byte) {
	w := &o.stdout
	if t == wire.Stderr {
		w = &o.stderr
	}
	if *w == nil {
		return
	}
	if _, err := (*w).Write(data); err != nil {
		*w = nil
	}
}

// answers reads frames until the result or a failure.
func (c *Client) answers(ctx context.Context, conn *wire.Conn, result any, ev Events, out *output) error {
	for {
		t, data, err := conn.Recv()
		if err != nil {
			return lost(ctx, err)
		}
		switch t {
		case wire.Result:
			if result == nil {
				return nil
			}
			return json.Unmarshal(data, result)
		case wire.Failure:
			var f wire.FailureMsg
			if err := json.Unmarshal(data, &f); err != nil {
				return err
			}
			return &environment.Error{Code: f.Code, Msg: f.Msg, Hint: f.Hint}
		case wire.Progress:
			var p wire.ProgressMsg
			if ev.Progress != nil && json.Unmarshal(data, &p) == nil {
				ev.Progress(p)
			}
		case wire.Warning:
			if ev.Warn != nil {
				ev.Warn(string(data))
			}
		case wire.Stdout, wire.Stderr:
			out.write(t, data)
		case wire.Ask:
			if err := c.answer(ctx, conn, data); err != nil {
				return lost(ctx, err)
			}
		case wire.StdinAck:
			if len(data) == 4 && out.acks != nil {
				out.acks.add(int64(binary.BigEndian.Uint32(data)))
			}
		default:
			return fmt.Errorf("the daemon sent an unknown frame %q", t)
		}
	}
}

func lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("it ended")
	}
	return environment.Errorf(environment.ExitOurs, "lost the daemon before it answered: %v", err).
		WithHint("what the command wrote is kept in the workspace; the next command recovers it and commits it")
}
