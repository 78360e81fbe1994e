package settings

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/git-env/git-env/internal/secret"
)

// Kind is a kind of value.
type Kind struct {
	// Name is what the reference page calls it.
	Name string
	// parse makes a Go value of the text, or says what the text is not: "not …".
	parse func(string) (any, error)
	// bare says that a key without "=" has a value, as git's booleans do.
	bare bool
	// private marks one whose text is not repeated when it is wrong: it may be a
	// secret itself.
	private bool
}

// Parse makes a Go value of a text: string, int64 (sizes, counts; 0 for no
// limit), float64 (processors), bool, time.Duration, or one of the types of this
// package.
func (k Kind) Parse(s string) (any, error) {
	if strings.ContainsRune(s, 0) {
		return nil, errors.New("has a NUL byte in it")
	}
	return k.parse(s)
}

// shortestWatchdog is what a busy machine may take for anything.
const shortestWatchdog = time.Second

// Variable is a variable of an environment.
type Variable struct{ Name, Value string }

// String is the variable as a process gets it.
func (v Variable) String() string { return v.Name + "=" + v.Value }

// Volume is a directory inside that outlives the container.
type Volume struct {
	// Name is "" for one that is known by its target.
	Name   string
	Target string
}

// Mount is a file or directory of the host.
type Mount struct {
	// Source is absolute, or begins with "~/", or is relative to the top of the
	// repository's work tree.
	Source, Target string
	Writable       bool
}

// Port is a port inside, and the one of the host's loopback address that is asked
// for; 0 for any.
type Port struct{ Host, Inside uint16 }

// OpenPort is a port of this machine; AllPorts stands for each.
type OpenPort int

// AllPorts is every port.
const AllPorts OpenPort = -1

// Server is the address of a resolver.
type Server netip.AddrPort

// HostPort is whom an environment may talk to.
type HostPort struct {
	// Host is a name, "*." and a name, an address, or a block of addresses.
	Host string
	Port uint16 // 0 for all
}

func simple(name string, parse func(string) (any, error)) Kind { return Kind{Name: name, parse: parse} }

func image() Kind {
	return simple("image", func(s string) (any, error) {
		if strings.HasPrefix(s, "-") || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return nil, errors.New("not an image, which reads [<registry>/]<name>[:<tag>], or host")
		}
		return s, nil
	})
}

func absolute() Kind {
	return simple("path", func(s string) (any, error) {
		if !path.IsAbs(s) {
			return nil, errors.New("not an absolute path")
		}
		return path.Clean(s), nil
	})
}

func socket() Kind {
	return simple("path", func(s string) (any, error) {
		s = strings.TrimPrefix(s, "unix://")
		if !filepath.IsAbs(s) {
			return nil, errors.New("not the absolute path of a socket")
		}
		return s, nil
	})
}

func command() Kind {
	return simple("command", func(s string) (any, error) {
		if strings.TrimSpace(s) == "" {
			return nil, errors.New("not a command")
		}
		return s, nil
	})
}

func user() Kind {
	return simple("user", func(s string) (any, error) {
		name, group, grouped := strings.Cut(s, ":")
		if !isUser(name) || grouped && !isUser(group) {
			return nil, errors.New("not a user, which reads <name or number>[:<group>]")
		}
		return s, nil
	})
}

func isUser(s string) bool {
	return s != "" && s[0] != '-' && len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool {
		return !isWordRune(r) && r != '-' && r != '.'
	})
}

func isWordRune(r rune) bool {
	return r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}

func choice(words ...string) Kind {
	return simple("one of "+strings.Join(words, ", "), func(s string) (any, error) {
		if i := slices.IndexFunc(words, func(w string) bool { return strings.EqualFold(w, s) }); i >= 0 {
			return words[i], nil
		}
		return nil, fmt.Errorf("not %s or %s", strings.Join(words[:len(words)-1], ", "), words[len(words)-1])
	})
}

