package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/git-env/git-env/runtime"
)

func TestExec(t *testing.T) {
	p := newPlace(t)
	// By the container's first process, and by containerd where that cannot.
	for name, byContainerd := range map[string]bool{"init": false, "containerd": true} {
		t.Run(name, func(t *testing.T) { execSuite(t, p, byContainerd) })
	}
}

func execSuite(t *testing.T, p place, byContainerd bool) {
	p.NoInitExec = byContainerd
	b := p.open(t)
	c := hostContainer(t, b, "exec")
	t.Run("streams", func(t *testing.T) { execStreams(t, c) })
	t.Run("exit", func(t *testing.T) { execExit(t, c) })
	t.Run("errors", func(t *testing.T) { execErrors(t, c) })
	t.Run("refused", func(t *testing.T) { execRefused(t, c) })
	t.Run("stdin", func(t *testing.T) { execStdin(t, c) })
	t.Run("given up", func(t *testing.T) { execGivenUp(t, b, c) })
	t.Run("volume", func(t *testing.T) { execVolume(t, c) })
	t.Run("tty", func(t *testing.T) { execTTY(t, c) })
	t.Run("signal", func(t *testing.T) { execSignal(t, c) })
	t.Run("background child", func(t *testing.T) { execBackground(t, c) })
	t.Run("slow reader", func(t *testing.T) { execSlowReader(t, c) })
	t.Run("kill tree", func(t *testing.T) { killTree(t, c) })
	t.Run("kill tree beside others", func(t *testing.T) { killTreeBeside(t, c) })
	t.Run("zombies", func(t *testing.T) { zombies(t, c) })
	t.Run("pause", func(t *testing.T) { pause(t, c) })
	t.Run("parallel", func(t *testing.T) { execParallel(t, b, c) })
	t.Run("nothing left", func(t *testing.T) { execLeaks(t, b, c) })
}

func execStreams(t *testing.T, c runtime.Container) {
	r := try(t, c, runtime.ExecSpec{Args: []string{"sh", "-c", "echo out; echo err >&2; pwd; echo $A; test -t 0 || echo notty"},
		Env: []string{"A=b=c"}, Cwd: "/usr"})
	if r.stdout != "out\n/usr\nb=c\nnotty\n" || r.stderr != "err\n" {
		t.Errorf("%+v, %v", r, r.err)
	}
	// Live: the first line is there while the command runs.
	reader, writer := io.Pipe()
	defer reader.Close()
	proc, err := c.Exec(testContext(t), runtime.ExecSpec{ID: nextExec(), Args: []string{"sh", "-c", "echo first; sleep 60"}}, runtime.IO{Stdout: writer})
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 6)
	if _, err := io.ReadFull(reader, buf); err != nil || string(buf) != "first\n" {
		t.Errorf("%q, %v", buf, err)
	}
	if err := proc.Close(); err != nil {
		t.Error(err)
	}
}

func execExit(t *testing.T, c runtime.Container) {
	for line, want := range map[string]runtime.Exit{
		"exit 0":                        {},
		"exit 3":                        {Code: 3},
		"exit 255":                      {Code: 255},
		"sleep 0.2; exit 137":           {Code: 137},
		"sleep 0.2; kill -9 $$":         {Code: 137, Signal: "KILL"},
		"sleep 0.2; kill -TERM $$":      {Code: 143, Signal: "TERM"},
		"sleep 0.2; exec kill -SEGV $$": {Code: 139, Signal: "SEGV"},
	} {
		if r := try(t, c, runtime.ExecSpec{Args: []string{"sh", "-c", line}}); r.err != nil || r.exit != want {
			t.Errorf("%s: %+v, %v", line, r.exit, r.err)
		}
	}
}

