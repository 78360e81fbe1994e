package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/secret"
	"github.com/git-env/git-env/notes"
	"github.com/git-env/git-env/runtime"
	"github.com/git-env/git-env/runtime/network"
)

// now is the clock of records: milliseconds are what a note shows.
func now() time.Time { return time.Now().UTC() }

// grace is how long an exec whose caller went away has to end by itself after it
// was hung up.
const grace = 3 * time.Second

// longExec is when an exec counts as one that takes its time.
const longExec = 10 * time.Second

// journal is exec-<id>.json: an exec under way. The next daemon records it as
// interrupted when this one dies before it could.
type journal struct {
	Record notes.Record `json:"record"`
	Caller api.Caller   `json:"caller"`
	Msg    string       `json:"message"`
}

// Run runs one exec, commits what it changed and records it. It returns after
// all that, also when ctx ends meanwhile: the exec is then ended first.
func (e *Engine) Run(ctx context.Context, p api.Run, st Streams) (*api.Ran, error) {
	if len(p.Args) == 0 && !p.Shell {
		return nil, Errorf(ExitUsage, "no command given")
	}
	v, err := e.env(p.Env)
	if err != nil {
		return nil, err
	}
	x := &execution{v: v, p: p, st: st, out: &recorder{}}
	if err := x.prepare(ctx); err != nil {
		return nil, err
	}
	defer v.end(x.rec.ID)
	defer x.cancel()
	ran, err := x.run()
	return ran, redacted(x.known, err)
}

// execution is one exec from its start to its record.
type execution struct {
	v      *Env
	p      api.Run
	st     Streams
	out    *recorder
	rec    notes.Record
	ctx    context.Context // ends when the caller goes away or the daemon stops
	cancel context.CancelFunc
	proc   runtime.Process
	refs   *gitcmd.RefTransaction // for the record, up before it is needed
	home   string                 // the configured working directory
	vars   []string               // secrets
	known  *secret.Set            // what is not to be written down
	ctr    runtime.Container      // that the process was started in
	limits runtime.Limits         // of ctr, before the process was started
	// contacts are what its network is asked for; nil where nobody can tell.
	contacts *network.Watch
	bg       *background       // nil when the caller waits
	step     bool              // it prepares the environment
	bare     runtime.Container // without the workspace, to run in; nil for the environment's own
}

// prepare brings the environment up and starts the process.
func (x *execution) prepare(ctx context.Context) error {
	v := x.v
	v.mu.Lock()
	defer v.mu.Unlock()
	// A branch that is gone is found out before anything runs, not after.
	if _, err := v.e.store.Tip(ctx, v.name); err != nil {
		return err
	}
	if !x.step {
		if err := v.notPrepared(x.st.Report); err != nil {
			return err
		}
	}
	if err := v.mount(ctx); err != nil {
		return err
	}
	if err := v.renewLimit(ctx); err != nil {
		return err
	}
	if err := v.flushPending(ctx); err != nil {
		// Not in the way of this exec, which may be the one that makes room.
		x.st.Report.Warn(err.Error())
	}
	if err := x.bringUp(ctx); err != nil {
		return err
	}
	if _, execs := v.use(); execs == 0 {
		v.notices(ctx, false) // those from before are not this exec's
	}
	for _, n := range v.e.Notices() {
		x.st.Report.Warn(n)
	}
	if x.p.Timeout == 0 && x.bg == nil && !x.step {
		x.p.Timeout = v.timeout
	}
	x.vars, x.known = v.secrets.vars(""), v.secrets.finds()
	x.out.secrets = x.known
	x.p.Message = x.known.Redact(x.p.Message)
	x.rec = notes.Record{
		ID: notes.NewID(now()), Env: v.st.Name, Command: x.known.Redact(x.display()),
		Cwd: x.known.Redact(x.cwd()), Started: now(),
	}
	if x.bg != nil {
		if err := x.bg.open(ctx, v, &x.rec); err != nil {
			return err
		}
		ctx = context.WithoutCancel(ctx) // it goes on when its caller goes away
	}
	if err := x.writeJournal(); err != nil {
		if x.bg != nil {
			x.bg.home.drop()
		}
		return fmt.Errorf("cannot note the start of the exec: %w", err)
	}
	x.ctx, x.cancel = context.WithCancel(ctx)
	v.begin(x.rec.ID, &running{display: x.rec.Command, cancel: x.cancel, bg: x.bg})
	return nil
}

