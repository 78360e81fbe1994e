package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
)

func setOf(values ...string) *Set {
	var vs []Value
	for i, v := range values {
		vs = append(vs, Value{Spec{Name: fmt.Sprintf("S%d", i)}, []byte(v)})
	}
	return NewSet(vs)
}

// naive is what a Set does, needle by needle and place by place.
func naive(s *Set, text string) string {
	var b strings.Builder
	to := 0 // of the mask that was written last
	for i := range len(text) {
		end := 0
		for _, n := range s.needles {
			end = max(end, naiveAt(n, text[i:]))
		}
		if end > 0 && i >= to {
			b.WriteString(Mask)
		}
		if end > 0 {
			to = max(to, i+end)
		}
		if i >= to {
			b.WriteByte(text[i])
		}
	}
	return b.String()
}

func naiveAt(n needle, text string) int {
	at := 0
	for i := range n.text {
		if n.wraps && i > 0 {
			for gap := 0; gap < maxGap && at < len(text) && strings.ContainsRune("\r\n", rune(text[at])); gap++ {
				at++
			}
		}
		if at == len(text) || text[at] != n.text[i] {
			return 0
		}
		at++
	}
	return at
}

// random makes a text in which needles, parts of them and noise follow one another.
func random(r *rand.Rand, s *Set) string {
	var b strings.Builder
	for range r.IntN(12) {
		n := s.needles[r.IntN(len(s.needles))]
		part := string(n.text)
		switch r.IntN(5) {
		case 0:
			part = part[:r.IntN(len(part))]
		case 1:
			part = part[r.IntN(len(part)):]
		case 2:
			at := r.IntN(len(part))
			part = part[:at] + strings.Repeat("\r\n", r.IntN(3)) + strings.Repeat("\n", r.IntN(2)) + part[at:]
		case 3:
			part = strings.Repeat("\n", r.IntN(4)) + string([]byte{"ab\n\r=%"[r.IntN(6)]})
		}
		b.WriteString(part)
	}
	return b.String()
}

