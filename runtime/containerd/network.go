package containerd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/git-env/git-env/runtime"
	"github.com/git-env/git-env/runtime/network"
)

// labelNetwork keeps a container's rules for who attaches to it later.
const labelNetwork = "io.git-env.network"

// withNetwork gives a container a network namespace, or another's, or the host's.
func (b *Backend) withNetwork(spec *runtime.Spec) oci.SpecOpts {
	if spec.Network.Mode == network.Host {
		return oci.WithHostNamespace(specs.NetworkNamespace)
	}
	if spec.NetworkOf != "" {
		return b.withNetworkOf(spec.NetworkOf)
	}
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *specs.Spec) error {
		if s.Linux.Sysctl == nil {
			s.Linux.Sysctl = map[string]string{}
		}
		// No port of such a namespace is anybody else's.
		s.Linux.Sysctl["net.ipv4.ip_unprivileged_port_start"] = "0"
		return nil
	}
}

// withNetworkOf lets a container into the network namespace of a running one.
func (b *Backend) withNetworkOf(id string) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *specs.Spec) error {
		other, ok := b.running.Load(id)
		if !ok {
			return fmt.Errorf("container %s, whose network it is to have, is not running", id)
		}
		path := fmt.Sprintf("/proc/%d/ns/net", other.(*container).pid)
		return oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: path})(nil, nil, nil, s)
	}
}

// ownRules are the rules of the network that is a container's own to set up.
func ownRules(spec *runtime.Spec) network.Rules {
	if spec.NetworkOf != "" {
		return network.Rules{Mode: network.Host} // set up already
	}
	return spec.Network
}

// joinNetwork sets the network of a container up; nil for the host's.
func (b *Backend) joinNetwork(id string, pid int, rules network.Rules) (*network.Network, error) {
	if rules.Mode == network.Host {
		return nil, nil
	}
	opts := b.opts.Network
	opts.Warn = func(format string, args ...any) { b.warn("network of container "+id+": "+format, args...) }
	n, err := network.Attach(pid, rules, opts)
	return n, networkError(err)
}

// networkError names what the host lacks.
func networkError(err error) error {
	if errors.Is(err, network.ErrNoTUN) {
		return &runtime.MissingError{What: "TUN device", Detail: err.Error(), Hint: runtime.TUNHint}
	}
	return err
}

// startedNetwork is the network of a container that is being started: it is set
// up while the runtime starts the first process, which waits for requests.
type startedNetwork struct {
	net *network.Network
	err error
	up  chan struct{}
}

func (b *Backend) startNetwork(id string, pid int, rules network.Rules) *startedNetwork {
	s := &startedNetwork{up: make(chan struct{})}
	go func() {
		defer close(s.up)
		s.net, s.err = b.joinNetwork(id, pid, rules)
	}()
	return s
}

// wait returns the network; when the start failed, it is given up. It may be nil.
func (s *startedNetwork) wait(failed bool) (*network.Network, error) {
	if s == nil {
		return nil, nil
	}
	<-s.up
	if failed && s.net != nil {
		_ = s.net.Close()
	}
	return s.net, s.err
}

func encodeRules(rules network.Rules) string {
	text, err := json.Marshal(rules)
	if err != nil {
		return ""
	}
	return string(text)
}

// labelledRules are the rules that a container was started with; one from before
// there were any is on the host's network.
func labelledRules(labels map[string]string) (network.Rules, error) {
	text, ok := labels[labelNetwork]
	if !ok {
		return network.Rules{Mode: network.Host}, nil
	}
	var rules network.Rules
	if err := json.Unmarshal([]byte(text), &rules); err != nil {
		return rules, fmt.Errorf("rules of its network: %w", err)
	}
	return rules, nil
}

// Network implements runtime.Container.
func (c *container) Network() *network.Network { return c.network }

// namesFiles are the contents of hosts and resolv.conf. With a network of its own
// a container asks the resolver there, which knows the host's names too.
func namesFiles(spec *runtime.Spec) (hosts, resolv []byte) {
	const local = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	switch spec.Network.Mode {
	case network.Host:
		var err error
		if hosts, err = os.ReadFile("/etc/hosts"); err != nil {
			hosts = []byte(local)
		}
		hosts = append(bytes.TrimRight(hosts, "\n"), '\n')
		resolv, _ = os.ReadFile("/etc/resolv.conf") // a host without a resolver
	default:
		hosts = []byte(local)
		resolv = []byte(resolvConf(spec.Network.Mode))
	}
	for _, h := range slices.Backward(spec.Hosts) { // in front, because the first line of a name counts
		hosts = append(fmt.Appendf(nil, "%s\t%s\n", h.Addr, h.Name), hosts...)
	}
	if spec.Hostname != "" {
		hosts = fmt.Appendf(hosts, "127.0.1.1\t%s\n", spec.Hostname)
	}
	return hosts, resolv
}

// resolvConf names the resolver of the container's network, and keeps of the
// host's file how names are completed, but where each such name would be refused.
func resolvConf(mode network.Mode) string {
	text := "nameserver " + network.Resolver().String() + "\n"
	if mode == network.None {
		text = "" // libc asks on the loopback then, where nobody is
	}
	if mode != network.Full && mode != "" {
		return text
	}
	data, _ := os.ReadFile("/etc/resolv.conf")
	for line := range strings.Lines(string(data)) {
		if word, _, _ := strings.Cut(strings.TrimSpace(line), " "); word == "search" || word == "domain" || word == "options" {
			text += strings.TrimSpace(line) + "\n"
		}
	}
	return text
}
