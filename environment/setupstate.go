package environment

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/notes"
)

// Stages of the preparation of an environment.
const (
	StageSetup   = "setup"   // in the root filesystem, without the workspace
	StageInstall = "install" // in the workspace
)

// States of a preparation and of its steps. A step is pending, running, done,
// cached, failed or interrupted.
const (
	SetupPending     = "pending" // nobody has begun it
	SetupSkipped     = "skipped" // the create was told not to
	SetupRunning     = "running"
	SetupDone        = "done"
	SetupCached      = "cached" // done by another environment, of which this one has the result
	SetupFailed      = "failed"
	SetupInterrupted = "interrupted"
)

// Setup is setup.json: what prepares an environment, and how far that has come.
// One that needs no preparation has none.
type Setup struct {
	Steps []SetupStep `json:"steps"`
	// Skipped says that the create was told to leave it out, and nobody has begun it
	// since.
	Skipped bool `json:"skipped,omitempty"`
	// Own says that commands have run on the root filesystem before it was complete:
	// it is not what the steps alone make, and is neither thrown away nor shared.
	Own bool `json:"own,omitempty"`
}

// SetupStep is one command of a preparation.
type SetupStep struct {
	Stage   string        `json:"stage"`
	Command string        `json:"command"` // a line of shell
	State   string        `json:"state"`
	Exec    string        `json:"exec,omitempty"` // that ran it last
	Outcome notes.Outcome `json:"outcome,omitzero"`
}

func (s *SetupStep) ok() bool { return s.State == SetupDone || s.State == SetupCached }

// newSetup lists what has to be done for an environment; nil for nothing.
func newSetup(set Settings, skip bool) *Setup {
	s := &Setup{Skipped: skip}
	for _, c := range set.Setup {
		s.Steps = append(s.Steps, SetupStep{Stage: StageSetup, Command: c, State: SetupPending})
	}
	for _, c := range set.Install {
		s.Steps = append(s.Steps, SetupStep{Stage: StageInstall, Command: c, State: SetupPending})
	}
	if len(s.Steps) == 0 {
		return nil
	}
	return s
}

// next is the first step that has not succeeded; -1 when all have.
func (s *Setup) next() int {
	for i := range s.Steps {
		if !s.Steps[i].ok() {
			return i
		}
	}
	return -1
}

// rootSteps are the steps that make the root filesystem.
func (s *Setup) rootSteps() []SetupStep {
	n := 0
	for n < len(s.Steps) && s.Steps[n].Stage == StageSetup {
		n++
	}
	return s.Steps[:n]
}

// rootReady says whether all of these have succeeded.
func (s *Setup) rootReady() bool {
	n := s.next()
	return n < 0 || n >= len(s.rootSteps())
}

// SetupView is where the preparation of an environment stands.
type SetupView struct {
	// State is that of the whole.
	State string
	// Step counts from 1: the one that runs, failed, or comes next; 0 when all are
	// done. Steps is how many there are.
	Step, Steps int
	// Of that step; Exec and Outcome when it has run.
	Stage, Command, Exec string
	Outcome              notes.Outcome
}

// Ready says that nothing is left to be done.
func (w *SetupView) Ready() bool { return w.State == SetupDone }

// String says it in a line, without the name of the environment.
func (w *SetupView) String() string {
	step := fmt.Sprintf("step %d of %d '%s'", w.Step, w.Steps, subject(w.Command))
	switch w.State {
	case SetupDone:
		return "done"
	case SetupFailed:
		return step + ", " + ending(w.Outcome)
	case SetupSkipped, SetupPending:
		return fmt.Sprintf("%d of %d steps not run", w.Steps-w.Step+1, w.Steps)
	}
	return step
}

// ending tells in words how a step ended.
func ending(o notes.Outcome) string {
	switch {
	case o.Signal != "":
		return "signal " + o.Signal
	case o.Timeout > 0:
		return "time limit " + o.Timeout.String()
	case o.Interrupted:
		return "interrupted"
	}
	return fmt.Sprintf("exit %d", o.Exit)
}

func (s *Setup) view() SetupView {
	w := SetupView{State: SetupDone, Steps: len(s.Steps)}
	i := s.next()
	if i < 0 {
		return w
	}
	step := s.Steps[i]
	w.State, w.Step, w.Stage, w.Command, w.Exec, w.Outcome = step.State, i+1, step.Stage, step.Command, step.Exec, step.Outcome
	if s.Skipped {
		w.State = SetupSkipped
	}
	return w
}

func (s *Store) setupPath(env string) string { return filepath.Join(s.EnvDir(env), "setup.json") }

// setupLock is held by the daemon while it prepares the environment.
func (s *Store) setupLock(env string) string { return filepath.Join(s.EnvDir(env), "setup.lock") }

// loadSetup returns nil without an error for an environment that needs no
// preparation. A step that ran when its daemon died counts as interrupted.
func (s *Store) loadSetup(env string) (*Setup, error) {
	out, err := s.readSetup(env)
	if err != nil || out == nil {
		return nil, err
	}
	i := out.next()
	if i < 0 || out.Steps[i].State != SetupRunning {
		return out, nil
	}
	held, err := durable.Held(s.setupLock(env))
	if err != nil || held {
		return out, err
	}
	// Either it has just ended, or who ran it is gone.
	if out, err = s.readSetup(env); err != nil || out == nil {
		return out, err
	}
	if i = out.next(); i >= 0 && out.Steps[i].State == SetupRunning {
		out.Steps[i].State = SetupInterrupted
	}
	return out, nil
}

func (s *Store) readSetup(env string) (*Setup, error) {
	out := &Setup{}
	err := durable.ReadJSON(s.setupPath(env), out)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read how far the setup of environment '%s' is: %w", env, err)
	}
	return out, nil
}

func (s *Store) saveSetup(env string, v *Setup) error {
	return durable.WriteJSON(s.setupPath(env), v, 0o600)
}

// SetupOf tells where the preparation of an environment stands; nil when it needs
// none. It asks no daemon.
func (s *Store) SetupOf(env string) (*SetupView, error) {
	set, err := s.loadSetup(env)
	if err != nil || set == nil {
		return nil, err
	}
	w := set.view()
	return &w, nil
}
