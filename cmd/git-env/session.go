package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/environment/client"
)

// insist is how soon a second interrupt has to follow the first to kill.
const insist = 2 * time.Second

// echo is how soon the same signal counts as the same one: a terminal signals
// the whole job, and git, when it was called as "git env", passes what it got on
// to us once more.
const echo = 100 * time.Millisecond

// session runs one exec with the caller's streams, terminal and signals, and
// returns its exit code as an exitStatus.
func (a *app) session(env string, p api.Run) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	name, err := a.resolve(ctx, env)
	if err != nil {
		return err
	}
	p.Env, p.Caller = name, a.caller()
	c, err := a.dial(ctx, true)
	if err != nil {
		return ours(err)
	}
	defer c.Close()
	term := a.terminal()
	p.TTY, p.Width, p.Height = term.on, term.width, term.height
	s := &relay{app: a, term: term, control: make(chan client.Control, 16), cancel: cancel, bar: a.progress()}
	stop := s.signals()
	defer stop()
	defer term.restore()
	stdout, stderr := s.output(a.stdout), s.output(a.stderr)
	ran, err := c.Run(ctx, p, a.input(), stdout, stderr, s.control, client.Events{Progress: s.bar.show, Warn: s.warn})
	s.bar.end()
	term.restore()
	if err != nil {
		if s.last != 0 && errors.Is(err, context.Canceled) {
			return exitStatus(128 + int(s.last))
		}
		return ours(err)
	}
	for _, w := range ran.Warnings {
		a.warnf("%s", w)
	}
	if ran.TimedOut {
		a.say("error: ", "the command did not end within "+p.Timeout.String()+" and was ended")
	}
	if ran.Exit == 0 {
		return nil
	}
	return exitStatus(ran.Exit)
}

// ours tells our own failures from the command's: 125 instead of 1.
func ours(err error) error {
	if environment.ExitCode(err) != environment.ExitFailed {
		return err
	}
	return &environment.Error{Code: environment.ExitOurs, Msg: err.Error(), Hint: environment.Hint(err), Err: err}
}

// input is what the command reads: nil for nothing. A terminal that belongs to
// another job is not read, which would stop us.
func (a *app) input() io.Reader {
	f, ok := a.stdin.(*os.File)
	if !ok {
		return a.stdin
	}
	if f == nil {
		return nil
	}
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return nil // closed
	}
	if !isTerminal(f) {
		return f
	}
	group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	if err != nil || group != unix.Getpgrp() {
		return nil
	}
	return f
}

// relay passes signals and output on between the caller and the exec.
type relay struct {
	app     *app
	term    *terminal
	control chan client.Control
	cancel  context.CancelFunc // drops the connection
	bar     *progress

	mu   sync.Mutex     // guards what follows
	last syscall.Signal // the last interrupt
	when time.Time      // of last
}

func (r *relay) send(c client.Control) {
	select {
	case r.control <- c:
	default: // the daemon is not listening; signals pile up for nobody
	}
}

// signals passes signals on until the returned function is called. A second
// interrupt soon after the first kills; and when nothing ran yet (an image is
// still on its way), it gives up.
func (r *relay) signals() func() {
	ch := make(chan os.Signal, 16)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGWINCH)
	signal.Ignore(syscall.SIGPIPE) // a write tells
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case sig := <-ch:
				if s, ok := sig.(syscall.Signal); ok {
					r.signal(s, time.Now())
				}
			}
		}
	}()
	return func() {
		signal.Stop(ch)
		signal.Reset(syscall.SIGPIPE)
		close(done)
	}
}

func (r *relay) signal(s syscall.Signal, now time.Time) {
	if s == syscall.SIGWINCH {
		if w, h, ok := r.term.size(); ok {
			r.send(client.Control{Width: w, Height: h})
		}
		return
	}
	r.mu.Lock()
	since := now.Sub(r.when)
	if s == r.last && since < echo {
		r.mu.Unlock()
		return
	}
	again := s == syscall.SIGINT && r.last == s && since < insist
	r.last, r.when = s, now
	r.mu.Unlock()
	if again {
		r.send(client.Control{Signal: "KILL"})
		if !r.term.started() {
			r.cancel()
		}
		return
	}
	r.send(client.Control{Signal: strings.TrimPrefix(unix.SignalName(s), "SIG")})
}

func (r *relay) warn(text string) {
	r.bar.end()
	r.app.warnf("%s", text)
}

// output wraps one of the caller's streams.
func (r *relay) output(w io.Writer) io.Writer { return &relayWriter{r: r, w: w, now: time.Now} }

// relayWriter writes to the caller. When the reader there goes away, the command
// gets the signal that writing into the pipe itself would have brought it; and
// when it goes on writing all the same, it is ended.
type relayWriter struct {
	r      *relay
	w      io.Writer
	now    func() time.Time
	begun  bool
	broken time.Time // when the reader was first found gone
	sent   int       // how many of goneSignals were sent
}

// goneSignals are sent one after the other, insist apart.
func goneSignals() []string { return []string{"PIPE", "TERM", "KILL"} }

// Write never fails: the exec is recorded whoever listens.
func (o *relayWriter) Write(p []byte) (int, error) {
	if !o.begun {
		o.begun = true
		o.r.bar.end()
		o.r.term.start()
	}
	if o.broken.IsZero() {
		if _, err := o.w.Write(p); err == nil {
			return len(p), nil
		}
		o.broken = o.now()
	}
	if signals := goneSignals(); o.sent < len(signals) && o.now().Sub(o.broken) >= time.Duration(o.sent)*insist {
		o.r.send(client.Control{Signal: signals[o.sent]})
		o.sent++
	}
	return len(p), nil
}
