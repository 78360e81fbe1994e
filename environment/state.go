package environment

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/internal/objects"
)

// stateVersion is the format of env.json that this program writes.
const stateVersion = 1

// Phase says how far an environment has come into being.
type Phase string

// Phases. An environment in any other than PhaseReady belongs to a create or
// delete that is under way or was cut short; the next daemon finishes or undoes
// it.
const (
	PhaseCreating Phase = "creating"
	PhaseReady    Phase = "ready"
	PhaseDeleting Phase = "deleting"
)

// ImageRef names an image and what it resolved to.
type ImageRef struct {
	Ref    string `json:"ref"`
	Digest string `json:"digest,omitempty"`
}

// Ancestor is an environment that another was forked from, and when.
type Ancestor struct {
	Name  string    `json:"name"`
	Until time.Time `json:"until"`
}

// State is env.json: what an environment is made of. It changes with the
// environment's structure (create, fork), not with an exec.
type State struct {
	Version int       `json:"version"`
	ID      string    `json:"id"` // ULID, unique across machines and re-creations of a name
	Name    string    `json:"name"`
	Title   string    `json:"title,omitempty"`
	Phase   Phase     `json:"phase"`
	Created time.Time `json:"created"`
	// Base is the commit the environment started from; Parent the environment
	// it was forked from.
	Base     string `json:"base"`
	Parent   string `json:"parent,omitempty"`
	ParentID string `json:"parent_id,omitempty"`
	// Lineage lists the environments this one descends from by forks.
	Lineage []Ancestor `json:"lineage,omitempty"`
	// Origin is the commit where the chain of forks started: what a log begins
	// after.
	Origin string `json:"origin"`
	// Tree is what the workspace shows below its layers, with LowerTime as the
	// modification time of everything in it.
	Tree      string    `json:"tree"`
	LowerTime time.Time `json:"lower_time"`
	// Paths are what a sparse environment shows of Tree; none for all of it.
	Paths []string `json:"paths,omitempty"`
	// Profile is what the workspace is to be good at.
	Profile fusefs.Profile `json:"profile,omitempty"`
	// Layers is the stack of copy-on-write layers, bottom to top; the last one
	// is written to.
	Layers []string `json:"layers"`
	// RootFS is the id of the container's root filesystem in the runtime;
	// RootFSReady that it was made.
	RootFS string   `json:"rootfs"`
	Image  ImageRef `json:"image"`
	// Config is what it was made with; nil from a version that did not keep it.
	Config *Kept `json:"config,omitempty"`
	// Ports are published on this machine's loopback while the container runs.
	Ports []PublishedPort `json:"ports,omitempty"`
	// Workspace is where the branch is mounted on the host, Worktree the name of
	// its registration below $GIT_COMMON_DIR/worktrees.
	Workspace string `json:"workspace"`
	Worktree  string `json:"worktree"`
	// First is the branch's tip as create made it, Outputs the tree of outputs
	// that a fork began with.
	First   string `json:"first"`
	Outputs string `json:"outputs,omitempty"`
	// Ending is set in PhaseDeleting.
	Ending *Ending `json:"ending,omitempty"`
}

// Ending is what a delete that was decided on takes along.
type Ending struct {
	// Tip is the branch as it was looked at: one that has moved since stays.
	Tip string `json:"tip,omitempty"`
	// Outputs says that the whole outputs go too.
	Outputs bool `json:"outputs,omitempty"`
}

// Branch returns the full ref of the environment's branch.
func (s *State) Branch() string { return BranchRef(s.Name) }

// owns says whether a record belongs to this environment's history: its own, or
// an ancestor's from before the fork.
func (s *State) owns(env string, started time.Time) bool {
	if env == s.Name {
		return true
	}
	for _, a := range s.Lineage {
		if a.Name == env && !started.After(a.Until) {
			return true
		}
	}
	return false
}

func (s *State) top() string { return s.Layers[len(s.Layers)-1] }

// BranchRef returns the ref of an environment's branch.
func BranchRef(name string) string { return "refs/heads/env/" + name }

// OutputRef returns the ref that keeps an environment's whole outputs.
func OutputRef(name string) string { return "refs/env/output/" + name }

