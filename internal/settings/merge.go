package settings

import (
	"slices"
	"strings"

	"github.com/git-env/git-env/internal/secret"
)

// Value is a setting in effect.
type Value struct {
	Entry
	// Setting is what is set, Service whose it is, if that of a service.
	Setting Key
	Service string
	// Parsed is the value as Kind.Parse returns it.
	Parsed any
}

// Name is the key as people write it.
func (v Value) Name() string { return v.Setting.named(v.Service) }

// Text is the value as one writes it.
func (v Value) Text() string {
	if v.Bare {
		return "true"
	}
	return v.Value
}

// Values are the settings in effect, in the order in which they came up.
type Values struct {
	keys []Key
	list []Value
}

// Check looks at one entry by itself. An empty value takes back what was said
// before, and has no Parsed.
func Check(e Entry) (Value, error) { return check(Schema(), e) }

func check(keys []Key, e Entry) (Value, error) {
	k, service, ok := findIn(keys, e.Key)
	if !ok {
		return Value{}, unknown(e)
	}
	v := Value{Entry: e, Setting: k, Service: service}
	switch {
	case service != "" || strings.HasPrefix(k.Name, "service."):
		if err := checkService(service); err != nil {
			return v, e.Errorf("[service \"%s\"]: %w", service, err)
		}
	case k.Host && e.Scope == Project:
		return v, e.Errorf("%s concerns this machine; a project cannot set it, 'git config' can", k.Name)
	}
	if k.Daemon && e.Scope == Command {
		return v, e.Errorf("%s is read when the daemon starts; it cannot be set for one command", k.Name)
	}
	if e.Bare && !k.Kind.bare {
		return v, e.Errorf("%s has no value", v.Name())
	}
	text := e.Value
	if e.Bare {
		text = "true"
	}
	if text == "" {
		return v, nil
	}
	parsed, err := k.Kind.Parse(text)
	if err != nil && k.Kind.private {
		return v, e.Errorf("%s: %w", v.Name(), err)
	}
	if err != nil {
		return v, e.Errorf("%s = %s: %w", v.Name(), e.Value, err)
	}
	v.Parsed = parsed
	return v, nil
}

func unknown(e Entry) error {
	section, _, _ := strings.Cut(e.Key, ".")
	switch {
	case e.Scope == Project && (section == "include" || section == "includeif"):
		return e.Errorf("%s: a project's file includes no other", e.Key)
	case section != "env" && section != "service":
		return e.Errorf("unknown key %s; the sections are [env] and [service \"<name>\"]", e.Key)
	}
	if near := suggest(e.Key); near != "" {
		return e.Errorf("unknown key %s; did you mean %s?", e.Key, near)
	}
	return e.Errorf("unknown key %s", e.Key)
}

// Sound returns the entries that Check takes: for origins that were checked when
// an environment was made, perhaps by another version.
func Sound(entries []Entry) (sound, other []Entry) {
	keys := Schema()
	for _, e := range entries {
		if _, err := check(keys, e); err != nil {
			other = append(other, e)
			continue
		}
		sound = append(sound, e)
	}
	return sound, other
}

// Merge makes the settings in effect of entries, the heavier ones later. An
// error is an *Error.
func Merge(entries []Entry) (*Values, error) {
	m := &Values{keys: Schema()}
	for _, e := range entries {
		v, err := check(m.keys, e)
		if err != nil {
			return nil, err
		}
		m.take(v)
	}
	return m, m.checkServices()
}

func (m *Values) take(v Value) {
	if v.Parsed == nil || !v.Setting.Multi {
		m.list = slices.DeleteFunc(m.list, func(o Value) bool {
			return o.Setting.Name == v.Setting.Name && o.Service == v.Service
		})
	}
	if v.Parsed != nil {
		m.list = append(m.list, v)
	}
}

// checkServices finds services that nothing could run.
func (m *Values) checkServices() error {
	for _, s := range m.Services() {
		if len(m.of(s, "image")) == 0 && len(m.of(s, "command")) == 0 {
			first := slices.IndexFunc(m.list, func(v Value) bool { return v.Service == s })
			return m.list[first].Errorf("[service \"%s\"] has neither an image nor a command", s)
		}
	}
	return nil
}

// Shown returns what is set and the defaults of what is not, in the order of the
// schema; services follow in the order in which they came up.
func (m *Values) Shown() []Value {
	var out []Value
	for _, k := range m.keys {
		if strings.HasPrefix(k.Name, "service.") {
			continue
		}
		found := m.find(k.Name, "")
		if len(found) == 0 && k.Default != "" {
			found = []Value{{Setting: k, Entry: Entry{Key: strings.ToLower(k.Name), Value: k.Default, Scope: Default, Origin: string(Default)}}}
		}
		out = append(out, found...)
	}
	for _, s := range m.Services() {
		for _, k := range m.keys {
			if strings.HasPrefix(k.Name, "service.") {
				out = append(out, m.find(k.Name, s)...)
			}
		}
	}
	return out
}

