package fusefs

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// The memory for blobs holds what came last, within its bound, and gives back
// what was put in.
func TestBlobMemory(t *testing.T) {
	const bound = 64 << 10
	m := newBlobMemory(bound)
	key := func(i int) blobKey { return blobKey{byte(i), byte(i >> 8)} }
	content := func(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8), 7}, 1+i*37%4000) }
	rnd := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, bound)
	if _, ok := m.read(key(0), 0, buf); ok {
		t.Error("there is something before anything was put in")
	}
	for i := range 2000 {
		m.put(key(i), content(i))
		m.put(key(i), content(i)) // no second copy
		held := 0
		for j := range i + 1 {
			n, ok := m.read(key(j), 0, buf)
			if ok != m.has(key(j)) {
				t.Fatalf("blob %d: has and read differ", j)
			}
			if held += n; ok && !bytes.Equal(buf[:n], content(j)) {
				t.Fatalf("blob %d of %d is another one", j, i)
			}
		}
		if n, ok := m.read(key(i), 0, buf); !ok || n != len(content(i)) {
			t.Fatalf("the last blob, %d: %d bytes, %v", i, n, ok)
		}
		if held > bound || len(m.order)-m.first != len(m.at) || i > 100 && held < bound/2 {
			t.Fatalf("%d bytes of %d blobs, %d in order", held, len(m.at), len(m.order)-m.first)
		}
		off := rnd.IntN(len(content(i)) + 10)
		if n, _ := m.read(key(i), uint64(off), buf[:5]); n != min(5, max(0, len(content(i))-off)) {
			t.Fatalf("%d bytes at %d of %d", n, off, len(content(i)))
		}
	}
	m.put(key(5000), make([]byte, bound+1))
	if m.has(key(5000)) {
		t.Error("what is larger than the bound was taken")
	}
	m.mu.Lock()
	m.release()
	m.mu.Unlock()
	if m.has(key(1999)) {
		t.Error("something is left")
	}
	m.put(key(1), content(1))
	if n, ok := m.read(key(1), 0, buf); !ok || !bytes.Equal(buf[:n], content(1)) {
		t.Error("nothing can be put in again")
	}
}