// switched takes git's booleans, and auto for on.
func switched() Kind {
	k := simple("bool", func(s string) (any, error) {
		switch strings.ToLower(s) {
		case "on", "true", "yes", "1", "auto":
			return true, nil
		case "off", "false", "no", "0":
			return false, nil
		}
		return nil, errors.New("not on or off")
	})
	k.bare = true
	return k
}

func size() Kind {
	return simple("size", func(s string) (any, error) { return wrapAny(ParseSize(s)) })
}

// limit is a size, where 0 means that there is no limit.
func limit() Kind {
	return simple("size or unlimited", func(s string) (any, error) {
		if unlimited(s) {
			return int64(0), nil
		}
		n, err := ParseSize(s)
		if err != nil {
			return nil, fmt.Errorf("%w, or unlimited", err)
		}
		return n, nil
	})
}

func unlimited(s string) bool { return s == "0" || strings.EqualFold(s, "unlimited") }

func wrapAny[T any](v T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}

// ParseSize reads a number of bytes with git's suffixes k, m and g, and t.
func ParseSize(s string) (int64, error) {
	mult := int64(1)
	num := s
	if n := len(s); n > 0 {
		if i := slices.Index([]byte("kmgt"), s[n-1]|0x20); i >= 0 {
			mult = 1 << (10 * (i + 1))
			num = s[:n-1]
		}
	}
	v, err := strconv.ParseInt(num, 10, 64)
	if err != nil || v <= 0 || v > (1<<62)/mult {
		return 0, errors.New("not a size such as 100m")
	}
	return v * mult, nil
}

// most is more processes or processors than any machine has.
const most = 1 << 22

func count() Kind {
	return simple("count or unlimited", func(s string) (any, error) {
		if unlimited(s) {
			return int64(0), nil
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n <= 0 || n > most {
			return nil, errors.New("not a number such as 512, or unlimited")
		}
		return n, nil
	})
}

func cpus() Kind {
	return simple("processors or unlimited", func(s string) (any, error) {
		if unlimited(s) {
			return float64(0), nil
		}
		n, err := strconv.ParseFloat(s, 64)
		// The kernel's share is a hundredth of a processor at least.
		if err != nil || !(n >= 0.01 && n <= most) || strings.ContainsAny(s, "xXpP_") {
			return nil, errors.New("not a number of processors such as 2 or 0.5, or unlimited")
		}
		return n, nil
	})
}

// duration takes durations above 0 and of least at the least.
func duration(least time.Duration) Kind {
	return simple("duration", func(s string) (any, error) {
		d, err := time.ParseDuration(s)
		switch {
		case err != nil || d <= 0:
			return nil, errors.New("not a duration such as 90s or 10m")
		case d < least:
			return nil, fmt.Errorf("not a duration of %s or more", least)
		}
		return d, nil
	})
}

// offOr lets a duration be off, which is 0.
func offOr(k Kind) Kind {
	return simple(k.Name+" or off", func(s string) (any, error) {
		switch strings.ToLower(s) {
		case "off", "false", "no", "0":
			return time.Duration(0), nil
		}
		v, err := k.parse(s)
		if err != nil {
			return nil, fmt.Errorf("%w, or off", err)
		}
		return v, nil
	})
}

func variable() Kind {
	return simple("NAME=value", func(s string) (any, error) {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return nil, errors.New("not NAME=value")
		}
		return Variable{name, value}, nil
	})
}

func secretRef() Kind {
	k := simple("NAME=where", func(s string) (any, error) { return wrapAny(secret.Parse(s)) })
	k.private = true
	return k
}

func volume() Kind {
	return simple("[name:]path", func(s string) (any, error) {
		name, target, named := strings.Cut(s, ":")
		if !named {
			name, target = "", s
		}
		if named && !isVolume(name) || !path.IsAbs(target) || path.Clean(target) == "/" {
			return nil, errors.New("not an absolute path, or <name>:<absolute path>")
		}
		return Volume{name, path.Clean(target)}, nil
	})
}

