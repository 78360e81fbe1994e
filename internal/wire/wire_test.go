package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

func pair(t testing.TB) (*Conn, *Conn) {
	t.Helper()
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	return New(a), New(b)
}

func TestFrames(t *testing.T) {
	a, b := pair(t)
	big := bytes.Repeat([]byte("x"), 600<<10)
	var wg sync.WaitGroup
	for _, typ := range []Type{Stdout, Stderr} {
		wg.Go(func() {
			if n, err := a.Writer(typ).Write(big); n != len(big) || err != nil {
				t.Error(n, err)
			}
		})
	}
	got := map[Type]int{}
	for got[Stdout]+got[Stderr] < 2*len(big) {
		typ, data, err := b.Recv()
		if err != nil {
			t.Fatal(err)
		}
		got[typ] += len(data)
	}
	wg.Wait()
	if err := a.Send(Stdin, make([]byte, MaxFrame+1)); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
}

// TestHurry: a peer that does not read holds up nobody for longer than said, and
// is sent nothing after half a frame.
func TestHurry(t *testing.T) {
	a, _ := pair(t)
	sent := make(chan error, 1)
	go func() { sent <- a.Send(Stdout, []byte("x")) }()
	a.Hurry(20 * time.Millisecond)
	select {
	case err := <-sent:
		if err == nil {
			t.Error("sent to nobody")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("still waiting")
	}
	if err := a.Send(Stdout, nil); err == nil {
		t.Error("sent after half a frame")
	}
}

type script struct {
	net.Conn
	io.Reader
}

func (s script) Read(p []byte) (int, error) { return s.Reader.Read(p) }

func FuzzRecv(f *testing.F) {
	f.Add([]byte("h\x00\x00\x00\x02{}"))
	f.Add([]byte("o\xff\xff\xff\xff"))
	f.Add([]byte("i\x00\x00\x00\x09short"))
	f.Fuzz(func(t *testing.T, in []byte) {
		c := New(script{Reader: bytes.NewReader(in)})
		rest := in
		for {
			typ, data, err := c.Recv()
			if err != nil {
				if len(rest) >= 5 {
					if n := int64(binary.BigEndian.Uint32(rest[1:])); n <= MaxFrame && n <= int64(len(rest)-5) {
						t.Fatalf("refused a whole frame: %v", err)
					}
				}
				return
			}
			if typ != Type(rest[0]) || !bytes.Equal(data, rest[5:5+len(data)]) {
				t.Fatal("another frame than was sent")
			}
			rest = rest[5+len(data):]
		}
	})
}