// bringUp makes sure of the container; v.mu is held.
func (x *execution) bringUp(ctx context.Context) error {
	v := x.v
	if x.bare != nil {
		x.home = bareWorkdir
		return nil
	}
	if err := v.start(ctx, x.st.Report); err != nil {
		return err
	}
	x.home = v.workdir
	if err := x.join(ctx); err != nil {
		return err
	}
	if x.p.NoServices {
		return nil
	}
	return v.startServices(ctx, x.st.Report)
}

func (x *execution) display() string {
	switch {
	case x.p.Display != "":
		return x.p.Display
	case len(x.p.Args) > 0:
		return notes.Quote(x.p.Args)
	}
	return "shell"
}

// cwd resolves the working directory: the configured one, or the asked one,
// relative to the workspace's mount point.
func (x *execution) cwd() string {
	switch d := x.p.Workdir; {
	case d == "":
		return x.home
	case path.IsAbs(d):
		return path.Clean(d)
	default:
		return path.Join(defaultWorkdir, d)
	}
}

func (x *execution) journalPath() string {
	return filepath.Join(x.v.dir(), "exec-"+x.rec.ID+".json")
}

// writeJournal is not flushed to the disk: it is for the death of the daemon,
// and after a power cut there is no exec to tell of that the disk knows of.
func (x *execution) writeJournal() error {
	data, err := json.Marshal(journal{Record: x.rec, Caller: x.p.Caller, Msg: x.message()})
	if err != nil {
		return err
	}
	tmp := x.journalPath() + durable.TempPrefix
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, x.journalPath())
}

func (x *execution) message() string {
	if x.p.Message != "" {
		return x.p.Message
	}
	return subject(strings.ReplaceAll(x.rec.Command, "\n", " "))
}

// run starts the process, waits for its end and records it.
func (x *execution) run() (*api.Ran, error) {
	x.refs = x.v.e.store.Git.StartUpdate("git env: " + subject(x.message()))
	defer x.refs.Close()
	// A long exec is not to have a second process beside it for all that time.
	defer time.AfterFunc(longExec, x.refs.Close).Stop()
	if startErr := x.launch(); startErr == nil {
		x.rec.Outcome = x.wait()
	} else if err := x.notStarted(startErr); err != nil {
		return nil, err
	}
	x.out.flush()
	x.rec.Duration = time.Since(x.rec.Started)
	return x.finish()
}

// launch starts the process, in a new container when the present one does not
// take it.
func (x *execution) launch() (err error) {
	x.proc, err = x.spawn()
	if x.containerBroke(err) {
		x.v.e.log.Warn("the container does not take execs, starting it anew", "env", x.v.name, "err", err)
		if err = x.restart(); err == nil {
			x.proc, err = x.spawn()
		}
	}
	return err
}

// notStarted makes a command that could not be started an exec that failed, unless
// the failure is not the command's.
func (x *execution) notStarted(startErr error) error {
	code, text := startFailure(startErr)
	if code == 0 {
		discard(x.journalPath())
		x.noteContacts()
		return redacted(x.known, capability(fmt.Errorf("cannot start the command: %w", startErr)))
	}
	x.rec.Outcome = notes.Outcome{Exit: code}
	_, stderr := x.outputs()
	_, _ = stderr.Write([]byte("fatal: " + text + "\n"))
	return nil
}

