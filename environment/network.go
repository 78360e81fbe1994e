package environment

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/git-env/git-env/internal/settings"
	"github.com/git-env/git-env/notes"
	"github.com/git-env/git-env/runtime"
	"github.com/git-env/git-env/runtime/network"
)

// netHeader is the header of a record that tells of a host that was contacted or
// refused.
const netHeader = "net"

// rules are what an environment with these settings reaches. That the host's own
// network takes consent is seen to before.
func (set *Settings) rules() (network.Rules, error) {
	r := network.Rules{Mode: network.Mode(set.Network)}
	for _, a := range set.Allow {
		r.Allow = append(r.Allow, allowEntry(a))
	}
	for _, p := range set.HostPorts {
		r.HostPorts = append(r.HostPorts, int(p))
	}
	return r, r.Check()
}

// allowEntry words a setting as the network takes it.
func allowEntry(a settings.HostPort) string {
	switch {
	case a.Port == 0:
		return a.Host
	default:
		return net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port)))
	}
}

// networkOptions are those of all networks of a daemon.
func networkOptions(set *Settings) network.Options {
	var o network.Options
	for _, a := range set.DNS {
		o.Resolvers = append(o.Resolvers, netip.AddrPort(a))
	}
	return o
}

// join gives the exec the network that it asks for, by itself or by its
// environment's settings. Others that run there are in the way of another one.
// v.mu is held and the container runs.
func (x *execution) join(ctx context.Context) error {
	v := x.v
	want := v.wanted
	if x.p.Network != "" {
		mode, err := network.ParseMode(x.p.Network)
		if err != nil {
			return Errorf(ExitUsage, "--network: %w", err)
		}
		want.Mode = mode
	}
	if sameRules(want, v.reach) {
		return nil
	}
	if _, execs := v.use(); execs > 0 {
		return Errorf(ExitBusy, "environment '%s' has the network '%s' while %d command(s) run in it; it cannot be given '%s'",
			v.name, v.reach.Mode, execs, want.Mode).
			WithHint("wait until they have ended; 'git env ps %s' lists those in the background", v.name)
	}
	if n := v.ctr.Network(); n != nil && want.Mode != network.Host {
		if err := n.SetRules(want); err != nil {
			return capability(networkMissing(err))
		}
		v.reach = want
		return nil
	}
	// To and from the host's own network takes another container.
	if err := v.stopContainer(ctx); err != nil {
		return err
	}
	return v.startWith(ctx, x.st.Report, &want)
}

// networkMissing names what the host lacks.
func networkMissing(err error) error {
	if errors.Is(err, network.ErrNoTUN) {
		return &runtime.MissingError{What: "TUN device", Detail: err.Error(), Hint: runtime.TUNHint}
	}
	return err
}

func sameRules(a, b network.Rules) bool {
	return a.Mode == b.Mode && slices.Equal(a.Allow, b.Allow) && slices.Equal(a.HostPorts, b.HostPorts)
}

// watchNetwork notes what is contacted from now on; nil where nobody can tell.
func (x *execution) watchNetwork() {
	x.contacts = nil
	if x.ctr == nil {
		return
	}
	if n := x.ctr.Network(); n != nil {
		x.contacts = n.Watch()
	}
}

// shownRefusals is how many refusals are told of by name.
const shownRefusals = 5

// noteContacts puts what was contacted into the record, and returns what to tell
// the caller of what was refused.
func (x *execution) noteContacts() (warnings []string) {
	if x.contacts == nil {
		return nil
	}
	list, more := x.contacts.Stop()
	x.contacts = nil
	refused := 0
	for _, c := range list {
		x.rec.Extra = append(x.rec.Extra, notes.Header{Key: netHeader, Value: x.known.Redact(c.String())})
		if c.Refused == "" {
			continue
		}
		if refused++; refused <= shownRefusals {
			warnings = append(warnings, x.known.Redact(fmt.Sprintf("the network refused %s: %s", c.Target, c.Refused)))
		}
	}
	if refused > shownRefusals {
		warnings = append(warnings, fmt.Sprintf("the network refused %d more; 'git env show %s' lists them", refused-shownRefusals, x.v.name))
	}
	if more > 0 {
		x.rec.Extra = append(x.rec.Extra, notes.Header{Key: netHeader, Value: fmt.Sprintf("and %d more attempts", more)})
	}
	return warnings
}
