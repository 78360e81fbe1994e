package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// environLimit bounds the reading of a process's environment: its memory may be
// backed by a file system that does not answer.
const environLimit = 200 * time.Millisecond

// KillTree implements runtime.Process.
func (p *process) KillTree(ctx context.Context) error {
	if _, err := p.SignalTree(ctx, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill exec %s: %w", p.id, err)
	}
	return nil
}

// SignalTree implements runtime.Process. While signals are sent the container
// stands still, so that nothing gets away and no pid comes to mean another process.
func (p *process) SignalTree(ctx context.Context, sig syscall.Signal) (n int, err error) {
	if !p.c.fd.alive() {
		return 0, nil // and the control group is perhaps another container's of that id
	}
	send := func() error {
		pids, err := p.c.cgroup.pids()
		if errors.Is(err, os.ErrNotExist) {
			return nil // the container has ended
		}
		if err != nil {
			return err
		}
		tree := p.tree(pids)
		n = len(tree)
		for _, pid := range tree {
			if sig == 0 {
				break
			}
			if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		return nil
	}
	if sig == 0 {
		err = send()
		return n, err
	}
	err = p.c.frozen(ctx, send)
	return n, err
}

// tree picks the processes of this exec out of the container's, which stand
// still: descendants, those that carry its mark, and, when no other exec is
// running, those that carry no mark at all.
func (p *process) tree(pids []int) []int {
	sole := p.c.sole(p)
	root := p.pid
	select {
	case <-p.ended:
		root = 0 // by now the number may be another's
	default:
	}
	parents := make(map[int]int, len(pids))
	for _, pid := range pids {
		parents[pid] = parentOf(pid)
	}
	marks := readMarks(pids)
	var tree []int
	for _, pid := range pids {
		if pid == p.c.pid {
			continue
		}
		mark, marked := marks[pid]
		switch {
		case marked && mark == p.id, root != 0 && descends(pid, root, parents), sole && !marked:
			tree = append(tree, pid)
		}
	}
	return tree
}

// sole reports whether no other exec is running.
func (c *container) sole(p *process) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, other := range c.execs {
		if other != p {
			return false
		}
	}
	return true
}

func descends(pid, ancestor int, parents map[int]int) bool {
	for range len(parents) + 1 {
		if pid == ancestor {
			return true
		}
		next, ok := parents[pid]
		if !ok {
			return false
		}
		pid = next
	}
	return false
}

// parentOf reads the parent of a process; 0 when it is gone. The name in the stat
// line may hold anything, so fields count from the last parenthesis.
func parentOf(pid int) int {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	i := bytes.LastIndexByte(data, ')')
	if i < 0 {
		return 0
	}
	var state byte
	var parent int
	if _, err := fmt.Sscanf(string(data[i+1:]), " %c %d", &state, &parent); err != nil {
		return 0
	}
	return parent
}

// readMarks reads which exec each process says it belongs to, as far as that can
// be read in time.
func readMarks(pids []int) map[int]string {
	var mu sync.Mutex
	marks := make(map[int]string, len(pids))
	done := make(chan struct{})
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		slots := make(chan struct{}, 32)
		for _, pid := range pids {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				if mark, ok := markOf(pid); ok {
					mu.Lock()
					marks[pid] = mark
					mu.Unlock()
				}
			})
		}
		wg.Wait()
	}()
	select {
	case <-done:
	case <-time.After(environLimit):
	}
	mu.Lock()
	defer mu.Unlock()
	seen := make(map[int]string, len(marks))
	for pid, mark := range marks {
		seen[pid] = mark
	}
	return seen
}

func markOf(pid int) (string, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return "", false
	}
	for kv := range bytes.SplitSeq(data, []byte{0}) {
		if mark, ok := bytes.CutPrefix(kv, []byte(execVariable+"=")); ok {
			return string(mark), true
		}
	}
	return "", false
}
