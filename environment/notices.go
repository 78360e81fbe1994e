package environment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// notices are what happened behind the user's back and was repaired. The next
// command says them.
type notices struct {
	sync.Mutex
	lines []string // guarded by Mutex
}

// maxNotices bounds what is kept for a command that may never come.
const maxNotices = 100

// notice keeps a line for the next command and logs it.
func (e *Engine) notice(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	e.log.Warn(text)
	e.notices.Lock()
	defer e.notices.Unlock()
	if len(e.notices.lines) < maxNotices {
		e.notices.lines = append(e.notices.lines, text)
	}
}

// noticeFile is where the watchdog, which may outlive the daemon, leaves its own.
func (e *Engine) noticeFile() string { return filepath.Join(e.store.Dir, "notices") }

// Notices returns what there is to say, once.
func (e *Engine) Notices() []string {
	e.notices.Lock()
	defer e.notices.Unlock()
	lines := append(e.fromWatchdog(), e.notices.lines...)
	e.notices.lines = nil
	return lines
}

// fromWatchdog takes what the watchdog left.
func (e *Engine) fromWatchdog() []string {
	// Moved first, so that what comes meanwhile is not lost.
	path := e.noticeFile()
	taken := path + ".taken"
	if err := os.Rename(path, taken); err != nil && !errors.Is(err, os.ErrNotExist) {
		e.log.Warn("notices", "err", err)
		return nil
	}
	data, err := os.ReadFile(taken)
	if err != nil {
		return nil
	}
	discard(taken)
	var lines []string
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && len(lines) < maxNotices {
			lines = append(lines, line)
		}
	}
	return lines
}
