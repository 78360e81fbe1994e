package fusefs

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"syscall"
	"time"

	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
)

const (
	controlFD = 3
	healthFD  = 4 // the watchdog asks there
	// maxFds bounds the backing files that are open without being in use.
	maxFds = 1024
	// gitProcesses is how many cat-file processes a file server uses at most.
	gitProcesses = 3
	// spareProcs is how many processors more than twice those of the machine
	// the scheduler of a file server believes in.
	spareProcs = 2
)

// ServerMain is the body of the hidden command `git-env fusefs`: the file
// server. Its control socket is descriptor 3. It returns the exit code.
func ServerMain(ctx context.Context, args []string) int {
	logger := log.New(os.Stderr, "fusefs: ", log.LstdFlags|log.Lmicroseconds|log.Lmsgprefix)
	if len(args) > 0 && args[0] == "merge" {
		return mergeMain(args[1:], logger)
	}
	flags := flag.NewFlagSet("fusefs", flag.ContinueOnError)
	gitDir := flags.String("git-dir", "", "repository")
	blobs := flags.String("blobs", "", "directory of materialised blobs")
	layers := flags.String("layers", "", "directory of layers")
	nodes := flags.Int("nodes", 0, "nodes in memory from which on a mount forgets some; 0 for the usual")
	blobCache := flags.Int64("blob-cache", 0, "bytes of materialised blobs; 0 for any number")
	if err := flags.Parse(args); err != nil || *gitDir == "" || *blobs == "" || *layers == "" {
		logger.Print("for internal use: git-env starts this itself")
		return 129
	}
	// A worker of the rings that sleeps in the kernel keeps its processor, as
	// the scheduler sees it, until that is wanted; with some to spare nobody
	// wants it, and waking up costs the worker nothing.
	goruntime.GOMAXPROCS(2*goruntime.NumCPU() + spareProcs)
	// Whatever the daemon's terminal does is not our business, and no
	// directory is to be held.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE)
	// A limit on the size of files is an error of the write, not our end.
	signal.Ignore(syscall.SIGXFSZ)
	syscall.Umask(0) // every mode is meant as given
	if err := os.Chdir("/"); err != nil {
		logger.Print(err)
		return 1
	}
	control := os.NewFile(controlFD, "control")
	c, err := newConn(control)
	control.Close()
	if err != nil {
		logger.Printf("control socket: %v", err)
		return 1
	}
	git := gitcmd.New(*gitDir).WithEnv("GIT_NO_REPLACE_OBJECTS=1")
	reader := objects.NewReader(git, gitProcesses)
	defer reader.Close()
	sh := &shared{layerDir: *layers, objs: keepRecent(gitObjects{reader}), fds: newFdCache(maxFds), log: logger, nodeLimit: *nodes}
	sh.conv = newConverters(git, reader, filepath.Join(filepath.Dir(*blobs), "tmp"), logger)
	// It is needed for the first mount: read beside what comes before that. A
	// failure comes again then.
	go func() { _, _ = sh.conv.config.Config(ctx) }()
	s := newServer(sh, *blobs, *blobCache)
	syscall.CloseOnExec(healthFD)
	go s.answerHealth(os.NewFile(healthFD, "health"))
	return s.run(ctx, c)
}

// server is the file server: all mounts, and the control socket.
type server struct {
	shared *shared
	wg     sync.WaitGroup // of requests

	mu     sync.Mutex
	mounts map[string]*mount // guarded by mu; nil while one is being made

	ringsMu  sync.Mutex
	rings    *uringPool // guarded by ringsMu; made for the first mount that wants it
	ringsErr error      // guarded by ringsMu: why there is none
}

// mount is a workspace that is being served.
type mount struct {
	w       *workspace
	carrier transport
	ended   chan struct{} // closed when the kernel asks no more
	close   sync.Once
}

func newServer(sh *shared, blobDir string, blobCache int64) *server {
	sh.blobs = newBlobStore(blobDir, sh.objs, blobCache, sh.log)
	sh.aheadWorker = newAheadWorker(sh.blobs)
	sh.conv.store = newConvertStore(sh.blobs)
	return &server{shared: sh, mounts: map[string]*mount{}}
}

// run answers requests until the daemon is gone or says quit.
func (s *server) run(ctx context.Context, c *conn) int {
	if err := c.send(&response{}, nil); err != nil {
		s.shared.log.Printf("control socket: %v", err)
		return 1
	}
	for {
		var req request
		if err := c.receive(&req); err != nil {
			s.abandon()
			return 0
		}
		if req.Op == opQuit {
			s.abandon()
			if err := c.send(&response{ID: req.ID}, nil); err != nil {
				return 1
			}
			return 0
		}
		fd := -1
		if req.Op == opMount {
			fd = c.takeFD()
		}
		s.wg.Go(func() {
			resp := s.handle(ctx, &req, fd)
			resp.ID = req.ID
			if err := c.send(resp, nil); err != nil {
				s.shared.log.Printf("control socket: %v", err)
			}
		})
	}
}

