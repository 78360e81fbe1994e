package environment

import (
	"context"
	"slices"

	"github.com/git-env/git-env/internal/settings"
)

// Kept is the configuration that an environment was made with. What git config
// said then is in it too, but what it says now counts; the project's file and the
// flags hold for good.
type Kept struct {
	Entries []settings.Entry `json:"entries,omitempty"`
}

// split returns what holds for good: below and above what git config says.
func (k *Kept) split() (project, flags []settings.Entry) {
	for _, e := range k.Entries {
		switch e.Scope {
		case settings.Project:
			project = append(project, e)
		case settings.Command:
			flags = append(flags, e)
		}
	}
	return project, flags
}

// settingsOf reads the settings that hold for an environment.
func (s *Store) settingsOf(ctx context.Context, st *State) (Settings, error) {
	config, err := settings.ReadConfig(ctx, s.Git)
	if err != nil {
		return Settings{}, err
	}
	m, other, err := s.valuesOf(ctx, st, config)
	if err != nil {
		return Settings{}, err
	}
	set := newSettings(m)
	for _, e := range other {
		set.Unsupported = append(set.Unsupported, e.Key)
	}
	return set, nil
}

// ConfigOf returns the settings in effect for an environment, config being what
// git config says.
func (s *Store) ConfigOf(ctx context.Context, st *State, config []settings.Entry) (*settings.Values, error) {
	m, _, err := s.valuesOf(ctx, st, config)
	return m, err
}

// valuesOf also returns what the environment was made with and this version does
// not know.
func (s *Store) valuesOf(ctx context.Context, st *State, config []settings.Entry) (m *settings.Values, other []settings.Entry, err error) {
	kept := st.Config
	if kept == nil { // made by a version that kept none
		entries, err := s.projectEntries(ctx, st.Base)
		if err != nil {
			return nil, nil, err
		}
		kept = &Kept{entries}
	}
	project, flags := kept.split()
	project, other = settings.Sound(project)
	flags, more := settings.Sound(flags)
	m, err = settings.Merge(slices.Concat(project, config, flags))
	return m, append(other, more...), settingsError(err)
}

// ConfigAt returns the settings in effect for an environment that would be made
// from a commit; "" is none.
func (s *Store) ConfigAt(ctx context.Context, commit string, config []settings.Entry) (*settings.Values, error) {
	project, err := s.projectEntries(ctx, commit)
	if err != nil {
		return nil, err
	}
	m, err := settings.Merge(slices.Concat(project, config))
	return m, settingsError(err)
}

// projectEntries lists what a commit's own files say.
func (s *Store) projectEntries(ctx context.Context, commit string) ([]settings.Entry, error) {
	if commit == "" {
		return nil, nil
	}
	entries, _, err := settings.ReadProject(ctx, s.Git, s.Reader, commit)
	return entries, settingsError(err)
}

// noted is the configuration for the state note, from which another machine makes
// the environment anew: what concerns this machine or its user alone is not in it.
func (k *Kept) noted() map[string]any {
	out := map[string]any{}
	if k == nil {
		return out
	}
	entries, _ := settings.Sound(k.Entries)
	entries = slices.DeleteFunc(entries, func(e settings.Entry) bool {
		key, _, _ := settings.Find(e.Key)
		return key.Host || key.Personal && e.Scope == settings.Config
	})
	m, err := settings.Merge(entries)
	if err != nil {
		return out // it was looked at when the environment was made
	}
	for _, v := range m.All() {
		if !v.Setting.Multi {
			out[v.Name()] = v.Text()
			continue
		}
		list, _ := out[v.Name()].([]string)
		out[v.Name()] = append(list, v.Text())
	}
	return out
}
