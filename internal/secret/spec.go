package secret

import (
	"errors"
	"path"
	"strings"
)

// Dir is where secrets that are files appear inside.
const Dir = "/run/secrets"

// Spec says what a secret is called inside and where its value is.
type Spec struct {
	// Name is that of a variable or, with File, of a file in Dir.
	Name string `json:"name"`
	File bool   `json:"file,omitempty"`
	// Scheme is "env", "file", "cmd", "op" or "vault", Ref what follows "://".
	Scheme string `json:"scheme"`
	Ref    string `json:"ref"`
	// Project marks one that a file of the repository asks for.
	Project bool `json:"project,omitempty"`
}

// maxName bounds a name in bytes.
const maxName = 64

// Parse reads NAME=<reference> or /run/secrets/<name>=<reference>. Errors read as
// the end of a sentence that begins with what was read.
func Parse(s string) (Spec, error) {
	target, where, ok := strings.Cut(s, "=")
	if !ok {
		return Spec{}, errors.New("not NAME=<where>, such as TOKEN=env://TOKEN or /run/secrets/key=file://~/.config/key")
	}
	var spec Spec
	if dir, name := path.Split(target); dir == Dir+"/" {
		spec.Name, spec.File = name, true
	} else {
		spec.Name = target
	}
	if !validName(spec.Name, spec.File) {
		return Spec{}, errors.New("not the name of a variable, and not that of a file directly below " + Dir + "/")
	}
	if spec.Scheme, spec.Ref, ok = strings.Cut(where, "://"); !ok {
		// Not quoted: it may be the value itself.
		return Spec{}, errors.New("no reference, which begins with env://, file://, cmd://, op:// or vault://; the value itself does not belong here")
	}
	return spec, spec.check()
}

// check looks at the reference alone.
func (s Spec) check() error {
	bad := strings.ContainsRune(s.Ref, 0)
	switch s.Scheme {
	case "env":
		if bad || !validName(s.Ref, false) {
			return errors.New("env:// names a variable, such as env://TOKEN")
		}
	case "file":
		if bad || !path.IsAbs(s.Ref) && !strings.HasPrefix(s.Ref, "~/") {
			return errors.New("file:// names a file by its absolute path or by one below ~/, such as file:///etc/key or file://~/.config/key")
		}
	case "cmd":
		if bad || strings.TrimSpace(s.Ref) == "" {
			return errors.New("cmd:// is followed by a line of shell, such as cmd://pass show token")
		}
	case "op":
		if n := strings.Count(s.Ref, "/"); bad || n < 2 || strings.Contains("/"+s.Ref+"/", "//") {
			return errors.New("op:// names a vault, an item and a field, such as op://team/github/token")
		}
	case "vault":
		at, field, ok := strings.Cut(s.Ref, "#")
		if bad || !ok || at == "" || field == "" || strings.HasPrefix(at, "-") {
			return errors.New("vault:// names a path and a field, such as vault://secret/app#token")
		}
	default:
		return errors.New("'" + s.Scheme + "://' is no kind of reference: env://, file://, cmd://, op:// and vault:// are")
	}
	return nil
}

func validName(s string, file bool) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_':
		case c >= '0' && c <= '9':
			if i == 0 && !file {
				return false
			}
		case c == '-', c == '.':
			if i == 0 || !file {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// Target is what the secret is inside: the name of a variable or the path of a
// file.
func (s Spec) Target() string {
	if s.File {
		return Dir + "/" + s.Name
	}
	return s.Name
}

// Reference is where the value is.
func (s Spec) Reference() string { return s.Scheme + "://" + s.Ref }

// String is the Spec as Parse reads it.
func (s Spec) String() string { return s.Target() + "=" + s.Reference() }

// NeedsTrust says why a repository's own file may not ask for this without the
// user's consent; "" when it may.
func (s Spec) NeedsTrust() string {
	switch s.Scheme {
	case "file":
		return "reads a file of this machine"
	case "cmd":
		return "runs a command on this machine"
	case "op", "vault":
		return "asks your password store"
	}
	return ""
}
