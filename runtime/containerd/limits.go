package containerd

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/git-env/git-env/runtime"
)

// limitFiles are the files of the kernel that say what a container's limits are and
// count how often it ran into them: of hierarchies of their own (version 1) or of
// the unified one.
type limitFiles struct{ memory, memoryEvents, pids, pidsEvents string }

// limitFilesOf finds those of a process's container. A controller that is in
// neither kind of hierarchy has none.
func limitFilesOf(pid int) limitFiles {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return limitFiles{}
	}
	return limitFilesIn(string(data))
}

// limitFilesIn finds them by what /proc/<pid>/cgroup says.
func limitFilesIn(groups string) (l limitFiles) {
	unified := ""
	for line := range strings.Lines(groups) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if parts[0] == "0" {
			unified = filepath.Join(cgroupRoot, parts[2])
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			dir := filepath.Join(cgroupRoot, controller, parts[2])
			switch controller {
			case "memory":
				l.memory, l.memoryEvents = dir+"/memory.limit_in_bytes", dir+"/memory.oom_control"
			case "pids":
				l.pids, l.pidsEvents = dir+"/pids.max", dir+"/pids.events"
			}
		}
	}
	if l.memory == "" {
		l.memory, l.memoryEvents = unified+"/memory.max", unified+"/memory.events"
	}
	if l.pids == "" {
		l.pids, l.pidsEvents = unified+"/pids.max", unified+"/pids.events"
	}
	return l
}

// Limits implements runtime.Container.
func (c *container) Limits() runtime.Limits {
	return runtime.Limits{
		Memory: limitIn(c.limits.memory), Processes: limitIn(c.limits.pids),
		OutOfMemory: countIn(c.limits.memoryEvents, "oom_kill"), Refused: countIn(c.limits.pidsEvents, "max"),
	}
}

// limitIn reads a limit; the kernel writes none as "max" or as a number that
// nothing can reach.
func limitIn(file string) int64 {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil || n >= 1<<60 {
		return 0
	}
	return n
}

// countIn reads a number from a file of lines with a name and a number; 0 when it
// is not there.
func countIn(file, name string) int64 {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(data) {
		if fields := strings.Fields(string(line)); len(fields) == 2 && fields[0] == name {
			n, _ := strconv.ParseInt(fields[1], 10, 64)
			return n
		}
	}
	return 0
}
