package devcontainer

import (
	"errors"
	"strings"
)

// mountSpec is a mount as Docker's --mount describes it.
type mountSpec struct {
	kind, source, target string
	readOnly             bool
}

// parseMount takes "source=…,target=…,type=bind" apart.
func parseMount(s string) (mountSpec, error) {
	m := mountSpec{kind: "volume"}
	for part := range strings.SplitSeq(s, ",") {
		k, v, valued := strings.Cut(part, "=")
		switch strings.ToLower(k) {
		case "type":
			m.kind = v
		case "source", "src":
			m.source = v
		case "target", "destination", "dst":
			m.target = v
		case "readonly", "ro":
			m.readOnly = !valued || v == "true" || v == "1"
		case "consistency", "bind-propagation", "volume-nocopy", "external":
		default:
			return m, errors.New("what is " + k + "?")
		}
	}
	return m, nil
}

func (n node) mounts() error {
	list, err := n.list()
	if err != nil {
		return err
	}
	for _, e := range list {
		if err := e.mount(); err != nil {
			return err
		}
	}
	return nil
}

// mount takes a string, or an object with the same parts.
func (n node) mount() error {
	text := ""
	if n.value.Value.Kind() == '{' {
		members, err := n.members()
		if err != nil {
			return err
		}
		var parts []string
		for _, m := range members {
			if b, err := m.boolean(); err == nil {
				if b {
					parts = append(parts, m.name)
				}
				continue
			}
			s, err := m.text()
			if err != nil {
				return err
			}
			parts = append(parts, m.name+"="+s)
		}
		text = strings.Join(parts, ",")
	} else {
		var err error
		if text, err = n.text(); err != nil {
			return err
		}
	}
	x, err := n.expand(text, false)
	if err != nil {
		return err
	}
	m, err := parseMount(x.text)
	if err != nil {
		return n.bad("%w", err)
	}
	return n.setMount(m, x.personal)
}

// setMount makes a mount of this machine's files one of an environment, and a
// volume a cache. As in Docker they can be written unless told otherwise.
func (n node) setMount(m mountSpec, personal bool) error {
	switch {
	case m.target == "" || strings.ContainsRune(m.source+m.target, ':'):
		return n.bad("not a mount with a source and a target")
	case m.kind == "bind" && m.source != "":
		text := m.source + ":" + m.target
		if !m.readOnly {
			text += ":rw"
		}
		return n.set("env.mount", expanded{text: text, personal: personal})
	case m.kind == "volume" && m.readOnly:
		return n.bad("a volume that cannot be written is of no use here")
	case m.kind == "volume":
		text := m.target
		if m.source != "" {
			text = m.source + ":" + m.target
		}
		return n.set("env.cache", expanded{text: text, personal: personal})
	}
	return n.bad("mounts of type %q are not made here, only bind and volume", m.kind)
}
