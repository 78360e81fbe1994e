package main

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal is the caller's terminal while an exec has one. It is made raw in two
// steps: at first keys still interrupt, so that a long pull before the command
// can be stopped; once the command has written something, all keys are its own.
type terminal struct {
	on            bool
	fd            int
	width, height uint16

	mu    sync.Mutex  // guards what follows
	saved *term.State // nil when there is nothing to restore
	begun bool
}

// terminal takes the caller's terminal if all three streams are on it: with one
// of them redirected, the command's output has to arrive there byte for byte.
func (a *app) terminal() *terminal {
	t := &terminal{}
	f, ok := a.stdin.(*os.File)
	if !ok || !isTerminal(a.stdin) || !isTerminal(a.stdout) || !isTerminal(a.stderr) || a.input() == nil {
		return t
	}
	t.fd = int(f.Fd())
	saved, err := term.MakeRaw(t.fd)
	if err != nil {
		return t
	}
	t.on, t.saved = true, saved
	t.interrupts(true)
	t.width, t.height, _ = t.size()
	return t
}

// interrupts says whether keys such as Ctrl-C make signals.
func (t *terminal) interrupts(on bool) {
	tio, err := unix.IoctlGetTermios(t.fd, unix.TCGETS)
	if err != nil {
		return
	}
	tio.Lflag &^= unix.ISIG
	if on {
		tio.Lflag |= unix.ISIG
	}
	_ = unix.IoctlSetTermios(t.fd, unix.TCSETS, tio)
}

// start hands all keys to the command.
func (t *terminal) start() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.saved != nil && !t.begun {
		t.interrupts(false)
	}
	t.begun = true
}

func (t *terminal) started() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.begun
}

// restore gives the terminal back as it was; it may be called more than once.
func (t *terminal) restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.saved != nil {
		_ = term.Restore(t.fd, t.saved)
		t.saved = nil
	}
}

// size returns the terminal's size in cells.
func (t *terminal) size() (width, height uint16, ok bool) {
	if !t.on {
		return 0, 0, false
	}
	w, h, err := term.GetSize(t.fd)
	if err != nil || w <= 0 || h <= 0 || w > 1<<16-1 || h > 1<<16-1 {
		return 0, 0, false
	}
	return uint16(w), uint16(h), true
}
