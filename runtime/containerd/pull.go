package containerd

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"

	"github.com/git-env/git-env/runtime"
)

const (
	dialTimeout      = 8 * time.Second
	progressInterval = 100 * time.Millisecond
)

var errSilent = errors.New("no answer in time")

// pull fetches and unpacks an image. However it ends, nothing of an unfinished
// pull stays behind: what it stores hangs on a lease.
func (b *Backend) pull(ctx context.Context, name string, progress func(runtime.Progress)) error {
	c, err := b.conn(ctx)
	if err != nil {
		return err
	}
	nsCtx := quiet(namespaces.WithNamespace(ctx, namespace))
	lease, err := c.LeasesService().Create(nsCtx, leases.WithRandomID(), leases.WithExpiration(24*time.Hour))
	if err != nil {
		return native(err)
	}
	defer func() {
		// Also when ctx is done: deleting synchronously collects what it held.
		clean, cancel := context.WithTimeout(context.WithoutCancel(nsCtx), removeTimeout)
		defer cancel()
		if err := c.LeasesService().Delete(clean, lease, leases.SynchronousDelete); err != nil {
			b.warn("pull %s: %v", name, err)
		}
	}()
	pullCtx, cancel := context.WithCancelCause(leases.WithLease(nsCtx, lease.ID))
	defer cancel(nil)
	meter := newMeter(progress)
	stop := meter.run(b.opts.RegistryTimeout, cancel)
	defer stop()

	resolver, done := newResolver()
	defer done()
	matcher := platforms.Default()
	check := &platformCheck{store: c.ContentStore(), matcher: matcher}
	_, err = c.Pull(pullCtx, name,
		client.WithPullUnpack,
		client.WithPullSnapshotter(snapshotter),
		client.WithPlatformMatcher(matcher),
		client.WithResolver(meter.resolver(resolver)),
		client.WithImageHandlerWrapper(check.wrap(meter)),
	)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(context.Cause(pullCtx), errSilent) {
		err = errSilent
	}
	return explainPull(name, err)
}

// quiet keeps the client library from writing to standard error on its own.
func quiet(ctx context.Context) context.Context {
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	return log.WithLogger(ctx, logrus.NewEntry(logger))
}

// newResolver talks to registries: plainly to those on this machine, with TLS to
// all others, and with the credentials of the user's docker configuration.
// done drops the connections.
func newResolver() (resolver remotes.Resolver, done func()) {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           dialer.DialContext,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: defaultRegistryTimeout,
		ExpectContinueTimeout: 5 * time.Second,
		IdleConnTimeout:       10 * time.Second,
		MaxIdleConnsPerHost:   8,
	}
	httpClient := &http.Client{Transport: transport}
	credentials := newCredentials()
	authorizer := docker.NewDockerAuthorizer(docker.WithAuthClient(httpClient), docker.WithAuthCreds(credentials.lookUp))
	resolver = docker.NewResolver(docker.ResolverOptions{
		Hosts: docker.ConfigureDefaultRegistries(
			docker.WithClient(httpClient),
			docker.WithPlainHTTP(docker.MatchLocalhost),
			docker.WithAuthorizer(authorizer),
		),
	})
	return resolver, transport.CloseIdleConnections
}

// meter counts what comes from a registry and notices when nothing does.
type meter struct {
	report func(runtime.Progress)

	mu      sync.Mutex // guards all below
	phase   string
	done    int64
	total   int64
	known   map[string]bool // digests in total
	waiting int             // requests that the registry has not answered in full
	last    time.Time       // when it last said something
}

func newMeter(report func(runtime.Progress)) *meter {
	if report == nil {
		report = func(runtime.Progress) {}
	}
	return &meter{report: report, phase: "resolve", known: make(map[string]bool), last: time.Now()}
}

// run reports progress and cancels when the registry is silent for too long. The
// returned function ends it, after a last report.
func (m *meter) run(limit time.Duration, cancel context.CancelCauseFunc) (stop func()) {
	quit, finished := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		tick := time.NewTicker(progressInterval)
		defer tick.Stop()
		for {
			m.report(m.progress())
			select {
			case <-quit:
				m.report(m.progress())
				return
			case <-tick.C:
				if m.silent(limit) {
					cancel(errSilent)
				}
			}
		}
	}()
	return func() {
		close(quit)
		<-finished
	}
}

func (m *meter) progress() runtime.Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	phase := m.phase
	if phase == "pull" && m.waiting == 0 && m.done >= m.total {
		phase = "unpack"
	}
	return runtime.Progress{Phase: phase, Done: min(m.done, m.total), Total: m.total}
}

func (m *meter) silent(limit time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waiting > 0 && time.Since(m.last) > limit
}

// expect counts a blob once; present says that it need not be fetched.
func (m *meter) expect(desc ocispec.Descriptor) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known[desc.Digest.String()] {
		return
	}
	m.known[desc.Digest.String()] = true
	m.phase = "pull"
	m.total += desc.Size
}

// asked and answered bracket a request.
func (m *meter) asked() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiting == 0 {
		m.last = time.Now()
	}
	m.waiting++
}

func (m *meter) answered() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting--
	m.last = time.Now()
}

func (m *meter) received(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += int64(n)
	m.last = time.Now()
}
