package devcontainer

import (
	"path"
	"regexp"
	"strings"

	"github.com/git-env/git-env/internal/settings"
)

// workspace is where the tree is inside.
const workspace = "/workspace"

var reference = regexp.MustCompile(`\$\{([A-Za-z]+)(?::([^}]*))?\}`)

// expanded is a string whose references were replaced.
type expanded struct {
	text string
	// personal says that something of the user's machine is in it, late that a
	// variable of the image is still to be put in.
	personal, late bool
}

// expand replaces the references in a string. Only the variables of a remoteEnv
// may refer to those of the container.
func (n node) expand(s string, remote bool) (expanded, error) {
	var out expanded
	var failed error
	out.text = reference.ReplaceAllStringFunc(s, func(ref string) string {
		m := reference.FindStringSubmatch(ref)
		name, arg := m[1], m[2]
		value, def, _ := strings.Cut(arg, ":")
		switch name {
		case "localEnv", "env":
			out.personal = true
			if v, ok := lookup(n.p.local.Environ, value); ok {
				return v
			}
			return def
		case "containerEnv":
			if v, ok := lookup(n.p.vars, value); ok && remote {
				return v
			}
			if !remote {
				failed = n.bad("%s can only be used in remoteEnv", ref)
				return ""
			}
			out.late = true
			return ref
		case "localWorkspaceFolder", "localWorkspaceFolderBasename":
			if n.p.local.WorkTree == "" {
				failed = n.bad("%s: there is no work tree", ref)
				return ""
			}
			out.personal = true
			if name == "localWorkspaceFolder" {
				return n.p.local.WorkTree
			}
			return path.Base(n.p.local.WorkTree)
		case "containerWorkspaceFolder":
			return n.p.workdir
		case "containerWorkspaceFolderBasename":
			return path.Base(n.p.workdir)
		case "devcontainerId":
			return n.p.local.ID
		}
		return ref // a variable of a shell, for instance
	})
	return out, failed
}

// ExpandImage puts the variables of an image into a value of remoteEnv.
func ExpandImage(value string, image []string) string {
	return reference.ReplaceAllStringFunc(value, func(ref string) string {
		m := reference.FindStringSubmatch(ref)
		if m[1] != "containerEnv" {
			return ref
		}
		name, def, _ := strings.Cut(m[2], ":")
		if v, ok := lookup(image, name); ok {
			return v
		}
		return def
	})
}

func lookup(environ []string, name string) (string, bool) {
	for i := len(environ) - 1; i >= 0; i-- {
		if k, v, ok := strings.Cut(environ[i], "="); ok && k == name {
			return v, true
		}
	}
	return "", false
}

var onlyLocal = regexp.MustCompile(`^\$\{(?:localEnv|env):([A-Za-z_][A-Za-z0-9_]*)\}$`)

// secretName is how variables are called whose value is nobody's business.
var secretName = regexp.MustCompile(`(?i)(^|_)(token|secret|password|passwd|credentials?|api_?key|access_?key|private_?key)(_|$)`)

// variable sets a variable. One that is called like a secret and only passes on
// one of the user's is made a secret, so that its value is not recorded.
func (n node) variable(name string, remote bool) error {
	if name == "" || strings.ContainsAny(name, "=\x00") {
		return n.bad("not the name of a variable")
	}
	s, err := n.scalar()
	if err != nil {
		return err
	}
	if m := onlyLocal.FindStringSubmatch(s); m != nil && secretName.MatchString(name) && n.has(m[1]) {
		return n.set("env.secret", expanded{text: name + "=env://" + m[1]})
	}
	x, err := n.expand(s, remote)
	if err != nil {
		return err
	}
	if !remote {
		n.p.vars = append(n.p.vars, name+"="+x.text)
	}
	x.text = name + "=" + x.text
	return n.set("env.var", x)
}

// has says whether the user has a variable, and a value for it.
func (n node) has(name string) bool {
	v, _ := lookup(n.p.local.Environ, name)
	return v != ""
}

// set says a setting.
func (n node) set(key string, x expanded) error {
	e := n.entry()
	e.Key, e.Value, e.Personal, e.Late = strings.ToLower(key), x.text, x.personal, x.late
	if _, err := settings.Check(e); err != nil {
		return err
	}
	n.p.out.Entries = append(n.p.out.Entries, e)
	return nil
}

// setText says a setting by a string of the file.
func (n node) setText(key string) error {
	s, err := n.scalar()
	if err != nil {
		return err
	}
	return n.setString(key, s)
}

func (n node) setString(key, s string) error {
	x, err := n.expand(s, false)
	if err != nil {
		return err
	}
	return n.set(key, x)
}
