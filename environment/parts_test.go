package environment

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os/exec"
	"testing"

	"github.com/git-env/git-env/internal/durable"
)

func TestRecorder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int{0, 1, halfOutput - 1, halfOutput, maxOutput, maxOutput + 1, 3*maxOutput + 7} {
		r := &recorder{}
		var all []byte
		for len(all) < size {
			p := bytes.Repeat([]byte{byte(rnd.Uint32())}, min(size-len(all), 1+rnd.IntN(2*halfOutput)))
			all = append(all, p...)
			if _, err := r.tee(failing{}).Write(p); err != nil {
				t.Fatal(err)
			}
		}
		head, tail, cut := r.kept()
		want := len(all) - min(len(all), maxOutput)
		if int(cut) != want || !bytes.HasPrefix(all, head) || !bytes.HasSuffix(all, tail) || r.bytes() != int64(size) {
			t.Errorf("%d bytes: kept %d and %d, cut %d", size, len(head), len(tail), cut)
		}
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("gone") }

// TestCheckName allows no name that git refuses.
func TestCheckName(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	const letters = "aB0.-/@~^: *[\\_\x01\x7f{é"
	runes := []rune(letters)
	names := []string{"a", "a/b", "a.lock", "a/.b", "a..b", "-a", "a.", ".git", "a/git~1", "a@{b", "é", "l\xe4tin"}
	for range 300 {
		var n []rune
		for range 1 + rnd.IntN(5) {
			n = append(n, runes[rnd.IntN(len(runes))])
		}
		names = append(names, string(n))
	}
	good := 0
	for _, n := range names {
		if CheckName(n) != nil {
			continue
		}
		good++
		if err := exec.Command("git", "check-ref-format", BranchRef(n)).Run(); err != nil {
			t.Errorf("%q passed, but git refuses it", n)
		}
	}
	if good < 10 {
		t.Errorf("only %d names passed", good)
	}
}

func TestRawPath(t *testing.T) {
	file := t.TempDir() + "/x"
	want := skipped{Held: rawPaths([]string{"a", "l\xe4tin", "base64:x", "new\nline", ""})}
	if err := durable.WriteJSON(file, want, 0o600); err != nil {
		t.Fatal(err)
	}
	var got skipped
	if err := durable.ReadJSON(file, &got); err != nil || !equalSkipped(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}
