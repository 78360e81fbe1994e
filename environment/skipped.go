package environment

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/git-env/git-env/internal/durable"
)

// skipped is skipped.json: what the next commit has to know of what earlier ones
// left in the workspace. What is ignored is not listed, it may be anything: when
// the rules change, the directories that differ from the branch are looked
// through.
type skipped struct {
	// Held are the paths that were held back, to be looked at each time; at most
	// maxHeld.
	Held []rawPath `json:"held,omitempty"`
	// More: others were held back, which are found when the directories are
	// looked through.
	More bool `json:"more,omitempty"`
	// Rules is the fingerprint of the rules and limits outside of the tree that
	// all this holds for; "" when nothing was left out yet.
	Rules string `json:"rules,omitempty"`
	// Secret are those of Held that had a secret in them. They stay held as long as
	// they are what they were: the value may be another one by now, or not known.
	Secret []heldSecret `json:"secret,omitempty"`
	// Ignored is what an earlier version left; it knew nothing of Rules.
	Ignored []rawPath `json:"ignored,omitempty"`
}

// maxHeld is how many paths that were held back are named.
const maxHeld = 1000

// stale says that other rules hold now than when something was left out.
func (s *skipped) stale(rules string) bool {
	return s.Rules != "" && s.Rules != rules || s.Rules == "" && len(s.Ignored) > 0
}

// rawPath is a path that survives JSON when it is not UTF-8.
type rawPath string

const rawPrefix = "base64:"

// MarshalJSON implements json.Marshaler.
func (p rawPath) MarshalJSON() ([]byte, error) {
	s := string(p)
	if !utf8.ValidString(s) || strings.HasPrefix(s, rawPrefix) {
		s = rawPrefix + base64.StdEncoding.EncodeToString([]byte(s))
	}
	return json.Marshal(s)
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *rawPath) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	if enc, ok := strings.CutPrefix(s, rawPrefix); ok {
		raw, err := base64.StdEncoding.DecodeString(enc)
		if err != nil {
			return err
		}
		s = string(raw)
	}
	*p = rawPath(s)
	return nil
}

func rawPaths(paths []string) []rawPath {
	out := make([]rawPath, len(paths))
	for i, p := range paths {
		out[i] = rawPath(p)
	}
	return out
}

func plainPaths(paths []rawPath) []string {
	out := make([]string, len(paths))
	for i, p := range paths {
		out[i] = string(p)
	}
	return out
}

func (v *Env) loadSkipped() (skipped, error) {
	var s skipped
	err := durable.ReadJSON(filepath.Join(v.dir(), "skipped.json"), &s)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return s, err
}

func equalSkipped(a, b skipped) bool {
	return slices.Equal(a.Ignored, b.Ignored) && slices.Equal(a.Held, b.Held) && slices.Equal(a.Secret, b.Secret) && a.More == b.More && a.Rules == b.Rules
}