func checkStream(t *testing.T, r *rand.Rand, s *Set, text string) {
	t.Helper()
	want := naive(s, text)
	if got := s.Redact(text); got != want {
		t.Fatalf("Redact(%q) is %q, want %q", text, got, want)
	}
	var exact, live bytes.Buffer
	st := s.Stream(&exact, &live)
	for rest := text; rest != ""; {
		n := 1 + r.IntN(len(rest))
		if r.IntN(2) == 0 {
			n = min(n, 1+r.IntN(3))
		}
		_, _ = st.Write([]byte(rest[:n]))
		rest = rest[n:]
		if r.IntN(8) == 0 {
			st.letGo()
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if exact.String() != want {
		t.Fatalf("stream of %q is %q, want %q", text, exact.String(), want)
	}
	_, err := io.Copy(io.Discard, s.Reader(iotestReader(text, r)))
	var found *Found
	if errors.As(err, &found) != (want != text) {
		t.Fatalf("reader of %q: %v", text, err)
	}
}

// iotestReader gives out a text in small pieces.
func iotestReader(text string, r *rand.Rand) io.Reader {
	pr, pw := io.Pipe()
	sizes := rand.New(rand.NewPCG(r.Uint64(), 1))
	go func() {
		for text != "" {
			n := min(len(text), 1+sizes.IntN(5))
			_, _ = pw.Write([]byte(text[:n]))
			text = text[n:]
		}
		_ = pw.Close()
	}()
	return pr
}

func TestStreamIsNaive(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	for range 400 {
		var values []string
		for range 1 + r.IntN(3) {
			v := make([]byte, MinValue+r.IntN(20))
			for i := range v {
				v[i] = "ab\n\"%/ c"[r.IntN(2+r.IntN(7))]
			}
			v[len(v)-1] = 'x'
			values = append(values, string(v))
		}
		s := setOf(values...)
		for range 5 {
			checkStream(t, r, s, random(r, s))
		}
	}
}

func FuzzStream(f *testing.F) {
	f.Add("secret", "a secret\nc2VjcmV0", uint64(1))
	f.Add("aaaa", "aaaaaaaa\r\n\r\naaa", uint64(2))
	f.Fuzz(func(t *testing.T, value, text string, seed uint64) {
		if len(bytes.TrimRight([]byte(value), "\r\n")) < MinValue {
			return
		}
		checkStream(t, rand.New(rand.NewPCG(seed, 0)), setOf(value), text)
	})
}

const key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7\nVJTUt9Us8cKjMzEfYyjiWA4R4hgDa5Ca\n-----END PRIVATE KEY-----\n"

// TestEncodings: whatever a usual program makes of a value is masked, wherever it
// stands.
func TestEncodings(t *testing.T) {
	for _, value := range []string{"hunter2!", "p@ss w/ \"quotes\" & <tags>\\ 'x' $y", "ghp_0123456789abcdefghijklmnopqrstuvwxyz", "äöü€", key, strings.Repeat("long-", 100)} {
		s := setOf(value)
		v := strings.TrimRight(value, "\n")
		asJSON, _ := json.Marshal("user:" + v)
		forms := map[string]string{
			"raw": v, "raw at the end": value, "terminal": strings.ReplaceAll(value, "\n", "\r\n"),
			"json": string(asJSON), "query": url.QueryEscape(v), "path": url.PathEscape(v),
			"lower": lower(url.QueryEscape(v)), "hex": hex.EncodeToString([]byte(value)),
			"HEX": fmt.Sprintf("%X", value), "go": fmt.Sprintf("%q", v),
		}
		for before := range 4 {
			for after := range 4 {
				text := strings.Repeat("#", before) + v + strings.Repeat("#", after)
				for name, enc := range map[string]*base64.Encoding{"std": base64.StdEncoding, "raw std": base64.RawStdEncoding,
					"url": base64.URLEncoding, "raw url": base64.RawURLEncoding} {
					coded := enc.EncodeToString([]byte(text))
					forms[fmt.Sprint(name, before, after)] = coded
					forms[fmt.Sprint(name, before, after, " wrapped")] = wrap(coded, 76)
					forms[fmt.Sprint(name, before, after, " in a terminal")] = wrap(coded, 76-before)
				}
			}
		}
		for name, form := range forms {
			got := s.Redact("<" + form + ">")
			if !strings.Contains(got, Mask) || len(got) > 24 {
				t.Errorf("%s of %q: %q becomes %q", name, value, form, got)
			}
			if s.Find([]byte(form)) != "S0" {
				t.Errorf("%s of %q is not found", name, value)
			}
		}
	}
	line := strings.Split(key, "\n")[2]
	if got := setOf(key).Redact("grep: " + line); got != "grep: ***" {
		t.Errorf("a line of a key: %q", got)
	}
}

func lower(s string) string {
	b := []byte(s)
	for i := range b {
		if i > 1 && b[i-2] == '%' || i > 0 && b[i-1] == '%' {
			b[i] |= 0x20
		}
	}
	return string(b)
}

func wrap(s string, width int) string {
	var b strings.Builder
	for len(s) > width {
		b.WriteString(s[:width] + "\r\n")
		s = s[width:]
	}
	return b.String() + s
}

// TestLive: who watches sees a prompt, the exact writer never a part of a value.
func TestLive(t *testing.T) {
	var exact, live bytes.Buffer
	st := setOf("password").Stream(&exact, &live)
	_, _ = st.Write([]byte("pass"))
	if live.Len()+exact.Len() != 0 {
		t.Fatalf("shown at once: %q %q", &live, &exact)
	}
	st.letGo()
	_, _ = st.Write([]byte("word, pass"))
	if live.String() != "pass***, " || exact.String() != "***, " {
		t.Fatalf("%q %q", &live, &exact)
	}
	_ = st.Close()
	if live.String() != "pass***, pass" || exact.String() != "***, pass" {
		t.Fatalf("at the end: %q %q", &live, &exact)
	}
	_, _ = st.Write([]byte("late"))
	if strings.Contains(live.String()+exact.String(), "late") {
		t.Error("written to after Close")
	}
}

// TestLog: a line is seen to its end, and no more than three bytes of a value.
func TestLog(t *testing.T) {
	var log bytes.Buffer
	st := setOf("password").Log(&log)
	for _, step := range [][2]string{{"port 7\n", "port 7\n"}, {"a pas", "port 7\na pas"}, {"sword", "port 7\na pas***"},
		{" passw", "port 7\na pas*** "}, {"x", "port 7\na pas*** passwx"}} {
		_, _ = st.Write([]byte(step[0]))
		st.letGo()
		if log.String() != step[1] {
			t.Fatalf("after %q: %q", step[0], &log)
		}
	}
	_, _ = st.Write([]byte("passwor"))
	_ = st.Close()
	if want := "port 7\na pas*** passwxpasswor"; log.String() != want {
		t.Errorf("at the end: %q", &log)
	}
}

func TestNoSecrets(t *testing.T) {
	var s *Set
	r := strings.NewReader("x")
	if NewSet(nil) != nil || s.Redact("text") != "text" || s.Find([]byte("text")) != "" || s.Reader(r) != io.Reader(r) {
		t.Error("a nil set does something")
	}
}

func BenchmarkStream(b *testing.B) {
	s := setOf("ghp_0123456789abcdefghijklmnopqrstuvwxyz", key, strings.Repeat("long-", 100))
	text := []byte(strings.Repeat("ok  \tgithub.com/git-env/git-env/internal/secret\t0.123s\n", 1000))
	st := s.Stream(io.Discard, io.Discard)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		_, _ = st.Write(text)
	}
}
