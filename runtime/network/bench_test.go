package network

import (
	"io"
	"net"
	"testing"
)

// BenchmarkThroughput moves bytes between a container and another machine, each
// way, and beside it between two sockets of a namespace's loopback.
func BenchmarkThroughput(b *testing.B) {
	far := world(b)
	_, ns := container(b, Rules{}, Options{})
	sink := listen(b, far, "tcp", theirAddr4+":0")
	go each(sink, func(c net.Conn) { _, _ = io.Copy(struct{ io.Writer }{io.Discard}, c) })
	source := listen(b, far, "tcp", theirAddr4+":0")
	go each(source, func(c net.Conn) { pour(c) })
	alone := listen(b, ns, "tcp", "127.0.0.1:0")
	go each(alone, func(c net.Conn) { pour(c) })
	b.Run("out", func(b *testing.B) {
		c := mustDial(b, ns, "tcp", sink.Addr().String())
		chunk := make([]byte, 1<<20)
		b.SetBytes(int64(len(chunk)))
		for b.Loop() {
			if _, err := c.Write(chunk); err != nil {
				b.Fatal(err)
			}
		}
	})
	for name, ln := range map[string]net.Listener{"in": source, "loopback": alone} {
		b.Run(name, func(b *testing.B) {
			c := mustDial(b, ns, "tcp", ln.Addr().String())
			chunk := make([]byte, 1<<20)
			b.SetBytes(int64(len(chunk)))
			for b.Loop() {
				if _, err := io.ReadFull(c, chunk); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func each(ln net.Listener, serve func(net.Conn)) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			serve(c)
		}()
	}
}

func pour(c net.Conn) {
	chunk := make([]byte, 1<<20)
	for {
		if _, err := c.Write(chunk); err != nil {
			return
		}
	}
}
