package conversion

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// A Rule says how a file is converted. Rules of a Tree with the same effect are
// the same pointer.
type Rule struct {
	digest string
	// Filter: a filter of the configuration takes part, which may look at the
	// path.
	Filter bool
}

// Key tells apart what a blob at path becomes by rules that are not the same.
// It is fit for a file name.
func (r *Rule) Key(path string) string {
	h := sha256.New()
	h.Write([]byte(r.digest))
	if r.Filter {
		h.Write([]byte(path))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// names are the attributes that decide, in the order of values.
func names() []string {
	return []string{"text", "crlf", "eol", "ident", "filter", "working-tree-encoding"}
}

// values are what git check-attr says about them.
type values [6]string

const (
	unspecified = "unspecified"
	isSet       = "set"
	isUnset     = "unset"
)

// effect is what values come to with a configuration. The zero effect converts
// nothing.
type effect struct {
	crlf     string // how LF becomes CRLF: "text", "auto" or not at all
	ident    bool
	filter   string
	command  filter
	encoding string
}

// effect follows git's convert_attrs. What it lets through needlessly is
// converted to what it was.
func (c *Config) effect(v values) effect {
	e := effect{crlf: c.crlf(v), ident: v[3] == isSet}
	if f, ok := c.filters[v[4]]; ok && (f.smudge != "" || f.process != "" || f.required == "true") {
		e.filter, e.command = v[4], f
		e.command.clean = "" // has no say in what is written
	}
	if v[5] != unspecified {
		e.encoding = v[5]
	}
	return e
}

// crlf is "text" or "auto" when line ends may become CRLF, else "".
func (c *Config) crlf(v values) string {
	kind := textKind(v[0])
	if kind == "" {
		kind = textKind(v[1])
	}
	switch {
	case kind == "binary" || v[2] == "lf":
		return ""
	case v[2] == "crlf" && kind == "auto":
		return "auto"
	case v[2] == "crlf":
		return "text"
	case kind == "" && c.autocrlf == "true":
		return "auto"
	case (kind == "text" || kind == "auto") && c.textIsCRLF():
		return kind
	}
	return ""
}

func textKind(v string) string {
	switch v {
	case isSet:
		return "text"
	case isUnset:
		return "binary"
	case "auto", "input":
		return v
	}
	return ""
}

func (e effect) digest() string {
	h := sha256.New()
	fmt.Fprintf(h, "1\x00%q", fmt.Sprint(e.crlf, "\x00", e.ident, "\x00", e.filter, "\x00",
		e.command.smudge, "\x00", e.command.process, "\x00", e.command.required, "\x00", e.encoding))
	return string(h.Sum(nil))
}