func execErrors(t *testing.T, c runtime.Container) {
	sh(t, c, `mkdir -p /x/noexec && echo hi >/x/text && chmod 644 /x/text && ln -s /etc/shadow2 /x/dangling && echo >/x/file`)
	for _, test := range []struct {
		args []string
		cwd  string
		want error
		text string
	}{
		{args: []string{"no-such-command"}, want: runtime.ErrCommandNotFound, text: "no-such-command: command not found"},
		{args: []string{"/no/such"}, want: runtime.ErrCommandNotFound, text: "/no/such: no such file or directory"},
		{args: []string{"./no"}, cwd: "/usr", want: runtime.ErrCommandNotFound},
		{args: []string{"/x/dangling"}, want: runtime.ErrCommandNotFound},
		{args: []string{"/x/text/sub"}, want: runtime.ErrCommandNotFound},
		{args: []string{"/x/text"}, want: runtime.ErrNotExecutable, text: "/x/text: permission denied"},
		{args: []string{"/x/noexec"}, want: runtime.ErrNotExecutable},
		{args: []string{"true"}, cwd: "/no/such/dir", want: runtime.ErrBadCwd, text: "working directory /no/such/dir: no such directory"},
		{args: []string{"true"}, cwd: "/x/file", want: runtime.ErrBadCwd, text: "working directory /x/file: not a directory"},
		{args: nil, want: runtime.ErrCommandNotFound},
	} {
		r := try(t, c, runtime.ExecSpec{Args: test.args, Cwd: test.cwd})
		if !errors.Is(r.err, test.want) || strings.Contains(r.err.Error(), "\n") || (test.text != "" && r.err.Error() != test.text) {
			t.Errorf("%v in %q: %v (%+v %q), want %v", test.args, test.cwd, r.err, r.exit, r.stdout+r.stderr, test.want)
		}
	}
}

// What the kernel refuses is known only after the start: the exit code tells.
func execRefused(t *testing.T, c runtime.Container) {
	sh(t, c, `printf 'garbage\001' >/garbage && printf '#!/no/such\n' >/interp && chmod 755 /garbage /interp`)
	for _, command := range []string{"/garbage", "/interp"} {
		r := try(t, c, runtime.ExecSpec{Args: []string{command}})
		if errors.Is(r.err, runtime.ErrNotExecutable) && strings.HasPrefix(r.err.Error(), command+": ") {
			continue // was known at once
		}
		if r.err != nil || r.exit.Code != 126 || !strings.Contains(r.stderr, command+": ") {
			t.Errorf("%s: %+v", command, r)
		}
	}
	if r := try(t, c, runtime.ExecSpec{Args: []string{"sh", "-c", "echo 'exec /other: exec format error' >&2; exit 1"}}); r.exit.Code != 1 {
		t.Errorf("%+v", r)
	}
}