// outputs returns where what the process prints goes.
func (x *execution) outputs() (stdout, stderr io.Writer) {
	if x.bg != nil {
		return x.out.masked(x.bg.home.log.stream(streamStdout)), x.out.masked(x.bg.home.log.stream(streamStderr))
	}
	return x.out.tee(x.st.Stdout), x.out.tee(x.st.Stderr)
}

// containerBroke says that an exec failed for no fault of its command: the
// container's supervisor was killed, say, while the container looks alive.
func (x *execution) containerBroke(err error) bool {
	if err == nil || x.ctx.Err() != nil || x.bare != nil {
		return false
	}
	if code, _ := startFailure(err); code == 0 {
		return true
	}
	// The directory may just have been removed: no reason to end other execs.
	_, execs := x.v.use()
	return errors.Is(err, runtime.ErrBadCwd) && x.cwd() == x.home && execs == 1
}

// restart replaces the container.
func (x *execution) restart() error {
	x.v.mu.Lock()
	defer x.v.mu.Unlock()
	ctx := context.WithoutCancel(x.ctx)
	if x.v.ctr == x.ctr { // else another exec replaced it already
		if err := x.v.stopContainer(ctx); err != nil {
			return err
		}
	}
	reach := x.v.reach
	if err := x.v.startWith(ctx, x.st.Report, &reach); err != nil || x.p.NoServices {
		return err
	}
	return x.v.startServices(ctx, x.st.Report)
}

// startFailure maps a command that could not be started to the shell's codes;
// 0 means that the failure was not the command's.
func startFailure(err error) (int, string) {
	switch {
	case errors.Is(err, runtime.ErrCommandNotFound):
		return ExitNotFound, err.Error()
	case errors.Is(err, runtime.ErrNotExecutable):
		return ExitNotExec, err.Error()
	case errors.Is(err, runtime.ErrBadCwd), errors.Is(err, runtime.ErrLimit):
		return ExitNotExec, err.Error()
	}
	return 0, ""
}

// shells are tried in order for an interactive shell.
const pickShell = `for s in /bin/bash /usr/bin/bash /bin/ash /bin/sh; do [ -x "$s" ] && exec "$s"; done; exec sh`

func (x *execution) spawn() (runtime.Process, error) {
	args := x.p.Args
	if len(args) == 0 {
		args = []string{"sh", "-c", pickShell}
	}
	env := append(slices.Clone(x.vars), x.p.Vars...) // what the user says wins
	if x.p.TTY {
		env = append([]string{"TERM=" + lookupEnv(x.p.Caller.Environ, "TERM", "xterm")}, env...)
	}
	x.v.mu.Lock()
	ctr := x.v.ctr
	x.v.mu.Unlock()
	if x.bare != nil {
		ctr = x.bare
	}
	x.ctr = ctr
	if ctr == nil {
		return nil, errors.New("the container was stopped")
	}
	x.startLimits()
	x.rec.Isolation = string(ctr.Isolation())
	x.watchNetwork()
	spec := runtime.ExecSpec{
		ID: strings.ToLower(x.rec.ID), Args: args, Env: env, Cwd: x.cwd(),
		TTY: x.p.TTY, Width: x.p.Width, Height: x.p.Height,
	}
	var streams runtime.IO
	streams.Stdout, streams.Stderr = x.outputs()
	if x.st.Stdin != nil {
		streams.Stdin = x.st.Stdin
	}
	return ctr.Exec(context.WithoutCancel(x.ctx), spec, streams)
}

func lookupEnv(environ []string, name, def string) string {
	for _, kv := range environ {
		if v, ok := strings.CutPrefix(kv, name+"="); ok && v != "" {
			return v
		}
	}
	return def
}

