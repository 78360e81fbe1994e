package environment

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/notes"
)

// Kinds of what runs in the background.
const (
	KindProcess = "process"
	KindService = "service"
)

// States of a background process. A service has the first three while it is
// looked after.
const (
	ProcStarting    = "starting" // it runs and is not ready yet
	ProcRunning     = "running"
	ProcRestarting  = "restarting"  // it failed, and is started again in a while
	ProcExited      = "exited"      // by itself, or by a signal that nobody of us sent
	ProcStopped     = "stopped"     // because it was asked to
	ProcFailed      = "failed"      // it could not be started
	ProcInterrupted = "interrupted" // what watched over it died, and it with that
)

// Process is a background process or a service of an environment: procs/<id>/state.json. Who
// watches over it holds the lock beside it.
type Process struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"`
	Name    string    `json:"name,omitempty"`
	Command string    `json:"command"`
	Cwd     string    `json:"cwd"`
	State   string    `json:"state"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	// Pid is the process's number inside; 0 when it is not known.
	Pid     int           `json:"pid,omitempty"`
	Outcome notes.Outcome `json:"outcome,omitzero"`
	// What follows is of a service: what its last health check said ("healthy",
	// "unhealthy"; "" without one), how often it was started again, the address
	// that its name stands for inside, and its ports there.
	Health   string   `json:"health,omitempty"`
	Restarts int      `json:"restarts,omitempty"`
	Address  string   `json:"address,omitempty"`
	Ports    []uint16 `json:"ports,omitempty"`
}

// Running says whether it has not ended.
func (p *Process) Running() bool {
	return p.State == ProcRunning || p.State == ProcStarting || p.State == ProcRestarting
}

// keptProcs is how many background processes that have ended are listed.
const keptProcs = 10

func (s *Store) procsDir(env string) string { return filepath.Join(s.EnvDir(env), "procs") }

func (s *Store) procDir(env, id string) string { return filepath.Join(s.procsDir(env), id) }

// Processes lists the background processes of an environment, the oldest first:
// those that run, and the last ones that have ended. It asks no daemon.
func (s *Store) Processes(env string) ([]Process, error) {
	entries, err := os.ReadDir(s.procsDir(env))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var procs []Process
	for _, e := range entries { // sorted by id, which is by time
		p, err := s.readProcess(env, e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // being made, or just removed
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read the state of process %s: %w", e.Name(), err)
		}
		procs = append(procs, p)
	}
	return procs, nil
}

// running lists those that run.
func (s *Store) running(env string) ([]Process, error) {
	procs, err := s.Processes(env)
	return slices.DeleteFunc(procs, func(p Process) bool { return !p.Running() }), err
}

func (s *Store) readProcess(env, id string) (Process, error) {
	var p Process
	dir := s.procDir(env, id)
	if err := durable.ReadJSON(filepath.Join(dir, "state.json"), &p); err != nil {
		return p, err
	}
	if !p.Running() {
		return p, nil
	}
	held, err := durable.Held(filepath.Join(dir, "lock"))
	if err != nil || held {
		return p, err
	}
	// Either it has just ended, or who watched over it is gone.
	if err := durable.ReadJSON(filepath.Join(dir, "state.json"), &p); err != nil {
		return p, err
	}
	if p.Running() {
		p.State, p.Pid = ProcInterrupted, 0
	}
	return p, nil
}

// FindProcess finds a background process by its name, where one that runs comes
// before those that have ended, or by its id or the beginning of it. "" stands
// for the only one that runs, or else the only one there is.
func (s *Store) FindProcess(env, ref string) (Process, error) {
	procs, err := s.Processes(env)
	if err != nil {
		return Process{}, err
	}
	if ref == "" {
		return onlyProcess(env, procs)
	}
	var byName, byID []Process
	for _, p := range slices.Backward(procs) { // the newest first
		if p.Name == ref {
			byName = append(byName, p)
		}
		if strings.HasPrefix(p.ID, strings.ToUpper(ref)) {
			byID = append(byID, p)
		}
	}
	for _, p := range byName {
		if p.Running() {
			return p, nil
		}
	}
	switch {
	case len(byName) > 0:
		return byName[0], nil
	case len(byID) == 1:
		return byID[0], nil
	case len(byID) > 1:
		return Process{}, Errorf(ExitUsage, "process id '%s' is ambiguous: %d start with it", ref, len(byID))
	}
	return Process{}, Errorf(ExitFailed, "environment '%s' has no background process '%s'", env, ref).
		WithHint("'git env ps %s' lists them", env)
}

// onlyProcess is for commands that were given none: it is never guessed.
func onlyProcess(env string, procs []Process) (Process, error) {
	running := slices.DeleteFunc(slices.Clone(procs), func(p Process) bool { return !p.Running() })
	if len(running) > 0 {
		procs = running
	}
	switch len(procs) {
	case 0:
		return Process{}, Errorf(ExitFailed, "environment '%s' has no background process", env).
			WithHint("'git env run -d %s -- <command>' starts one", env)
	case 1:
		return procs[0], nil
	}
	names := make([]string, len(procs))
	for i, p := range procs {
		names[i] = p.Title()
	}
	return Process{}, Errorf(ExitUsage, "which process of environment '%s'? candidates: %s", env, strings.Join(names, ", "))
}

// Title is the name of a process, else its id.
func (p *Process) Title() string {
	if p.Name != "" {
		return p.Name
	}
	return p.ID
}

// LogOptions says which part of a process's output is wanted.
type LogOptions struct {
	Lines int       // of the last ones; negative for all
	Since time.Time // what was printed before is left out
}

// Logs writes what is kept of a process's output, its two streams apart. warn is
// told of what is missing.
func (s *Store) Logs(env, id string, o LogOptions, stdout, stderr io.Writer, warn func(string)) error {
	r := &logReader{dir: s.logDir(env, id)}
	defer r.close()
	return r.tell(logView{o.Lines, o.Since}, stdout, stderr, warn)
}

func (s *Store) logDir(env, id string) string { return filepath.Join(s.procDir(env, id), "log") }

// checkProcName says whether a background process may have a name.
func checkProcName(name string) error {
	ok := len(name) <= 63 && strings.Trim(name, "-_.") == name &&
		!strings.ContainsFunc(name, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.", r)
		})
	if name != "" && !ok {
		return Errorf(ExitUsage, "'%s' is not a name for a process", name).
			WithHint("letters, digits, '-', '_' and '.', at most 63, not beginning or ending with one of the last three")
	}
	return nil
}

// pruneProcs forgets the oldest of the processes that have ended; their records
// stay.
func (s *Store) pruneProcs(env string) error {
	procs, err := s.Processes(env)
	if err != nil {
		return err
	}
	procs = slices.DeleteFunc(procs, func(p Process) bool { return p.Running() || p.Ended.IsZero() || p.Kind == KindService })
	for len(procs) > keptProcs {
		if err := os.RemoveAll(s.procDir(env, procs[0].ID)); err != nil {
			return err
		}
		procs = procs[1:]
	}
	return nil
}

// markInterrupted notes of every process that an earlier daemon watched over
// that it is gone, and reports whether there was one.
func (s *Store) markInterrupted(env string) (bool, error) {
	procs, err := s.Processes(env)
	if err != nil {
		return false, err
	}
	found := false
	for _, p := range procs {
		if p.State != ProcInterrupted || !p.Ended.IsZero() {
			continue
		}
		found = true
		p.Outcome = notes.Outcome{Interrupted: true, Exit: ExitOurs}
		p.Ended = now()
		if err := s.saveProcess(env, &p); err != nil {
			return found, err
		}
	}
	return found, nil
}

func (s *Store) saveProcess(env string, p *Process) error {
	return durable.WriteJSON(filepath.Join(s.procDir(env, p.ID), "state.json"), p, 0o600)
}
