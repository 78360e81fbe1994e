package main

import (
	"fmt"

	"github.com/schollz/progressbar/v3"

	"github.com/git-env/git-env/internal/wire"
)

// progress shows long work on standard error: a bar on a terminal, a line for
// each phase elsewhere.
type progress struct {
	a     *app
	tty   bool
	phase string
	bar   *progressbar.ProgressBar
}

func (a *app) progress() *progress { return &progress{a: a, tty: isTerminal(a.stderr)} }

// show takes one report; a total of 0 means that it is not known.
func (p *progress) show(m wire.ProgressMsg) {
	text := m.Phase
	if m.Text != "" {
		text += " " + m.Text
	}
	if !p.tty {
		if text != p.phase {
			p.phase = text
			fmt.Fprintf(p.a.stderr, "%s\n", text)
		}
		return
	}
	total := m.Total
	if total <= 0 {
		total = -1
	}
	if p.bar == nil || text != p.phase {
		p.end()
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

// warn passes a warning of the daemon on.
func (p *progress) warn(text string) {
	p.end()
	p.a.warnf("%s", text)
}

// end takes the bar away; what is written next stands on a line of its own.
func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Clear()
		p.bar = nil
	}
}
