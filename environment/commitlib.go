package environment

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/internal/objects"
)

// identity is who a commit is by, as git writes it.
type identity struct{ author, committer string }

// identity asks git who the caller is. Someone who never told git gets a plain
// identity rather than a lost commit.
func (e *Engine) identity(ctx context.Context, c api.Caller) (*identity, error) {
	g := e.store.Git.WithEnv(c.Environ...)
	var id identity
	for name, dst := range map[string]*string{"GIT_AUTHOR_IDENT": &id.author, "GIT_COMMITTER_IDENT": &id.committer} {
		line, err := g.Line(ctx, "var", name)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			line = objects.Signature("git env", "git-env@localhost", now())
		}
		*dst = line
	}
	return &id, nil
}

// cleanMessage makes a commit message end in one newline, as git does.
func cleanMessage(m string) string {
	m = strings.ToValidUTF8(strings.TrimSpace(strings.ReplaceAll(m, "\x00", "")), "\uFFFD")
	if m == "" {
		m = "Changes"
	}
	return m + "\n"
}

// subject is the first line of a message, cut to what fits a log line.
func subject(m string) string {
	const limit = 72
	m, _, _ = strings.Cut(strings.TrimSpace(m), "\n")
	if utf8.RuneCountInString(m) > limit {
		m = string([]rune(m)[:limit-1]) + "…"
	}
	return m
}

// hasCRLF says whether a file has a line that ends in CRLF.
func hasCRLF(name string) (bool, error) {
	f, err := openData(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 64<<10)
	for {
		line, err := r.ReadSlice('\n')
		if n := len(line); n > 1 && line[n-1] == '\n' && line[n-2] == '\r' {
			return true, nil
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			if line[len(line)-1] == '\r' {
				return true, nil // perhaps; git decides
			}
			continue
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// crlfCommitted says whether the branch has a text file with CRLF at path, which
// git then keeps from automatic conversion.
func (v *Env) crlfCommitted(ctx context.Context, path string) (bool, error) {
	const limit = 64 << 20 // bytes that are looked at
	tip, err := v.e.store.Tip(ctx, v.st.Name)
	if err != nil {
		return false, err
	}
	r := v.e.store.Reader
	ent, err := r.Path(ctx, tip, path)
	if errors.Is(err, objects.ErrNotFound) || err == nil && ent.Mode != objects.ModeFile && ent.Mode != objects.ModeExec {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	size, err := r.Size(ctx, ent.ID)
	if err != nil || size > limit {
		return false, err
	}
	data, err := r.Bytes(ctx, ent.ID, limit)
	return textWithCRLF(data), err
}

// textWithCRLF tells as git does whether data is text with a CRLF in it.
func textWithCRLF(data []byte) bool {
	printable, odd, crlf := 0, 0, 0
	for i, c := range data {
		switch {
		case c == '\r' && i+1 < len(data) && data[i+1] == '\n':
			crlf++
		case c == '\r', c == 0:
			return false
		case c == '\n':
		case c == 0x7f:
			odd++
		case c < 0x20 && c != '\b' && c != '\t' && c != 0x1b && c != '\f':
			if c != 0x1a || i != len(data)-1 {
				odd++
			}
		default:
			printable++
		}
	}
	return crlf > 0 && printable>>7 >= odd
}

// discard removes a file that no longer matters; one that is gone is fine.
func discard(name string) { _ = os.Remove(name) }