// All returns what is set, in the order in which it came up.
func (m *Values) All() []Value { return slices.Clone(m.list) }

// Services lists the names of the services.
func (m *Values) Services() []string {
	var names []string
	for _, v := range m.list {
		if v.Service != "" && !slices.Contains(names, v.Service) {
			names = append(names, v.Service)
		}
	}
	return names
}

// Of returns what is set of a key of [env]: nothing, or all values of one that may
// have several.
func (m *Values) Of(name string) []Value { return m.find("env."+name, "") }

func (m *Values) of(service, name string) []Value {
	return m.find("service."+anyService+"."+name, service)
}

func (m *Values) find(name, service string) []Value {
	var out []Value
	for _, v := range m.list {
		if v.Service == service && v.Setting.Name == name {
			out = append(out, v)
		}
	}
	return out
}

// Env returns the value of a setting of [env] that has one value, its default
// included, and the zero value when there is none. T is the type that its kind
// parses to; another one, and a name that is none, is a mistake of the caller and
// panics.
func Env[T any](m *Values, name string) T { return one[T](m.keys, m.Of(name), "env."+name) }

// Secrets returns the secrets of a service, or with "" those of [env]. Of several
// that are the same inside, the last counts.
func (m *Values) Secrets(service string) []secret.Spec {
	found := m.Of("secret")
	if service != "" {
		found = m.of(service, "secret")
	}
	var out []secret.Spec
	for _, v := range found {
		s := v.Parsed.(secret.Spec)
		s.Project = v.Scope == Project
		out = slices.DeleteFunc(out, func(o secret.Spec) bool { return o.Target() == s.Target() })
		out = append(out, s)
	}
	return out
}

// EnvAll returns the values of one that may have several.
func EnvAll[T any](m *Values, name string) []T { return all[T](m.Of(name)) }

// Service is Env for a setting of a service.
func Service[T any](m *Values, service, name string) T {
	return one[T](m.keys, m.of(service, name), "service."+anyService+"."+name)
}

// ServiceAll is EnvAll for a setting of a service.
func ServiceAll[T any](m *Values, service, name string) []T { return all[T](m.of(service, name)) }

func one[T any](keys []Key, found []Value, name string) T {
	if len(found) > 0 {
		return found[0].Parsed.(T)
	}
	var zero T
	for _, k := range keys {
		if k.Name != name {
			continue
		}
		if k.Default == "" {
			return zero
		}
		v, err := k.Kind.Parse(k.Default)
		if err != nil {
			panic("the default of " + name + ": " + err.Error())
		}
		return v.(T)
	}
	panic("no setting " + name)
}

func all[T any](found []Value) []T {
	var out []T
	for _, v := range found {
		out = append(out, v.Parsed.(T))
	}
	return out
}

// Ask is something that a project's file asks of this machine.
type Ask struct {
	Value
	// Why says what it would be granted.
	Why string
}

// Project returns what of it a project's file can say, and what of a
// devcontainer.json it cannot.
func (m *Values) Project() (can, cannot []Value) {
	for _, v := range m.Shown() {
		switch {
		case v.Setting.Host || v.Scope == Default:
		case v.Personal || v.Late:
			cannot = append(cannot, v)
		default:
			can = append(can, v)
		}
	}
	return can, cannot
}

// Asks tells what a value asks of this machine; "" when that is nothing, or when
// the user has said it himself.
func (v Value) Asks() string {
	if v.Scope != Project || v.Setting.Trust == nil || v.Parsed == nil {
		return ""
	}
	return v.Setting.Trust(v.Parsed)
}

// replacedBy says whether a later value takes the place of this one, of several:
// of secrets that are the same inside only the last is fetched.
func (v Value) replacedBy(later Value) bool {
	a, ok := v.Parsed.(secret.Spec)
	b, too := later.Parsed.(secret.Spec)
	return ok && too && v.Setting.Name == later.Setting.Name && v.Service == later.Service && a.Target() == b.Target()
}

// Asks lists what takes effect only with the user's consent.
func (m *Values) Asks() []Ask {
	var out []Ask
	for i, v := range m.list {
		if why := v.Asks(); why != "" && !slices.ContainsFunc(m.list[i+1:], v.replacedBy) {
			out = append(out, Ask{v, why})
		}
	}
	return out
}

// Pending lists what is set and not acted on, each once, as "<key> (<where>)".
func (m *Values) Pending() []string {
	var out []string
	seen := map[string]bool{}
	for _, v := range m.list {
		if v.Setting.Pending && !seen[v.Name()] {
			seen[v.Name()] = true
			out = append(out, v.Name()+" ("+v.where()+")")
		}
	}
	return out
}
