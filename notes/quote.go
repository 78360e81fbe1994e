package notes

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Quote joins arguments to a command line that a shell would take apart again.
// Arguments of several lines stay so; those with control characters or without
// valid UTF-8 are written as $'…'.
func Quote(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		words[i] = quoteWord(a, i == 0)
	}
	return strings.Join(words, " ")
}

func quoteWord(s string, first bool) string {
	switch {
	case s == "":
		return "''"
	case !printable(s):
		return quoteANSI(s)
	case plainWord(s) && !(first && strings.Contains(s, "=")):
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// plainWord reports whether no shell gives a meaning to any character.
func plainWord(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c >= 0x80:
		case strings.IndexByte("_-./:,+@%=", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// printable reports whether safe would leave s as it is.
func printable(s string) bool {
	return utf8.ValidString(s) && string(safe([]byte(s))) == s
}

func quoteANSI(s string) string {
	var b strings.Builder
	b.WriteString("$'")
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\'' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == utf8.RuneError || r < 0x20 || r == 0x7f || hidden(r):
			for _, c := range []byte(s[i : i+n]) {
				fmt.Fprintf(&b, `\%03o`, c)
			}
		default:
			b.WriteRune(r)
		}
		i += n
	}
	b.WriteByte('\'')
	return b.String()
}
