package devcontainer

import (
	"bytes"
	"strconv"

	"github.com/tailscale/hujson"

	"github.com/git-env/git-env/internal/settings"
)

// node is a value of the file and where it is.
type node struct {
	p     *parser
	path  string // "build.args"
	value hujson.Value
}

// member is a field of an object.
type member struct {
	name string
	node
}

func (n node) entry() settings.Entry {
	line := 1 + bytes.Count(n.p.file[:min(n.value.StartOffset, len(n.p.file))], []byte("\n"))
	return settings.Entry{Scope: settings.Project, Origin: n.p.origin, Line: line}
}

// bad says what is wrong with a field.
func (n node) bad(format string, args ...any) error {
	return n.entry().Errorf(n.path+": "+format, args...)
}

// isNull says whether it is null.
func (n node) isNull() bool { return n.value.Value.Kind() == 'n' }

// empty says whether a field asks for nothing.
func (n node) empty() bool {
	switch v := n.value.Value.(type) {
	case *hujson.Object:
		return len(v.Members) == 0
	case *hujson.Array:
		return len(v.Elements) == 0
	case hujson.Literal:
		return v.Kind() == 'n' || v.Kind() == 'f' || v.Kind() == '"' && v.String() == ""
	}
	return false
}

// text is a string as it is written.
func (n node) text() (string, error) {
	if lit, ok := n.value.Value.(hujson.Literal); ok && lit.Kind() == '"' {
		return lit.String(), nil
	}
	return "", n.bad("not a string")
}

// scalar is a string or a number as it is written.
func (n node) scalar() (string, error) {
	if lit, ok := n.value.Value.(hujson.Literal); ok && lit.Kind() == '0' {
		return string(lit), nil
	}
	s, err := n.text()
	if err != nil {
		return "", n.bad("not a string or a number")
	}
	return s, nil
}

func (n node) boolean() (bool, error) {
	switch n.value.Value.Kind() {
	case 't':
		return true, nil
	case 'f':
		return false, nil
	}
	return false, n.bad("not true or false")
}

// list returns the elements of an array.
func (n node) list() ([]node, error) {
	arr, ok := n.value.Value.(*hujson.Array)
	if !ok {
		return nil, n.bad("not a list")
	}
	var out []node
	for i, e := range arr.Elements {
		out = append(out, node{n.p, n.path + "[" + strconv.Itoa(i) + "]", e})
	}
	return out, nil
}

// members returns the fields of an object in the file's order.
func (n node) members() ([]member, error) {
	obj, ok := n.value.Value.(*hujson.Object)
	if !ok {
		return nil, n.bad("not an object")
	}
	var out []member
	for _, m := range obj.Members {
		lit, _ := m.Name.Value.(hujson.Literal)
		name := lit.String()
		path := name
		if n.path != "" {
			path = n.path + "." + name
		}
		v := m.Value
		v.StartOffset = m.Name.StartOffset // a mistake is where the field begins
		out = append(out, member{name, node{n.p, path, v}})
	}
	return out, nil
}