// isVolume says whether name can be that of a directory, and is not "..".
func isVolume(name string) bool { return isUser(name) && name[0] != '.' }

func mount() Kind {
	return simple("source:target[:rw]", func(s string) (any, error) {
		parts := strings.Split(s, ":")
		m := Mount{}
		if n := len(parts); n == 3 {
			switch parts[2] {
			case "ro":
			case "rw":
				m.Writable = true
			default:
				return nil, errors.New("not <source>:<target>[:ro|:rw]")
			}
		} else if n != 2 {
			return nil, errors.New("not <source>:<target>[:ro|:rw]")
		}
		m.Source, m.Target = parts[0], parts[1]
		if m.Source == "" || strings.HasPrefix(m.Source, "~") && !strings.HasPrefix(m.Source, "~/") || !path.IsAbs(m.Target) {
			return nil, errors.New("not <source>:<absolute path>, where the source is absolute, begins with ~/, or is relative to the top of the repository")
		}
		m.Target = path.Clean(m.Target)
		return m, nil
	})
}

func port() Kind {
	return simple("[host port:]port", func(s string) (any, error) { return wrapAny(ParsePort(s)) })
}

// ParsePort reads a port as env.port has it.
func ParsePort(s string) (Port, error) {
	host, inside, two := strings.Cut(s, ":")
	if !two {
		host, inside = "0", s
	}
	h, herr := strconv.ParseUint(host, 10, 16)
	i, ierr := strconv.ParseUint(inside, 10, 16)
	if herr != nil || ierr != nil || i == 0 || two && h == 0 {
		return Port{}, errors.New("not a port such as 3000 or 8080:3000")
	}
	return Port{uint16(h), uint16(i)}, nil
}

func openPort() Kind {
	return simple("port or *", func(s string) (any, error) {
		if s == "*" {
			return AllPorts, nil
		}
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil || n == 0 {
			return nil, errors.New("not a port such as 3128, or *")
		}
		return OpenPort(n), nil
	})
}

func server() Kind {
	return simple("address[:port]", func(s string) (any, error) {
		if a, err := netip.ParseAddr(s); err == nil {
			return Server(netip.AddrPortFrom(a, 53)), nil
		}
		a, err := netip.ParseAddrPort(s)
		if err != nil || a.Port() == 0 {
			return nil, errors.New("not an address such as 192.0.2.53, 192.0.2.53:5353 or [2001:db8::53]:5353")
		}
		return Server(a), nil
	})
}

func hostPort() Kind {
	return simple("host[:port]", func(s string) (any, error) {
		host, p := s, uint64(0)
		if i := strings.LastIndexByte(s, ':'); i >= 0 && (strings.Count(s, ":") == 1 || strings.HasPrefix(s, "[")) && !strings.HasSuffix(s, "]") {
			var err error
			if p, err = strconv.ParseUint(s[i+1:], 10, 16); err != nil || p == 0 {
				return nil, errors.New("not a host with a port, such as example.com:443")
			}
			host = s[:i]
		}
		host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
		if !isHost(host) {
			return nil, errors.New("not a host such as example.com, *.example.com, 192.0.2.1 or 192.0.2.0/24, without a scheme")
		}
		return HostPort{host, uint16(p)}, nil
	})
}

func isHost(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	if _, err := netip.ParsePrefix(s); err == nil {
		return true
	}
	name := strings.TrimPrefix(s, "*.")
	if len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.ContainsFunc(label, func(r rune) bool { return !isWordRune(r) && r != '-' }) {
			return false
		}
	}
	return true
}

// checkService says whether name can be the name of a service: what a host is
// called.
func checkService(name string) error {
	if len(name) > 63 || !isHost(name) || strings.ContainsAny(name, ".*") || name != strings.ToLower(name) {
		return errors.New("the name of a service is made of a to z, 0 to 9, '-' and '_'")
	}
	return nil
}
