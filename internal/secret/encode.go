package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"html"
	"strings"
	"unicode/utf8"
)

// needle is a text that must not be seen.
type needle struct {
	text []byte
	name int // index of the secret's name
	// wraps marks an encoding that programs break into lines.
	wraps bool
}

// needles lists what stands for a value: itself and its encodings. An encoding
// that could stand for other values too is left out.
func needles(value []byte, name int) []needle {
	value = bytes.TrimRight(value, "\r\n")
	if len(value) < MinValue {
		return nil
	}
	var out []needle
	seen := map[string]bool{}
	add := func(text string, wraps bool) {
		if len(text) >= MinValue && !seen[text] {
			seen[text] = true
			out = append(out, needle{[]byte(text), name, wraps})
		}
	}
	raw := string(value)
	for _, v := range lineForms(raw) {
		add(v, false)
		for _, e := range escapes(v) {
			add(e, false)
		}
		for _, e := range percents(v) {
			add(e, false)
		}
		for _, e := range base64s(v) {
			add(e, true)
		}
		add(hex.EncodeToString([]byte(v)), true)
		add(strings.ToUpper(hex.EncodeToString([]byte(v))), true)
	}
	for _, line := range keyLines(raw) {
		add(line, false)
	}
	return out
}

// lineForms are a value and, when it has several lines, what a terminal makes of
// it.
func lineForms(v string) []string {
	if !strings.Contains(v, "\n") || strings.Contains(v, "\r\n") {
		return []string{v}
	}
	return []string{v, strings.ReplaceAll(v, "\n", "\r\n")}
}

// minLine is how long a line of a key is for it to be masked by itself, in bytes.
const minLine = 16

// keyLines are the lines of a key in PEM: each is as good as random and tells a
// part of it. Lines of other values may be anything.
func keyLines(v string) []string {
	if !strings.Contains(v, "-----BEGIN ") {
		return nil
	}
	var out []string
	for line := range strings.Lines(v) {
		line = strings.TrimSpace(line)
		if len(line) >= minLine && !strings.HasPrefix(line, "-----") && !strings.ContainsAny(line, " :") {
			out = append(out, line)
		}
	}
	return out
}

// escapes are what a value looks like within quotes of JSON, a shell or HTML.
func escapes(v string) []string {
	var out []string
	if !utf8.ValidString(v) {
		return nil
	}
	if data, err := json.Marshal(v); err == nil {
		out = append(out, string(data[1:len(data)-1])) // with < > & as \u003c…
	}
	var plain bytes.Buffer
	enc := json.NewEncoder(&plain)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err == nil {
		text := strings.TrimSuffix(plain.String(), "\n")
		inner := text[1 : len(text)-1]
		out = append(out, inner, strings.ReplaceAll(inner, "/", `\/`))
	}
	out = append(out, strings.ReplaceAll(v, "'", `'\''`),
		strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`, "`", "\\`").Replace(v),
		html.EscapeString(v))
	return out
}

// percents are a value in URLs: programs differ in what they leave as it is, in
// the case of digits, and in what becomes of a space.
func percents(v string) []string {
	const (
		unreserved = "-._~"               // RFC 3986
		component  = unreserved + "!*'()" // encodeURIComponent
		segment    = unreserved + "$&+=:@"
		whole      = component + ";,/?:@&=+$#" // encodeURI
		path       = unreserved + "/"
	)
	var out []string
	for _, keep := range []string{unreserved, component, segment, whole, path, ""} {
		for _, digits := range []string{"0123456789ABCDEF", "0123456789abcdef"} {
			coded := percent(v, keep, digits)
			out = append(out, coded, strings.ReplaceAll(coded, "%20", "+"))
		}
	}
	return out
}

func percent(v, keep, digits string) string {
	var b strings.Builder
	for i := range len(v) {
		c := v[i]
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte(keep, c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(digits[c>>4])
		b.WriteByte(digits[c&15])
	}
	return b.String()
}

// base64s are what a value looks like in base64 wherever it stands in what was
// encoded: by itself or at the end, with and without padding, and in the middle at
// each of the three offsets, less the characters that its neighbours decide too.
func base64s(v string) []string {
	var out []string
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 {
			text := enc.EncodeToString(append(make([]byte, before), v...))
			first := (before*8 + 5) / 6 // characters with bits of what is before
			sure := (before + len(v)) * 8 / 6
			out = append(out, text[first:sure])
			if sure < len(text) {
				pad := strings.Repeat("=", 3-(before+len(v))%3)
				out = append(out, text[first:], text[first:]+pad)
			}
		}
	}
	return out
}
