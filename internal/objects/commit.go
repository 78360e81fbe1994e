package objects

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

func (c *Commit) encode(idLen int) ([]byte, error) {
	for _, id := range append([]string{c.Tree}, c.Parents...) {
		if len(id) != idLen || !isID(id) {
			return nil, fmt.Errorf("invalid id '%s' in commit", id)
		}
	}
	for _, who := range []string{c.Author, c.Committer} {
		if who == "" || strings.ContainsAny(who, "\n\x00") {
			return nil, fmt.Errorf("invalid identity %q in commit", who)
		}
	}
	if strings.ContainsRune(c.Message, 0) {
		return nil, errors.New("a NUL byte in a commit message is not allowed")
	}
	if n := len(c.Extra); n > 0 && (c.Extra[n-1] != '\n' || bytes.Contains(c.Extra, []byte("\n\n"))) {
		return nil, errors.New("malformed extra headers in commit")
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "tree %s\n", c.Tree)
	for _, p := range c.Parents {
		fmt.Fprintf(&b, "parent %s\n", p)
	}
	fmt.Fprintf(&b, "author %s\ncommitter %s\n%s\n%s", c.Author, c.Committer, c.Extra, c.Message)
	return b.Bytes(), nil
}

func parseCommit(data []byte) (*Commit, error) {
	c := &Commit{}
	for len(data) > 0 {
		line, rest, _ := bytes.Cut(data, []byte("\n"))
		data = rest
		if len(line) == 0 {
			c.Message = string(data)
			break
		}
		key, value, _ := strings.Cut(string(line), " ")
		switch {
		case key == "tree" && c.Tree == "":
			c.Tree = value
		case key == "parent" && c.Author == "":
			c.Parents = append(c.Parents, value)
		case key == "author" && c.Author == "":
			c.Author = value
		case key == "committer" && c.Committer == "":
			c.Committer = value
		default:
			c.Extra = append(append(c.Extra, line...), '\n')
		}
	}
	if !isID(c.Tree) {
		return nil, errors.New("malformed commit")
	}
	return c, nil
}
