package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroup is where a container's processes are counted and can be frozen.
type cgroup struct {
	dir string
	v1  bool
}

// cgroupOf finds the cgroup of a process: of the freezer controller where that is
// a hierarchy of its own, else of the unified hierarchy.
func cgroupOf(pid int) (cgroup, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return cgroup{}, err
	}
	unified := ""
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if parts[1] == "freezer" {
			return cgroup{dir: filepath.Join(cgroupRoot, "freezer", parts[2]), v1: true}, nil
		}
		if parts[0] == "0" {
			unified = parts[2]
		}
	}
	if unified == "" {
		return cgroup{}, fmt.Errorf("process %d is in no cgroup that can be frozen", pid)
	}
	return cgroup{dir: filepath.Join(cgroupRoot, unified)}, nil
}

// freeze stops every process and waits until they stand still. One that sits in
// an uninterruptible call stands still by itself: after a while we go on.
func (g cgroup) freeze(ctx context.Context) error {
	file, value, reached := "cgroup.freeze", "1", g.frozenV2
	if g.v1 {
		file, value, reached = "freezer.state", "FROZEN", g.frozenV1
	}
	if err := g.write(file, value); err != nil {
		return fmt.Errorf("freeze: %w", err)
	}
	deadline := time.Now().Add(500 * time.Millisecond)
	for pause := 200 * time.Microsecond; !reached() && time.Now().Before(deadline); pause = min(2*pause, 5*time.Millisecond) {
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), g.thaw())
		case <-time.After(pause):
		}
	}
	return nil
}

func (g cgroup) thaw() error {
	file, value := "cgroup.freeze", "0"
	if g.v1 {
		file, value = "freezer.state", "THAWED"
	}
	err := g.write(file, value)
	if errors.Is(err, os.ErrNotExist) {
		return nil // everything in it has ended
	}
	return err
}

func (g cgroup) frozenV1() bool {
	data, err := os.ReadFile(filepath.Join(g.dir, "freezer.state"))
	return err != nil || strings.TrimSpace(string(data)) == "FROZEN"
}

func (g cgroup) frozenV2() bool {
	data, err := os.ReadFile(filepath.Join(g.dir, "cgroup.events"))
	return err != nil || strings.Contains(string(data), "frozen 1")
}

func (g cgroup) write(file, value string) error {
	f, err := os.OpenFile(filepath.Join(g.dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// pids lists the processes in it, as the host numbers them.
func (g cgroup) pids() ([]int, error) {
	data, err := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	var pids []int
	for field := range strings.FieldsSeq(string(data)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// removeCgroupParents drops our directory of every hierarchy unless containers
// are in it.
func removeCgroupParents() {
	dirs, _ := filepath.Glob(filepath.Join(cgroupRoot, "*", cgroupParent))
	for _, dir := range append(dirs, filepath.Join(cgroupRoot, cgroupParent)) {
		_ = os.Remove(dir) // refused while in use
	}
}
