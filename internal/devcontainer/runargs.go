package devcontainer

import (
	"path"
	"strings"
)

// option is an option of docker run.
type option struct {
	names []string
	bare  bool // it has no value
	take  func(n node, value string) error
}

func options() []option {
	return []option{
		{names: []string{"--memory", "-m"}, take: func(n node, v string) error {
			return n.setString("env.memory", strings.TrimSuffix(strings.ToLower(v), "b"))
		}},
		{names: []string{"--cpus"}, take: argument("env.cpus")},
		{names: []string{"--pids-limit"}, take: func(n node, v string) error {
			if v == "-1" {
				v = "unlimited"
			}
			return n.setString("env.pids", v)
		}},
		{names: []string{"--network", "--net"}, take: node.network},
		{names: []string{"--env", "-e"}, take: node.envArgument},
		{names: []string{"--user", "-u"}, take: argument("env.user")},
		{names: []string{"--publish", "-p"}, take: func(n node, v string) error {
			return n.setString("env.port", strings.TrimPrefix(strings.TrimPrefix(v, "127.0.0.1:"), "localhost:"))
		}},
		{names: []string{"--volume", "-v"}, take: node.volumeArgument},
		{names: []string{"--mount"}, take: func(n node, v string) error {
			x, err := n.expand(v, false)
			if err != nil {
				return err
			}
			m, err := parseMount(x.text)
			if err != nil {
				return n.bad("%w", err)
			}
			return n.setMount(m, x.personal)
		}},
		{names: []string{"--workdir", "-w"}, take: argument("env.workdir")},
		// The container is made and named by git env, and has an init process.
		{names: []string{"--name", "--hostname", "-h", "--label", "-l"}, take: unusedArgument},
		{names: []string{"--rm", "--init", "--interactive", "-i", "--tty", "-t", "-it", "--detach", "-d"}, bare: true, take: unusedArgument},
	}
}

func argument(key string) func(node, string) error {
	return func(n node, v string) error { return n.setString(key, v) }
}

func unusedArgument(n node, _ string) error {
	n.p.out.Unused = append(n.p.out.Unused, n.path)
	return nil
}

// runArgs takes options of docker run that have a meaning here, and refuses the
// others.
func (n node) runArgs() error {
	list, err := n.list()
	if err != nil {
		return err
	}
	for i := 0; i < len(list); i++ {
		e := list[i]
		word, err := e.text()
		if err != nil {
			return err
		}
		opt, value, attached := findOption(word)
		e.path = n.path + ": " + strings.SplitN(word, "=", 2)[0]
		if opt == nil {
			return e.bad("no such option of docker run has a meaning here%s", hintOut)
		}
		if !opt.bare && !attached {
			if i++; i == len(list) {
				return e.bad("its value is missing")
			}
			if value, err = list[i].text(); err != nil {
				return err
			}
		}
		if err := opt.take(e, value); err != nil {
			return err
		}
	}
	return nil
}

// findOption finds an option and the value that is in the same word.
func findOption(word string) (opt *option, value string, attached bool) {
	for _, o := range options() {
		for _, name := range o.names {
			short := len(name) == 2
			switch {
			case word == name:
				return &o, "", false
			case !o.bare && strings.HasPrefix(word, name+"="):
				return &o, word[len(name)+1:], true
			case short && !o.bare && strings.HasPrefix(word, name) && !strings.HasPrefix(word, "--"):
				return &o, word[2:], true
			}
		}
	}
	return nil, "", false
}

func (n node) network(v string) error {
	switch v {
	case "none", "host":
		return n.setString("env.network", v)
	case "bridge", "default":
		return n.setString("env.network", "full")
	}
	return n.bad("there is no network %q, only none, host and bridge", v)
}

func (n node) envArgument(v string) error {
	name, value, ok := strings.Cut(v, "=")
	if !ok { // passes on the user's own
		var set bool
		if value, set = lookup(n.p.local.Environ, name); !set {
			return nil
		}
		return n.set("env.var", expanded{text: name + "=" + value, personal: true})
	}
	x, err := n.expand(value, false)
	if err != nil {
		return err
	}
	x.text = name + "=" + x.text
	return n.set("env.var", x)
}

// volumeArgument takes "source:target[:options]".
func (n node) volumeArgument(v string) error {
	x, err := n.expand(v, false)
	if err != nil {
		return err
	}
	parts := strings.Split(x.text, ":")
	m := mountSpec{kind: "volume"}
	switch len(parts) {
	case 1:
		m.target = parts[0]
	case 2, 3:
		m.source, m.target = parts[0], parts[1]
	default:
		return n.bad("not <source>:<target>[:ro]")
	}
	if len(parts) == 3 {
		for o := range strings.SplitSeq(parts[2], ",") {
			m.readOnly = m.readOnly || o == "ro"
		}
	}
	if path.IsAbs(m.source) {
		m.kind = "bind"
	}
	return n.setMount(m, x.personal)
}
