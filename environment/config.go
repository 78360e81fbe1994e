package environment

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"slices"
	"strings"

	"github.com/git-env/git-env/internal/devcontainer"
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

// expandLate puts the variables of an image where those of a container refer to
// them.
func (k *Kept) expandLate(vars, image []string) {
	if k == nil {
		return
	}
	for _, e := range k.Entries {
		if i := slices.Index(vars, e.Value); e.Late && i >= 0 {
			vars[i] = devcontainer.ExpandImage(e.Value, image)
		}
	}
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
		entries, _, err := settings.ReadProject(ctx, s.Git, s.Reader, st.Base)
		if err != nil {
			return nil, nil, settingsError(err)
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
// from a commit ("" is none), by a user whose surroundings are local.
func (s *Store) ConfigAt(ctx context.Context, commit string, config []settings.Entry, local devcontainer.Local) (*settings.Values, error) {
	project, err := s.project(ctx, commit, local)
	if err != nil {
		return nil, err
	}
	m, err := settings.Merge(slices.Concat(project.Entries, config))
	if err == nil && project.NoImage != nil && !ownImage(m) {
		err = project.NoImage
	}
	return m, settingsError(err)
}

// ownImage says whether the user names the image, and not the project.
func ownImage(m *settings.Values) bool {
	image := m.Of("image")
	return len(image) > 0 && image[0].Scope != settings.Project
}

// project reads what a commit's own files say: its .gitenv or, where there is
// none, its devcontainer.json.
func (s *Store) project(ctx context.Context, commit string, local devcontainer.Local) (*devcontainer.Result, error) {
	none := &devcontainer.Result{}
	if commit == "" {
		return none, nil
	}
	entries, found, err := settings.ReadProject(ctx, s.Git, s.Reader, commit)
	if err != nil {
		return nil, settingsError(err)
	}
	if found {
		return &devcontainer.Result{Entries: entries}, nil
	}
	sum := sha256.Sum256([]byte(s.Repo.CommonDir))
	local.ID = strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))
	read, err := devcontainer.Read(ctx, s.Reader, commit, local)
	if read == nil {
		read = none
	}
	return read, settingsError(err)
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
		return key.Host || e.Personal || key.Personal && e.Scope == settings.Config || e.Scope == settings.Command && asksHost(e)
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

// asksHost says whether a value would need consent had the project's file said it:
// the user's word for it holds on this machine alone.
func asksHost(e settings.Entry) bool {
	v, err := settings.Check(e)
	return err == nil && v.Setting.Trust != nil && v.Parsed != nil && v.Setting.Trust(v.Parsed) != ""
}
