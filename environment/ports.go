package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/internal/settings"
	"github.com/git-env/git-env/runtime/network"
)

// PublishedPort is a port of an environment that is on this machine's loopback
// while the container runs: always the same one.
type PublishedPort struct {
	Inside int `json:"inside"`
	Host   int `json:"host"`
	// Asked says that somebody asked for this port of the machine.
	Asked bool `json:"asked,omitempty"`
}

// portsOfOthers returns the ports that are meant for other environments of the
// repository, whether they run or not.
func (s *Store) portsOfOthers(name string) (map[int]string, error) {
	names, err := s.Names()
	if err != nil {
		return nil, err
	}
	taken := map[int]string{}
	for _, n := range names {
		if n == name {
			continue
		}
		var st struct{ Ports []PublishedPort }
		data, err := os.ReadFile(s.statePath(n))
		if err != nil || json.Unmarshal(data, &st) != nil {
			continue // gone meanwhile, or damaged
		}
		for _, p := range st.Ports {
			taken[p.Host] = n
		}
	}
	return taken, nil
}

// assign gives ports of an environment their places on this machine; those that
// have one keep it. Where one that is asked for is taken, strict fails, and else
// another is chosen and what is said about it returned. The caller saves st while
// it holds e.ports.
func (e *Engine) assign(st *State, ports []settings.Port, strict bool) (said []string, err error) {
	if len(ports) == 0 {
		return nil, nil
	}
	others, err := e.store.portsOfOthers(st.Name)
	if err != nil {
		return nil, err
	}
	taken := func(port int) bool {
		return others[port] != "" || slices.ContainsFunc(st.Ports, func(p PublishedPort) bool { return p.Host == port })
	}
	for _, want := range ports {
		i := slices.IndexFunc(st.Ports, func(p PublishedPort) bool { return p.Inside == int(want.Inside) })
		if i >= 0 && (want.Host == 0 || st.Ports[i].Host == int(want.Host)) {
			continue
		}
		p := PublishedPort{Inside: int(want.Inside), Host: int(want.Host), Asked: true}
		switch {
		case want.Host != 0 && !taken(p.Host) && network.CanListen(p.Host):
		case want.Host != 0 && strict:
			owner := "somebody else"
			if o := others[p.Host]; o != "" {
				owner = "environment '" + o + "'"
			}
			return nil, Errorf(ExitBusy, "port %d of this machine belongs to %s", p.Host, owner).
				WithHint("'-p %d' takes one that is free", p.Inside)
		case want.Host != 0 && i >= 0: // it has another one already
			continue
		default:
			if p.Host, err = network.ChoosePort(st.ID, p.Inside, taken); err != nil {
				return nil, err
			}
			if p.Asked = false; want.Host != 0 {
				said = append(said, fmt.Sprintf("port %d of this machine is taken; port %d of environment '%s' is at %d instead",
					want.Host, p.Inside, st.Name, p.Host))
			}
		}
		if i >= 0 {
			st.Ports[i] = p
		} else {
			st.Ports = append(st.Ports, p)
		}
	}
	return said, nil
}

// Publish gives ports of an environment a place on this machine, for good.
func (e *Engine) Publish(ctx context.Context, p api.Publish) (*api.Ports, error) {
	v, err := e.env(p.Env)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ctr != nil && v.ctr.Network() == nil {
		return nil, Errorf(ExitFailed, "environment '%s' has this machine's own network: its ports are this machine's", v.name)
	}
	var want []settings.Port
	for _, port := range p.Ports {
		want = append(want, settings.Port(port))
	}
	if err := v.assign(want, true); err != nil {
		return nil, err
	}
	v.openPorts()
	out := &api.Ports{}
	for _, port := range v.st.Ports {
		if slices.ContainsFunc(want, func(w settings.Port) bool { return int(w.Inside) == port.Inside }) {
			out.Ports = append(out.Ports, api.Port{Inside: uint16(port.Inside), Host: uint16(port.Host)})
		}
	}
	return out, nil
}

// assign is Engine.assign, saved. v.mu is held.
func (v *Env) assign(ports []settings.Port, strict bool) error {
	if len(ports) == 0 {
		return nil
	}
	v.e.ports.Lock()
	defer v.e.ports.Unlock()
	st := *v.st
	st.Ports = slices.Clone(st.Ports)
	said, err := v.e.assign(&st, ports, strict)
	if err != nil || slices.Equal(st.Ports, v.st.Ports) {
		return err
	}
	for _, old := range v.st.Ports {
		if !slices.Contains(st.Ports, old) {
			v.closePort(old)
		}
	}
	if err := v.e.store.save(&st); err != nil {
		return err
	}
	v.st.Ports = st.Ports
	for _, text := range said {
		v.e.notice("%s", text)
	}
	return nil
}

// openPorts listens on the environment's ports of this machine. One that
// somebody else has taken meanwhile is told of; unless it was asked for, another
// takes its place. v.mu is held.
func (v *Env) openPorts() {
	if v.ctr == nil || v.ctr.Network() == nil {
		return
	}
	inside := v.ctr.Network()
	dial := func(ctx context.Context, port int) (net.Conn, error) {
		v.touch()
		return inside.Dial(ctx, port)
	}
	for _, p := range slices.Clone(v.st.Ports) {
		if v.published[p] != nil {
			continue
		}
		err := v.openPort(p, dial)
		if errors.Is(err, network.ErrPortTaken) && !p.Asked {
			if p, err = v.moved(p); err == nil {
				err = v.openPort(p, dial)
			}
		}
		if err != nil {
			v.e.notice("port %d of environment '%s' is not published: %v", p.Inside, v.name, err)
		}
	}
}

func (v *Env) openPort(p PublishedPort, dial func(context.Context, int) (net.Conn, error)) error {
	ln, err := network.Publish(p.Host, p.Inside, dial)
	if err != nil {
		return err
	}
	if v.published == nil {
		v.published = map[PublishedPort]*network.Published{}
	}
	v.published[p] = ln
	return nil
}

// moved finds another place for a port whose own is taken.
func (v *Env) moved(p PublishedPort) (PublishedPort, error) {
	v.e.ports.Lock()
	defer v.e.ports.Unlock()
	st := *v.st
	st.Ports = slices.DeleteFunc(slices.Clone(st.Ports), func(o PublishedPort) bool { return o == p })
	if _, err := v.e.assign(&st, []settings.Port{{Inside: uint16(p.Inside)}}, false); err != nil {
		return p, err
	}
	if err := v.e.store.save(&st); err != nil {
		return p, err
	}
	v.st.Ports = st.Ports
	now := st.Ports[len(st.Ports)-1]
	v.e.notice("port %d of this machine was taken by somebody; port %d of environment '%s' is at %d now", p.Host, p.Inside, v.name, now.Host)
	return now, nil
}

func (v *Env) closePort(p PublishedPort) {
	if ln := v.published[p]; ln != nil {
		ln.Close()
		delete(v.published, p)
	}
}

// closePorts ends what openPorts began. v.mu is held.
func (v *Env) closePorts() {
	for p := range v.published {
		v.closePort(p)
	}
}

// portsToFork gives the ports of a copy places of their own.
func (e *Engine) portsToFork(st *State) ([]PublishedPort, error) {
	var want []settings.Port
	for _, p := range st.Ports {
		want = append(want, settings.Port{Inside: uint16(p.Inside)})
	}
	e.ports.Lock()
	defer e.ports.Unlock()
	fresh := *st
	fresh.Ports = nil
	_, err := e.assign(&fresh, want, true)
	return fresh.Ports, err
}
