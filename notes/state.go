package notes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// StateVersion is the version of State that this program writes.
const StateVersion = 1

// Image is what an environment's root filesystem was made from.
type Image struct {
	Ref    string `json:"ref"`
	Digest string `json:"digest"`
}

// State is one line of a state note.
type State struct {
	// V is the version of the format; zero is written as StateVersion.
	V       int       `json:"v"`
	Env     string    `json:"env"`
	Updated time.Time `json:"updated"`
	// Base is the commit the environment started from, Parent the environment
	// it was forked from, if any.
	Base   string         `json:"base"`
	Parent string         `json:"parent,omitempty"`
	Config map[string]any `json:"config,omitempty"`
	Image  Image          `json:"image"`
	RootFS map[string]any `json:"rootfs,omitempty"`
	Title  string         `json:"title,omitempty"`
}

// Line returns the state as one line of JSON, ending in a newline. The time is
// in UTC, in milliseconds. Equal states give equal lines.
func (s *State) Line() ([]byte, error) {
	c := *s
	if c.V == 0 {
		c.V = StateVersion
	}
	c.Updated = c.Updated.UTC().Truncate(time.Millisecond)
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(&c); err != nil {
		return nil, fmt.Errorf("encode state of '%s': %w", s.Env, err)
	}
	return b.Bytes(), nil
}

// ParseStates returns the states of a note in order. Lines that are none are
// passed over. A state may be of a newer version than StateVersion, which its
// reader has to check.
func ParseStates(note []byte) []State {
	var states []State
	for line := range bytes.Lines(note) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] != '{' {
			continue
		}
		var s State
		if json.Unmarshal(line, &s) == nil && s.V > 0 && s.Env != "" {
			states = append(states, s)
		}
	}
	return states
}

// Newest returns the state of an environment that was updated last; of several
// at the same time the last one counts.
func Newest(states []State, env string) (State, bool) {
	var newest State
	found := false
	for _, s := range states {
		if s.Env == env && (!found || !s.Updated.Before(newest.Updated)) {
			newest, found = s, true
		}
	}
	return newest, found
}
