package ocitest

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Registry is a registry on the loopback interface. Its behaviour may be changed
// at any time; it is safe for concurrent use.
type Registry struct {
	server *httptest.Server
	inner  http.Handler
	quit   chan struct{}
	once   sync.Once

	mu       sync.Mutex // guards all below
	login    string     // "user:password" that is asked for
	refuse   int        // status to answer everything with
	stall    bool       // say nothing at all
	trickle  int        // bytes of a blob to send before going silent; 0 sends all
	requests []string   // "GET /v2/…"
}

// NewRegistry serves an empty registry; Close it.
func NewRegistry() *Registry {
	r := &Registry{
		inner: registry.New(registry.Logger(log.New(io.Discard, "", 0))),
		quit:  make(chan struct{}),
	}
	r.server = httptest.NewServer(r)
	return r
}

// Close ends the registry and every request that hangs in it.
func (r *Registry) Close() {
	r.once.Do(func() {
		close(r.quit)
		r.server.CloseClientConnections()
		r.server.Close()
	})
}

// Host is its host and port.
func (r *Registry) Host() string { return strings.TrimPrefix(r.server.URL, "http://") }

// Ref is the full reference of a repository and tag in it: "box:1".
func (r *Registry) Ref(repository string) string { return r.Host() + "/" + repository }

// Push puts an image in, whatever behaviour is set, and returns its digest.
func (r *Registry) Push(repository string, img v1.Image) (digest string, err error) {
	ref, err := name.ParseReference(r.Ref(repository), name.Insecure)
	if err != nil {
		return "", fmt.Errorf("push image: %w", err)
	}
	if err := remote.Write(ref, img, remote.WithTransport(direct{r.inner})); err != nil {
		return "", fmt.Errorf("push image: %w", err)
	}
	hash, err := img.Digest()
	return hash.String(), err
}

// PushIndex puts an index in, like Push.
func (r *Registry) PushIndex(repository string, index v1.ImageIndex) (digest string, err error) {
	ref, err := name.ParseReference(r.Ref(repository), name.Insecure)
	if err != nil {
		return "", fmt.Errorf("push index: %w", err)
	}
	if err := remote.WriteIndex(ref, index, remote.WithTransport(direct{r.inner})); err != nil {
		return "", fmt.Errorf("push index: %w", err)
	}
	hash, err := index.Digest()
	return hash.String(), err
}

// RequireLogin makes it ask for basic authentication; "" ends that.
func (r *Registry) RequireLogin(user, password string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.login = ""
	if user != "" {
		r.login = user + ":" + password
	}
}

// Refuse makes it answer everything with a status; 0 ends that.
func (r *Registry) Refuse(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = status
}

// Stall makes it accept requests and never answer.
func (r *Registry) Stall(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stall = on
}

// StallBlobs makes it go silent after so many bytes of each blob; 0 ends that.
func (r *Registry) StallBlobs(after int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trickle = after
}

// Requests lists what was asked so far, as "METHOD path".
func (r *Registry) Requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.requests...)
}

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	login, refuse, stall, trickle := r.login, r.refuse, r.stall, r.trickle
	r.requests = append(r.requests, req.Method+" "+req.URL.Path)
	r.mu.Unlock()
	if stall {
		r.hang(req)
		return
	}
	if refuse != 0 {
		http.Error(w, http.StatusText(refuse), refuse)
		return
	}
	if user, password, _ := req.BasicAuth(); login != "" && user+":"+password != login {
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		http.Error(w, "unauthorized", http.StatusUnauthorized)
		return
	}
	if trickle > 0 && req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/") {
		w = &stallingWriter{ResponseWriter: w, left: trickle, hang: func() { r.hang(req) }}
	}
	r.inner.ServeHTTP(w, req)
}

// hang blocks until the client or the registry goes away.
func (r *Registry) hang(req *http.Request) {
	select {
	case <-req.Context().Done():
	case <-r.quit:
	case <-time.After(2 * time.Minute):
	}
}

type stallingWriter struct {
	http.ResponseWriter
	left int
	hang func()
}

func (w *stallingWriter) Write(p []byte) (int, error) {
	if len(p) < w.left {
		n, err := w.ResponseWriter.Write(p)
		w.left -= n
		return n, err
	}
	n, err := w.ResponseWriter.Write(p[:w.left])
	if err != nil {
		return n, err
	}
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
	w.hang()
	return n, io.ErrClosedPipe
}

// direct sends requests to a handler without a network.
type direct struct{ handler http.Handler }

func (d direct) RoundTrip(req *http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	if req.Body == nil {
		req.Body = http.NoBody
	}
	d.handler.ServeHTTP(recorder, req)
	resp := recorder.Result()
	resp.Request = req
	return resp, nil
}
