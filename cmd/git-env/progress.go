package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/git-env/git-env/internal/wire"
)

// linesAfter is how long work takes before lines are written about it: what is
// over in a moment is not worth a line in a log.
const linesAfter = time.Second

// progress shows long work on standard error: a bar on a terminal, a line for
// each phase elsewhere. Safe for concurrent use.
type progress struct {
	a     *app
	tty   bool
	after time.Duration // linesAfter

	mu    sync.Mutex
	phase string // guarded by mu, like what follows
	bar   *progressbar.ProgressBar
	lines *time.Timer // writes the first line, when it is time
	begun bool        // it was
}

func (a *app) progress() *progress {
	return &progress{a: a, tty: isTerminal(a.stderr), after: linesAfter}
}

// show takes one report; a total of 0 means that it is not known.
func (p *progress) show(m wire.ProgressMsg) {
	text := m.Phase
	if m.Text != "" {
		text += " " + m.Text
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.tty {
		p.line(text)
		return
	}
	total := m.Total
	if total <= 0 {
		total = -1
	}
	if p.bar == nil || text != p.phase {
		p.clear()
		p.phase = text
		p.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(p.a.stderr),
			progressbar.OptionSetDescription(text), progressbar.OptionShowBytes(total > 1<<16),
			progressbar.OptionSetWidth(30), progressbar.OptionThrottle(100e6),
			progressbar.OptionClearOnFinish())
	}
	if total > 0 && total != p.bar.GetMax64() {
		p.bar.ChangeMax64(total)
	}
	_ = p.bar.Set64(m.Done)
}

// line says the phase on a line of its own; p.mu is held.
func (p *progress) line(text string) {
	if text == p.phase {
		return
	}
	p.phase = text
	switch {
	case p.begun, p.after == 0:
		fmt.Fprintln(p.a.stderr, text)
	case p.lines == nil:
		p.lines = time.AfterFunc(p.after, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.lines != nil {
				p.begun = true
				fmt.Fprintln(p.a.stderr, p.phase)
			}
		})
	}
}

// warn passes a warning of the daemon on.
func (p *progress) warn(text string) {
	p.end()
	p.a.warnf("%s", text)
}

// end takes the bar away; what is written next stands on a line of its own.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	if p.lines != nil {
		p.lines.Stop()
		p.lines = nil
	}
}

// clear takes the bar away; p.mu is held.
func (p *progress) clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
		p.bar = nil
	}
}
