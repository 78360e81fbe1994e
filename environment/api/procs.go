package api

import "time"

// Methods about background processes.
const (
	MethodStart   = "start"
	MethodStop    = "stop"
	MethodRestart = "restart"
	MethodLogs    = "logs"
)

// Started is the answer to MethodStart, whose parameters are those of Run.
type Started struct {
	Exec string `json:"exec"`
	// Ran is set when the process ended, or could not be started, while the daemon
	// was still looking; Tail is the last of what it printed.
	Ran  *Ran   `json:"ran,omitempty"`
	Tail []byte `json:"tail,omitempty"`
}

// Stop asks to end background processes.
type Stop struct {
	Caller Caller `json:"caller"`
	Env    string `json:"env"`
	// Procs are names or ids, or beginnings of ids; All stands for every one that
	// runs. With neither it has to be clear which.
	Procs []string `json:"procs,omitempty"`
	All   bool     `json:"all,omitempty"`
	// Grace is how long they have to end by themselves once they were asked to.
	Grace time.Duration `json:"grace"`
}

// Stopped is the answer to Stop, given when all have ended and are recorded.
type Stopped struct {
	// Procs are the ids of those that ended, Idle of those that had ended before.
	Procs    []string `json:"procs"`
	Idle     []string `json:"idle,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// Restart asks to end services and to start them anew.
type Restart struct {
	Caller Caller `json:"caller"`
	Env    string `json:"env"`
	// Services are names; none stands for all.
	Services []string `json:"services,omitempty"`
	// Grace is how long they have to end by themselves.
	Grace time.Duration `json:"grace"`
}

// Restarted is the answer to Restart, given when all are ready.
type Restarted struct {
	Services []string `json:"services"`
}

// Logs asks for what a background process printed, as it comes; the answer
// stream carries it.
type Logs struct {
	Env string `json:"env"`
	// Proc is the process's whole id.
	Proc string `json:"proc"`
	// Lines is how many of the last lines to begin with; negative for all.
	Lines int `json:"lines"`
	// Since leaves out what was printed before.
	Since time.Time `json:"since,omitzero"`
}