func execStdin(t *testing.T, c runtime.Container) {
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	var out bytes.Buffer
	proc, err := c.Exec(testContext(t), runtime.ExecSpec{ID: nextExec(), Args: []string{"cat"}},
		runtime.IO{Stdin: bytes.NewReader(data), Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := proc.Wait(); err != nil || exit.Code != 0 || !bytes.Equal(out.Bytes(), data) {
		t.Errorf("%+v %v %d bytes", exit, err, out.Len())
	}
	// A command that does not read ends although input is left, and although the
	// reader of the input blocks.
	reader, writer := io.Pipe()
	defer writer.Close()
	proc, err = c.Exec(testContext(t), runtime.ExecSpec{ID: nextExec(), Args: []string{"true"}}, runtime.IO{Stdin: reader})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := proc.Wait(); err != nil || exit.Code != 0 {
		t.Errorf("%+v %v", exit, err)
	}
}

// A start that is given up must not leave the process running.
func execGivenUp(t *testing.T, b *Backend, c runtime.Container) {
	for _, after := range []time.Duration{0, 2 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(context.Background(), after)
		proc, err := c.Exec(ctx, runtime.ExecSpec{ID: nextExec(), Args: []string{"sleep", "4711"}}, runtime.IO{})
		cancel()
		if err == nil {
			if err := proc.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	for range 100 {
		if sh(t, c, "ps -eo args | grep -c '^[s]leep 4711' || true") == "0" {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("it runs: %s", sh(t, c, "ps -eo pid,args"))
}

func execVolume(t *testing.T, c runtime.Container) {
	r := try(t, c, runtime.ExecSpec{Args: []string{"sh", "-c", "head -c 30000000 /dev/zero; head -c 3000000 /dev/zero >&2"}})
	if len(r.stdout) != 30000000 || len(r.stderr) != 3000000 {
		t.Errorf("%d, %d bytes", len(r.stdout), len(r.stderr))
	}
	for range 20 { // short ones lose nothing either
		if r := try(t, c, runtime.ExecSpec{Args: []string{"sh", "-c", "seq 1 2000; echo end >&2"}}); len(r.stdout) != 8893 || r.stderr != "end\n" {
			t.Fatalf("%d bytes, %q", len(r.stdout), r.stderr)
		}
	}
}

func execTTY(t *testing.T, c runtime.Container) {
	reader, writer := io.Pipe()
	out := &syncBuffer{}
	proc, err := c.Exec(testContext(t), runtime.ExecSpec{ID: nextExec(), Args: []string{"sh", "-c", "tty; stty size; read a; stty size; echo got $a"},
		TTY: true, Width: 101, Height: 33}, runtime.IO{Stdin: reader, Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	out.await(t, "33 101")
	if err := proc.Resize(testContext(t), 77, 22); err != nil {
		t.Error(err)
	}
	fmt.Fprintf(writer, "line\n")
	exit, err := proc.Wait()
	writer.Close()
	if err != nil || exit.Code != 0 || !strings.Contains(out.String(), "/dev/pts/") ||
		!strings.Contains(out.String(), "22 77") || !strings.Contains(out.String(), "got line") {
		t.Errorf("%+v %v %q", exit, err, out.String())
	}
}

func execSignal(t *testing.T, c runtime.Container) {
	out := &syncBuffer{}
	proc, err := c.Exec(testContext(t), runtime.ExecSpec{ID: nextExec(), Args: []string{"sh", "-c", "trap 'echo usr; exit 9' USR1; echo ready; while :; do sleep 0.05; done"}},
		runtime.IO{Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	out.await(t, "ready")
	if err := proc.Signal(testContext(t), syscall.SIGUSR1); err != nil {
		t.Error(err)
	}
	if exit, err := proc.Wait(); err != nil || exit.Code != 9 || !strings.Contains(out.String(), "usr") {
		t.Errorf("%+v %v %q", exit, err, out.String())
	}
	if err := proc.Signal(testContext(t), syscall.SIGTERM); err != nil {
		t.Errorf("signal after the end: %v", err)
	}
}

func execBackground(t *testing.T, c runtime.Container) {
	begin := time.Now()
	r := try(t, c, runtime.ExecSpec{Args: []string{"sh", "-c", "(sleep 1; echo late; echo alive >/tmp/alive; sleep 30) & echo early"}})
	if took := time.Since(begin); took > 900*time.Millisecond {
		t.Errorf("took %v", took)
	}
	if r.stdout != "early\n" {
		t.Errorf("%q", r.stdout)
	}
	for range 100 {
		if try(t, c, runtime.ExecSpec{Args: []string{"test", "-e", "/tmp/alive"}}).exit.Code == 0 {
			sh(t, c, "pkill -f '^sleep 30' || true")
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Error("the child did not survive writing to the pipe")
}

// slowWriter takes its time, as a terminal over a slow line does.
type slowWriter struct{ bytes.Buffer }

func (w *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(30 * time.Millisecond)
	return w.Buffer.Write(p)
}

func execSlowReader(t *testing.T, c runtime.Container) {
	out := &slowWriter{}
	proc, err := c.Exec(testContext(t), runtime.ExecSpec{ID: nextExec(), Args: []string{"sh", "-c", "sleep 5 & head -c 200000 /dev/zero"}}, runtime.IO{Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := proc.Wait(); err != nil || out.Len() != 200000 {
		t.Errorf("%v, %d bytes", err, out.Len())
	}
	if err := proc.KillTree(testContext(t)); err != nil {
		t.Error(err)
	}
}

const escape = `
	setsid sleep 1001 & (sleep 1002 &) ; (setsid sh -c 'sleep 1003 & ' &)
	(env -i /bin/sleep 1004 &)
	sh -c 'while :; do sleep 0.01; done' &
	trap '' TERM INT HUP; echo started; while :; do sleep 1005; done`

func killTree(t *testing.T, c runtime.Container) {
	out := &syncBuffer{}
	proc, err := c.Exec(testContext(t), runtime.ExecSpec{ID: nextExec(), Args: []string{"sh", "-c", escape}}, runtime.IO{Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	out.await(t, "started")
	time.Sleep(50 * time.Millisecond)
	if n, err := proc.SignalTree(testContext(t), 0); n < 6 || err != nil { // the shell, its loop, four of the sleeps
		t.Errorf("a tree of %d, %v", n, err)
	}
	begin := time.Now()
	if err := proc.KillTree(testContext(t)); err != nil {
		t.Fatal(err)
	}
	exit, err := proc.Wait()
	if err != nil || exit.Signal != "KILL" {
		t.Errorf("%+v %v", exit, err)
	}
	t.Logf("kill tree: %v", time.Since(begin))
	if left := sh(t, c, "ps -eo args | grep -c '[s]leep' || true"); left != "0" {
		t.Errorf("left: %s", sh(t, c, "ps -eo args"))
	}
}

func killTreeBeside(t *testing.T, c runtime.Container) {
	other, err := c.Exec(testContext(t), runtime.ExecSpec{ID: nextExec(), Args: []string{"sh", "-c", "(setsid sleep 2001 &); sleep 2002"}}, runtime.IO{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	out := &syncBuffer{}
	proc, err := c.Exec(testContext(t), runtime.ExecSpec{ID: nextExec(), Args: []string{"sh", "-c", "(setsid sleep 1001 &) ; (sleep 1002 &); echo started; sleep 1003"}}, runtime.IO{Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	out.await(t, "started")
	if err := proc.Close(); err != nil {
		t.Fatal(err)
	}
	if left := sh(t, c, "ps -eo args | grep '^[s]leep' | sort | tr '\n' ,"); left != "sleep 2001,sleep 2002," {
		t.Errorf("left: %s", left)
	}
}

func zombies(t *testing.T, c runtime.Container) {
	sh(t, c, "for i in 1 2 3 4 5; do (setsid sleep 0.05 &); done")
	for range 50 {
		if sh(t, c, "ps -eo stat | grep -c Z || true") == "0" && sh(t, c, "ps -eo args | grep -c '[s]leep 0.05' || true") == "0" {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("zombies: %s", sh(t, c, "ps -eo pid,ppid,stat,args"))
}

func pause(t *testing.T, c runtime.Container) {
	out := &syncBuffer{}
	proc, err := c.Exec(testContext(t), runtime.ExecSpec{ID: nextExec(), Args: []string{"sh", "-c", "while :; do echo x; sleep 0.01; done"}}, runtime.IO{Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	out.await(t, "x")
	if err := c.Pause(testContext(t)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	before := len(out.String())
	time.Sleep(100 * time.Millisecond)
	if after := len(out.String()); after != before {
		t.Errorf("it goes on: %d, %d", before, after)
	}
	if err := c.Resume(testContext(t)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	if after := len(out.String()); after == before {
		t.Error("it does not go on")
	}
	if err := proc.Close(); err != nil {
		t.Error(err)
	}
}

func execParallel(t *testing.T, b *Backend, c runtime.Container) {
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			var out bytes.Buffer
			proc, err := c.Exec(context.Background(), runtime.ExecSpec{ID: fmt.Sprintf("par%d", i), Args: []string{"echo", strconv.Itoa(i)}}, runtime.IO{Stdout: &out})
			if err != nil {
				t.Error(err)
				return
			}
			if exit, err := proc.Wait(); err != nil || exit.Code != 0 || out.String() != fmt.Sprintf("%d\n", i) {
				t.Errorf("%+v %v %q", exit, err, out.String())
			}
		})
	}
	wg.Wait()
}

func execLeaks(t *testing.T, b *Backend, c runtime.Container) {
	count := func() (fds, pipes int) {
		f, _ := os.ReadDir("/proc/self/fd")
		p, _ := os.ReadDir(b.ioDir())
		return len(f), len(p)
	}
	settle := func() {
		for range 100 {
			c.(*container).mu.Lock()
			n := len(c.(*container).execs)
			c.(*container).mu.Unlock()
			if n == 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(200 * time.Millisecond)
	}
	settle()
	fds, _ := count()
	for range 10 {
		try(t, c, runtime.ExecSpec{Args: []string{"true"}})
		try(t, c, runtime.ExecSpec{Args: []string{"no-such"}})
	}
	settle()
	after, pipes := count()
	if after > fds || pipes != 0 {
		t.Errorf("descriptors: %d before, %d after; %d pipes", fds, after, pipes)
	}
	execs, _ := os.ReadDir(b.opts.RunDir + "/state/io.containerd.runtime.v2.task/git-env/exec")
	for _, e := range execs {
		if strings.HasSuffix(e.Name(), ".pid") && e.Name() != "init.pid" {
			t.Errorf("the shim keeps %s", e.Name())
		}
	}
}

// syncBuffer may be read while it is written.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *syncBuffer) await(t testing.TB, text string) {
	t.Helper()
	for range 500 {
		if strings.Contains(b.String(), text) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no %q in %q", text, b.String())
}