// CheckName says whether name can be an environment's name: what
// git check-ref-format allows below refs/heads/env/, no leading '-', no '@'.
func CheckName(name string) error {
	bad := func(why string) error {
		shown := "'" + name + "'"
		if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) || !utf8.ValidString(name) {
			shown = strconv.Quote(name)
		}
		return Errorf(ExitUsage, "%s is not a valid environment name: %s", shown, why).
			WithHint("a name is what git takes as a branch, without '@' and without '-' in front: fix-login, team/fix")
	}
	switch {
	case name == "":
		return Errorf(ExitUsage, "an environment's name cannot be empty")
	case len(name) > 200:
		return bad("it is longer than 200 bytes")
	case strings.HasPrefix(name, "-"):
		return bad("it starts with '-'")
	case strings.ContainsAny(name, "@ ~^:?*[\\"):
		return bad("it has one of '@ ~^:?*[\\' or a space in it")
	case !utf8.ValidString(name), strings.ContainsRune(name, utf8.RuneError):
		return bad("it is not UTF-8")
	case strings.Contains(name, ".."), strings.Contains(name, "//"), strings.HasPrefix(name, "/"), strings.HasSuffix(name, "/"), strings.HasSuffix(name, "."):
		return bad("git does not allow it as a branch")
	}
	for _, r := range name {
		if r < 0x20 || r == 0x7f {
			return bad("it has a control character in it")
		}
	}
	for _, part := range strings.Split(name, "/") {
		if strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock") || objects.UnsafeName(part) {
			return bad("git does not allow it as a branch")
		}
	}
	return nil
}

func (s *Store) statePath(name string) string {
	return filepath.Join(s.EnvDir(name), "env.json")
}

// EnvDir returns the directory of an environment's state.
func (s *Store) EnvDir(name string) string {
	return filepath.Join(s.Dir, "envs", filepath.FromSlash(name))
}

// Load reads an environment's state: ErrNoEnv, ErrDamaged, ErrNewerFormat.
func (s *Store) Load(name string) (*State, error) {
	st, err := s.load(name)
	for st != nil && errors.Is(err, ErrDamaged) {
		// A layer is missing: perhaps the daemon has just named another one in
		// its place.
		again, aerr := s.load(name)
		if again != nil && slices.Equal(again.Layers, st.Layers) {
			break
		}
		st, err = again, aerr
	}
	return st, err
}

func (s *Store) load(name string) (*State, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(s.statePath(name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return nil, &Error{Code: ExitNoEnv, Msg: fmt.Sprintf("no environment '%s'", name), Err: ErrNoEnv,
			Hint: "'git env list' shows the environments"}
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, notPermitted(err)
	}
	if err != nil {
		return nil, s.damaged(name, err)
	}
	var head struct{ Version int }
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, s.damaged(name, fmt.Errorf("env.json: %w", err))
	}
	if head.Version > stateVersion {
		return nil, &Error{Code: ExitRepository, Err: ErrNewerFormat,
			Msg:  fmt.Sprintf("environment '%s' has state format %d; this git-env reads up to %d", name, head.Version, stateVersion),
			Hint: "install a newer git-env"}
	}
	st := &State{}
	if err := json.Unmarshal(data, st); err != nil {
		return nil, s.damaged(name, fmt.Errorf("env.json: %w", err))
	}
	if st.Name != name || len(st.Layers) == 0 || st.ID == "" {
		return nil, s.damaged(name, errors.New("its env.json is incomplete"))
	}
	return st, s.checkLayers(st)
}

// topFile names the top layer once it was made; until then it may be absent.
const topFile = "layer"

// noteTop remembers that the top layer is there. That this may not outlive a
// crash costs no more than a later notice of its loss.
func (s *Store) noteTop(st *State) {
	file := filepath.Join(s.EnvDir(st.Name), topFile)
	if top, err := os.ReadFile(file); err != nil || string(top) != st.top() {
		_ = os.WriteFile(file, []byte(st.top()), 0o600)
	}
}

// checkLayers looks whether the workspace's layers are there: without one, the
// workspace would show old content as if it were the environment's.
func (s *Store) checkLayers(st *State) error {
	if st.Phase != PhaseReady {
		return nil
	}
	must := st.Layers[:len(st.Layers)-1]
	if top, err := os.ReadFile(filepath.Join(s.EnvDir(st.Name), topFile)); err == nil && string(top) == st.top() {
		must = st.Layers
	}
	for _, l := range must {
		dir := filepath.Join(s.Dir, "layers", l)
		if _, err := os.Stat(filepath.Join(dir, "log")); errors.Is(err, fs.ErrNotExist) {
			if _, err := os.Stat(filepath.Join(dir, "meta")); err == nil {
				return s.damaged(st.Name, fmt.Errorf("%s is gone", filepath.Join(dir, "log")))
			}
			return s.damaged(st.Name, fmt.Errorf("layer %s of its workspace is gone", l))
		}
	}
	return nil
}

// notPermitted is another user's repository.
func notPermitted(err error) error {
	return Errorf(ExitCapability, "cannot read the state of the environments: %w", err).
		WithHint("run as the user whose repository this is")
}

func (s *Store) damaged(name string, err error) error {
	return &Error{Code: ExitRepository, Msg: fmt.Sprintf("environment '%s' is damaged: %v", name, err),
		Err:  errors.Join(ErrDamaged, err),
		Hint: fmt.Sprintf("its branch is untouched: %s; 'git env delete --force %s' removes the rest", BranchRef(name), name)}
}

func (s *Store) save(st *State) error {
	st.Version = stateVersion
	return durable.WriteJSON(s.statePath(st.Name), st, 0o600)
}