// abandon takes down every mount that is left: the daemon is dead or has
// given up. It never waits for long, since whoever hangs on a mount does so
// until we are gone.
func (s *server) abandon() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, m := range s.all() {
			if err := AbortStale(m.w.spec.Dir); err != nil {
				s.shared.log.Printf("%s: %v", m.w.spec.ID, err)
			}
			m.finish(time.Second)
		}
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
	}
}

func (s *server) all() []*mount {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*mount
	for _, m := range s.mounts {
		if m != nil {
			all = append(all, m)
		}
	}
	return all
}

func (s *server) handle(ctx context.Context, req *request, fd int) *response {
	var resp response
	var err error
	if req.Op == opMount {
		err = s.mount(ctx, req.Spec, fd, req.Uring)
		if m := s.get(req.Mount); err == nil && m != nil {
			resp.Repairs = m.w.repairs
		}
		resp.Err = toRemote(err)
		return &resp
	}
	if req.Op == opHydrate {
		resp.Hydrated, err = s.shared.blobs.hydrate(ctx, req.Blobs)
		resp.Err = toRemote(err)
		return &resp
	}
	m := s.get(req.Mount)
	if m == nil {
		return &response{Err: toRemote(fmt.Errorf("%w: %s", ErrNotMounted, req.Mount))}
	}
	switch req.Op {
	case opUnmount:
		err = s.unmount(req.Mount, m)
	case opDirty:
		resp.Dirty, err = m.w.dirty(req.Paths)
	case opList:
		resp.Lists, err = m.w.listDirs(ctx, req.Paths)
	case opStat:
		resp.Entries, err = m.w.stat(ctx, req.Paths)
	case opMark:
		err = m.w.mark(req.Seq, req.Commit)
	case opFreeze:
		resp.Frozen, err = m.w.freeze(req.NewTop)
	case opStack:
		resp.Stack = m.w.stack()
	case opAwaited:
		m.w.awaited()
	case opHold:
		m.w.hold(req.Held)
	case opSync:
		err = m.w.sync()
	case opServing:
		select {
		case <-m.ended:
			err = fmt.Errorf("%w: the connection of %s is gone", ErrNotMounted, req.Mount)
		default:
		}
	case opQuota:
		err = m.w.quota.setLimit(req.Limit)
	case opUsage:
		resp.Usage = m.w.quota.usage()
	case opNotices:
		resp.Notices = m.w.notices()
	default:
		err = fmt.Errorf("unknown request %d", req.Op)
	}
	resp.Err = toRemote(err)
	return &resp
}

func (s *server) get(id string) *mount {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mounts[id]
}

// mount serves fd, which the daemon has mounted at spec.Dir. It returns when
// the kernel's first message is answered.
func (s *server) mount(ctx context.Context, spec MountSpec, fd int, uring bool) (err error) {
	if fd < 0 {
		return fmt.Errorf("no descriptor came with the mount request")
	}
	defer func() {
		if err != nil && fd >= 0 {
			syscall.Close(fd)
		}
	}()
	s.mu.Lock()
	if _, busy := s.mounts[spec.ID]; busy {
		s.mu.Unlock()
		return fmt.Errorf("%w: %s", ErrMounted, spec.ID)
	}
	s.mounts[spec.ID] = nil
	s.mu.Unlock()
	m := &mount{ended: make(chan struct{})}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			delete(s.mounts, spec.ID)
		} else {
			s.mounts[spec.ID] = m
		}
	}()
	if m.w, err = newWorkspace(ctx, spec, s.shared); err != nil {
		return err
	}
	carrier, err := s.transport(m.w, fd, uring)
	m.carrier = carrier
	fd = -1 // the transport's now
	if err != nil {
		m.w.close()
		return err
	}
	mine, err := findMount(spec.Dir)
	if err != nil {
		s.shared.log.Printf("mount table: %v", err)
	}
	go func() {
		defer close(m.ended)
		broken := func() { s.abandoned(spec.Dir, mine) }
		carrier.serve(broken)
		broken()
	}()
	return nil
}

// abandoned aborts a mount that is still there although nobody serves it any
// more, which would leave everybody who uses it waiting: the daemon's descriptor
// keeps the connection open.
func (s *server) abandoned(dir string, mine *mountEntry) {
	now, err := findMount(dir)
	if err != nil || mine == nil || now == nil || now.minor != mine.minor {
		return // unmounted, as it should be
	}
	s.shared.log.Printf("%s: the connection broke, aborting the mount", dir)
	if err := abort(dir); err != nil {
		s.shared.log.Printf("%v", err)
	}
}

// unmount ends a mount that the daemon has taken away.
func (s *server) unmount(id string, m *mount) error {
	m.w.conv.end() // a filter may take as long as it likes
	if !m.finish(time.Second) {
		return fmt.Errorf("%s: %w: still in use", id, syscall.EBUSY)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mounts[id] == m {
		delete(s.mounts, id)
	}
	return nil
}

// finish closes the workspace once the kernel asks no more, and reports
// whether that was so within the time given.
func (m *mount) finish(wait time.Duration) bool {
	select {
	case <-m.ended:
		m.close.Do(m.w.close)
		return true
	case <-time.After(wait):
		return false
	}
}
