package environment

import (
	"fmt"
	"strconv"

	"github.com/git-env/git-env/runtime"
)

// runtimePids says a limit of processes as the runtime takes it.
func (s *Settings) runtimePids() int64 {
	switch s.Pids {
	case -1:
		return 0 // its default
	case 0:
		return -1 // none
	}
	return s.Pids
}

// runtimeIsolation says a level of isolation as the runtime takes it.
func (s *Settings) runtimeIsolation() runtime.Isolation {
	if s.Isolation == "auto" {
		return runtime.IsolationAuto
	}
	return runtime.Isolation(s.Isolation)
}

// noteLimits records which limits the container ran into while the process ran,
// and words them for the caller. Of several execs at a time each is told: the
// kernel counts for all of them together.
func (x *execution) noteLimits() (warnings []string) {
	if x.ctr == nil {
		return nil
	}
	before, now := x.limits, x.ctr.Limits()
	if n := now.OutOfMemory - before.OutOfMemory; n > 0 {
		if now.Memory == 0 {
			x.rec.Limits = append(x.rec.Limits, "memory machine")
			warnings = append(warnings, fmt.Sprintf("out of memory: the machine has no more, and %d process(es) of the environment were killed; a limit (env.memory) keeps one environment from taking all", n))
		} else {
			x.rec.Limits = append(x.rec.Limits, "memory "+limitText(now.Memory))
			warnings = append(warnings, fmt.Sprintf("out of memory: %d process(es) were killed at the limit of %s (env.memory)", n, limitText(now.Memory)))
		}
	}
	if n := now.Refused - before.Refused; n > 0 {
		x.rec.Limits = append(x.rec.Limits, "pids "+strconv.FormatInt(now.Processes, 10))
		warnings = append(warnings, fmt.Sprintf("too many processes: %d could not be made beyond the limit of %d (env.pids)", n, now.Processes))
	}
	return warnings
}

// startLimits are those that a process meets at its start.
func (x *execution) startLimits() {
	x.limits = runtime.Limits{}
	if x.ctr != nil {
		x.limits = x.ctr.Limits()
	}
}

// limitText writes a number of bytes as a setting has it.
func limitText(n int64) string {
	for _, unit := range [...]struct {
		size int64
		name string
	}{{1 << 40, "t"}, {1 << 30, "g"}, {1 << 20, "m"}, {1 << 10, "k"}} {
		if n >= unit.size && n%unit.size == 0 {
			return strconv.FormatInt(n/unit.size, 10) + unit.name
		}
	}
	return strconv.FormatInt(n, 10)
}