// wait passes signals and sizes on until the process ends, by itself, by its
// time limit or because its caller went away.
func (x *execution) wait() notes.Outcome {
	defer x.proc.Close()
	done := awaitEnd(x.proc)
	var deadline, hangup <-chan time.Time
	if x.p.Timeout > 0 {
		t := time.NewTimer(x.p.Timeout)
		defer t.Stop()
		deadline = t.C
	}
	bg := context.WithoutCancel(x.ctx)
	gone := x.ctx.Done()
	timedOut := false
	for {
		select {
		case d := <-done:
			return outcome(d.exit, d.err, timedOut, x.p.Timeout)
		case <-deadline:
			timedOut = true
			x.logErr("end the process tree", x.proc.KillTree(bg))
		case <-gone:
			gone = nil
			x.logErr("hang up", x.proc.Signal(bg, syscall.SIGHUP))
			t := time.NewTimer(grace)
			defer t.Stop()
			hangup = t.C
		case <-hangup:
			x.logErr("end the process tree", x.proc.KillTree(bg))
		case s := <-x.st.Signals:
			if sig := unix.SignalNum("SIG" + s); sig != 0 {
				x.logErr("signal", x.proc.Signal(bg, sig))
			}
		case r := <-x.st.Resizes:
			x.logErr("resize", x.proc.Resize(bg, r.Width, r.Height))
		}
	}
}

// ended is how a process ended.
type ended struct {
	exit runtime.Exit
	err  error
}

func awaitEnd(proc runtime.Process) <-chan ended {
	done := make(chan ended, 1)
	go func() {
		exit, err := proc.Wait()
		done <- ended{exit, err}
	}()
	return done
}

func (x *execution) logErr(what string, err error) {
	if err != nil {
		x.v.e.log.Warn("cannot "+what, "env", x.v.name, "exec", x.rec.ID, "err", err)
	}
}

func outcome(exit runtime.Exit, err error, timedOut bool, limit time.Duration) notes.Outcome {
	switch {
	case timedOut:
		return notes.Outcome{Timeout: limit, Exit: ExitTimeout}
	case err != nil:
		return notes.Outcome{Interrupted: true, Exit: ExitOurs}
	case exit.Signal != "":
		return notes.Outcome{Signal: exit.Signal, Exit: exit.Code}
	}
	return notes.Outcome{Exit: exit.Code}
}

// finish commits and records, whatever became of the caller.
func (x *execution) finish() (*api.Ran, error) {
	v := x.v
	ctx := context.WithoutCancel(x.ctx)
	limits := x.noteLimits()
	v.mu.Lock()
	defer v.mu.Unlock()
	refusals := x.noteContacts()
	req := commitRequest{caller: x.p.Caller, message: x.message(), record: &x.rec, output: x.out, refs: x.refs, recordOnly: x.p.NoCommit}
	err := v.mount(ctx) // once more, should the file server have died meanwhile
	var res *commitResult
	if err == nil {
		res, err = v.commit(ctx, req)
	}
	if err != nil {
		// The next command tries again; should the daemon die first, the journal
		// tells its successor how the exec ended.
		v.pending = append(v.pending, pendingCommit{req, x.journalPath()})
		x.logErr("keep the journal", x.writeJournal())
		return nil, &Error{Code: ExitOurs, Err: err,
			Msg:  fmt.Sprintf("the command ended (exit %d), but its work is not committed: %v", x.rec.Outcome.Exit, err),
			Hint: "nothing is lost: it is in the workspace, and the next 'git env run' commits it"}
	}
	discard(x.journalPath())
	res.warnings = append(append(append(limits, res.warnings...), refusals...), v.notices(ctx, x.rec.Outcome != notes.Outcome{})...)
	return &api.Ran{
		Exec: x.rec.ID, Exit: x.rec.Outcome.Exit, Signal: x.rec.Outcome.Signal,
		TimedOut: x.rec.Outcome.Timeout > 0, Commit: res.commit, Changed: res.changed,
		Duration: x.rec.Duration, Warnings: res.warnings,
	}, nil
}
