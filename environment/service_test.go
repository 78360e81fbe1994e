package environment

import (
	"context"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/git-env/git-env/internal/settings"
	"github.com/git-env/git-env/notes"
	"github.com/git-env/git-env/runtime"
)

// fakeBox is a container whose processes end as they are told.
type fakeBox struct {
	runtime.Container
	mu     sync.Mutex
	exits  []runtime.Exit // of the processes that end by themselves, in order; guarded by mu
	starts int            // guarded by mu
	looks  int            // questions whether it runs; guarded by mu
	dies   int            // which of them is the first to be denied, 0 for none
	checks int            // health checks that fail before one succeeds; guarded by mu
}

func (b *fakeBox) Running(context.Context) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looks++
	return b.dies == 0 || b.looks < b.dies
}
func (b *fakeBox) Pid() int { return os.Getpid() }

func (b *fakeBox) Exec(_ context.Context, spec runtime.ExecSpec, streams runtime.IO) (runtime.Process, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &fakeProc{done: make(chan struct{})}
	if spec.Args[2] == "health" {
		if b.checks > 0 {
			b.checks--
			p.exit.Code = 1
		}
		close(p.done)
		return p, nil
	}
	b.starts++
	_, _ = streams.Stdout.Write([]byte("started\n"))
	if len(b.exits) > 0 {
		p.exit = b.exits[0]
		b.exits = b.exits[1:]
		close(p.done)
	}
	return p, nil
}

type fakeProc struct {
	runtime.Process
	exit runtime.Exit
	done chan struct{}
}

func (p *fakeProc) Wait() (runtime.Exit, error) { <-p.done; return p.exit, nil }
func (p *fakeProc) Pid() int                    { return 0 }
func (p *fakeProc) Close() error                { return nil }
func (p *fakeProc) KillTree(context.Context) error {
	return nil
}
func (p *fakeProc) Signal(context.Context, syscall.Signal) error {
	p.exit = runtime.Exit{Code: 143, Signal: "TERM"}
	close(p.done)
	return nil
}
func (p *fakeProc) SignalTree(context.Context, syscall.Signal) (int, error) { return 0, nil }

type quietReporter struct{}

func (quietReporter) Progress(string, int64, int64) {}
func (quietReporter) Warn(string)                   {}

// lookedAfter starts a service in a fake container.
func lookedAfter(t *testing.T, set Service, box *fakeBox) *service {
	t.Helper()
	r := newRig(t, nil)
	set.Name, set.Command, set.HealthInterval = "web", "serve", time.Millisecond
	s := newSupervised(newEnv(r.e, r.state("e")), set, box)
	if err := s.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	go s.supervise()
	t.Cleanup(func() {
		s.end(0)
		<-s.ended
	})
	return s
}

// TestServiceRestarts has a service fail twice before it runs.
func TestServiceRestarts(t *testing.T) {
	box := &fakeBox{exits: []runtime.Exit{{Code: 1}, {Code: 137, Signal: "KILL"}}, checks: 3}
	s := lookedAfter(t, Service{Health: "health", Restart: "on-failure"}, box)
	if err := s.awaitReady(t.Context(), quietReporter{}); err != nil {
		t.Fatal(err)
	}
	if p := s.home.now(); p.State != ProcRunning || p.Health != "healthy" || p.Restarts != 2 {
		t.Errorf("%+v", p)
	}
	s.end(time.Minute)
	<-s.ended
	p, err := s.v.e.store.FindProcess("e", "web")
	if err != nil || p.State != ProcStopped || p.Outcome.Signal != "TERM" || p.Kind != KindService {
		t.Errorf("%+v, %v", p, err)
	}
	if out, err := recorderOf(s.home.log.dir); err != nil || out.bytes() != int64(3*len("started\n")) {
		t.Errorf("a log of %d bytes, %v", out.bytes(), err)
	}
}

// TestServiceHopeless has who waits for a service hear of its failures.
func TestServiceHopeless(t *testing.T) {
	exit := runtime.Exit{Code: 3}
	s := lookedAfter(t, Service{Ports: []settings.Port{{Inside: 1}}, Restart: "always"}, &fakeBox{exits: []runtime.Exit{exit, exit, exit, exit}})
	err := s.awaitReady(t.Context(), quietReporter{})
	if err == nil || !strings.Contains(err.Error(), "exit 3; it printed last:\nstarted\n") {
		t.Errorf("%v", err)
	}
	if p := s.home.now(); p.State != ProcFailed {
		t.Errorf("%+v", p)
	}
}

// TestServiceDone has a service that is to run once.
func TestServiceDone(t *testing.T) {
	for restart, want := range map[string]notes.Outcome{"no": {Exit: 4}, "on-failure": {}} {
		box := &fakeBox{exits: []runtime.Exit{{Code: want.Exit}}}
		s := lookedAfter(t, Service{Restart: restart}, box)
		<-s.ended
		if p := s.home.now(); p.State != ProcExited || p.Outcome != want || box.starts != 1 {
			t.Errorf("%s: %+v, started %d times", restart, p, box.starts)
		}
		if s.v.isDown("web") != (want.Exit == 0) {
			t.Errorf("%s: to be left alone: %v", restart, s.v.isDown("web"))
		}
	}
}

// TestServiceContainerEnds has the container end under a service, which shows only
// while it waits to start it again.
func TestServiceContainerEnds(t *testing.T) {
	box := &fakeBox{exits: []runtime.Exit{{Code: 137, Signal: "KILL"}}, dies: 2}
	s := lookedAfter(t, Service{Restart: "always"}, box)
	<-s.ended
	if p := s.home.now(); p.State != ProcInterrupted || box.starts != 1 {
		t.Errorf("%+v, started %d times", p, box.starts)
	}
}

func TestListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.77.1.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	for addr, want := range map[string]bool{"127.77.1.2": true, "127.77.1.3": false} {
		if got, err := listens(os.Getpid(), netip.MustParseAddr(addr), port); got != want || err != nil {
			t.Errorf("%s: %v, %v", addr, got, err)
		}
	}
	for text, want := range map[string]string{
		"0100007F:1F90":                         "127.0.0.1:8080",
		"00000000000000000000000001000000:0050": "[::1]:80",
		"0000000000000000FFFF00000100007F:0050": "127.0.0.1:80",
	} {
		addr, port, ok := socketAddr(text)
		if got := netip.AddrPortFrom(addr, port).String(); got != want || !ok {
			t.Errorf("%s: %s, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "0100007F", "0100007F:", "01:50", "0100007G:0050"} {
		if _, _, ok := socketAddr(text); ok {
			t.Errorf("%q is taken for an address", text)
		}
	}
}

func TestServiceAddress(t *testing.T) {
	a := serviceAddress("01A", "db")
	if a != serviceAddress("01A", "db") || a == serviceAddress("01B", "db") || a == serviceAddress("01A", "web") {
		t.Error("addresses are not told apart, or not kept")
	}
	if !netip.MustParsePrefix("127.128.0.0/9").Contains(netip.MustParseAddr(a)) {
		t.Errorf("%s", a)
	}
}

func TestPinned(t *testing.T) {
	for _, c := range [][3]string{
		{"host", "", "host"},
		{"r:5000/a:1", "sha256:x", "r:5000/a@sha256:x"},
		{"r:5000/a", "sha256:x", "r:5000/a@sha256:x"},
		{"a@sha256:y", "sha256:y", "a@sha256:y"},
	} {
		if got := (ImageRef{Ref: c[0], Digest: c[1]}).pinned(); got != c[2] {
			t.Errorf("%s: %s", c[0], got)
		}
	}
}
