package containerd

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/containerd/containerd/v2/client"

	"github.com/git-env/git-env/internal/ocitest"
	"github.com/git-env/git-env/runtime"
)

func image(t testing.TB, c ocitest.Config) v1.Image {
	t.Helper()
	img, err := ocitest.Image(c)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestResolve(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	p := newPlace(t)
	r := ocitest.NewRegistry()
	t.Cleanup(r.Close)
	b := p.open(t)
	t.Run("pull", func(t *testing.T) { resolvePull(t, b, r) })
	t.Run("index", func(t *testing.T) { resolveIndex(t, b, r) })
	t.Run("user", func(t *testing.T) { resolveUser(t, b, r) })
	t.Run("platform", func(t *testing.T) { resolvePlatform(t, b, r) })
	t.Run("refused", func(t *testing.T) { resolveRefused(t, b, r) })
	t.Run("login", func(t *testing.T) { resolveLogin(t, b, r) })
	t.Run("silent", func(t *testing.T) { resolveSilent(t, b, r) })
	t.Run("cancel", func(t *testing.T) { resolveCancel(t, b, r) })
	t.Run("nothing left", func(t *testing.T) { nothingHalf(t, b) })
}

func resolvePull(t *testing.T, b *Backend, r *ocitest.Registry) {
	big := make([]byte, 3<<20)
	for i := range big {
		big[i] = byte(i * i >> 7)
	}
	digest, err := r.Push("box:1", image(t, ocitest.Config{Env: []string{"A=1"}, WorkingDir: "/workspace",
		Layers: [][]ocitest.File{{{Name: "big", Data: big}}, {{Name: "bin/.wh.wget"}}}}))
	if err != nil {
		t.Fatal(err)
	}
	var seen []runtime.Progress
	img, err := b.Resolve(testContext(t), r.Ref("box:1"), func(p runtime.Progress) { seen = append(seen, p) })
	if err != nil {
		t.Fatal(err)
	}
	if img.Digest != digest || img.WorkingDir != "/workspace" || !slices.Contains(img.Env, "A=1") || !strings.HasPrefix(img.Env[0], "PATH=") || img.Host {
		t.Errorf("%+v", img)
	}
	last := seen[len(seen)-1]
	if last.Total < 500<<10 || last.Done != last.Total || !slices.IsSortedFunc(seen, func(a, b runtime.Progress) int { return int(a.Done - b.Done) }) {
		t.Errorf("progress: %v", seen)
	}
	r.Refuse(http.StatusServiceUnavailable) // a local image needs no registry
	defer r.Refuse(0)
	again, err := b.Resolve(testContext(t), r.Ref("box:1"), nil)
	if err != nil || again.Digest != img.Digest {
		t.Errorf("%+v %v", again, err)
	}
	create(t, b, "r1", img)
	c := startOn(t, b, "c1", "r1", img)
	if got := sh(t, c, "pwd; echo $A; test -s /big; test ! -e /bin/wget; id -u; cat /proc/1/comm; test ! -e /.git-env"); got != "/workspace\n1\n0\ninit" {
		t.Errorf("%q", got)
	}
	stop(t, b, "c1")
	removeAll(t, b, "r1")
}

func resolveIndex(t *testing.T, b *Backend, r *ocitest.Registry) {
	index, err := ocitest.Index(image(t, ocitest.Config{Arch: "s390x"}), image(t, ocitest.Config{Env: []string{"RIGHT=1"}}))
	if err != nil {
		t.Fatal(err)
	}
	digest, err := r.PushIndex("multi:1", index)
	if err != nil {
		t.Fatal(err)
	}
	img, err := b.Resolve(testContext(t), r.Ref("multi:1"), nil)
	if err != nil || !slices.Contains(img.Env, "RIGHT=1") || img.Digest != digest {
		t.Errorf("%+v %v", img, err)
	}
	// By digest, as another machine asks for it; and after the tag has moved on.
	byDigest, err := b.Resolve(testContext(t), r.Ref("multi@"+digest), nil)
	if err != nil || byDigest.Digest != digest {
		t.Errorf("%+v %v", byDigest, err)
	}
	create(t, b, "r2", byDigest)
	removeAll(t, b, "r2")
	if _, err := b.Resolve(testContext(t), r.Ref("Bad Ref"), nil); !errors.Is(err, runtime.ErrImageNotFound) {
		t.Errorf("%v", err)
	}
}

func resolveUser(t *testing.T, b *Backend, r *ocitest.Registry) {
	for user, want := range map[string]string{
		"user":       "uid=1000(user) gid=1000(user) groups=1000(user),2000(extra)\n/home/user\n0000000000000000",
		"1000:extra": "uid=1000(user) gid=2000(extra) groups=2000(extra)\n/home/user\n0000000000000000",
		"4242":       "uid=4242 gid=0(root) groups=0(root)\n/\n0000000000000000",
	} {
		ref := "user:" + strings.ReplaceAll(user, ":", "-")
		if _, err := r.Push(ref, image(t, ocitest.Config{User: user})); err != nil {
			t.Fatal(err)
		}
		img, err := b.Resolve(testContext(t), r.Ref(ref), nil)
		if err != nil {
			t.Fatal(err)
		}
		create(t, b, "ru", img)
		c := startOn(t, b, "cu", "ru", img)
		if got := sh(t, c, "id; echo $HOME; grep CapEff /proc/self/status | tr -d '\\t' | cut -d: -f2"); got != want {
			t.Errorf("%s: %q, want %q", user, got, want)
		}
		stop(t, b, "cu")
		removeAll(t, b, "ru")
	}
	// A passwd that is a link out of the root is looked up inside.
	if _, err := r.Push("user:link", image(t, ocitest.Config{User: "daemon", Bare: true, Layers: [][]ocitest.File{
		{{Name: "etc/"}, {Name: "etc/passwd", Link: "/proc/1/root/../../../../etc/passwd"}}}})); err != nil {
		t.Fatal(err)
	}
	img, err := b.Resolve(testContext(t), r.Ref("user:link"), nil)
	if err != nil {
		t.Fatal(err)
	}
	create(t, b, "rl", img)
	c := startOn(t, b, "cl", "rl", img)
	if got := try(t, c, runtime.ExecSpec{Args: []string{"/x"}}); got.err == nil || !strings.Contains(got.err.Error(), "daemon") {
		t.Errorf("%+v", got)
	}
	stop(t, b, "cl")
	removeAll(t, b, "rl")
}

func oneLineOf(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%v is not %v", err, kind)
		return
	}
	for _, word := range append(words, "") {
		if !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 200 {
			t.Errorf("message %q lacks %q or is long", err, word)
		}
	}
	t.Log(err)
}

func resolvePlatform(t *testing.T, b *Backend, r *ocitest.Registry) {
	foreign := image(t, ocitest.Config{Arch: "s390x"})
	if _, err := r.Push("foreign:1", foreign); err != nil {
		t.Fatal(err)
	}
	index, err := ocitest.Index(foreign, image(t, ocitest.Config{Arch: "ppc64le"}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.PushIndex("foreign:2", index); err != nil {
		t.Fatal(err)
	}
	_, err = b.Resolve(testContext(t), r.Ref("foreign:1"), nil)
	oneLineOf(t, err, runtime.ErrPlatform, "linux/s390x")
	_, err = b.Resolve(testContext(t), r.Ref("foreign:2"), nil)
	oneLineOf(t, err, runtime.ErrPlatform, "linux/s390x", "linux/ppc64le")
}

func resolveRefused(t *testing.T, b *Backend, r *ocitest.Registry) {
	defer r.Refuse(0)
	_, err := b.Resolve(testContext(t), r.Ref("no/such:1"), nil)
	oneLineOf(t, err, runtime.ErrImageNotFound, "no/such:1")
	for status, word := range map[int]string{403: "refuses", 429: "429", 500: "500", 503: "503"} {
		r.Refuse(status)
		_, err = b.Resolve(testContext(t), r.Ref("other:1"), nil)
		oneLineOf(t, err, runtime.ErrRegistry, word)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := l.Addr().String()
	l.Close()
	_, err = b.Resolve(testContext(t), dead+"/x:1", nil)
	oneLineOf(t, err, runtime.ErrRegistry, "connection refused", dead)
}

func resolveLogin(t *testing.T, b *Backend, r *ocitest.Registry) {
	if _, err := r.Push("private:1", image(t, ocitest.Config{})); err != nil {
		t.Fatal(err)
	}
	r.RequireLogin("me", "secret:word")
	defer r.RequireLogin("", "")
	_, err := b.Resolve(testContext(t), r.Ref("private:1"), nil)
	oneLineOf(t, err, runtime.ErrRegistry, "refuses")
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	auth := base64.StdEncoding.EncodeToString([]byte("me:secret:word"))
	writeFile(t, filepath.Join(dir, "config.json"), fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, r.Host(), auth), 0o600)
	if _, err := b.Resolve(testContext(t), r.Ref("private:1"), nil); err != nil {
		t.Error(err)
	}
	if _, err := r.Push("private:2", image(t, ocitest.Config{Env: []string{"X=2"}})); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "docker-credential-test"), "#!/bin/sh\nread host\necho '{\"Username\":\"me\",\"Secret\":\"secret:word\"}'\n", 0o755)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	writeFile(t, filepath.Join(dir, "config.json"), fmt.Sprintf(`{"credHelpers":{%q:"test"}}`, r.Host()), 0o600)
	if _, err := b.Resolve(testContext(t), r.Ref("private:2"), nil); err != nil {
		t.Error(err)
	}
}

func writeFile(t testing.TB, path, data string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), mode); err != nil {
		t.Fatal(err)
	}
}

func resolveSilent(t *testing.T, b *Backend, r *ocitest.Registry) {
	if _, err := r.Push("slow:1", image(t, ocitest.Config{Env: []string{"SLOW=1"}, Layers: [][]ocitest.File{{{Name: "slow", Data: []byte(strings.Repeat("slow", 1000))}}}})); err != nil {
		t.Fatal(err)
	}
	for name, silence := range map[string]func(bool){
		"all": r.Stall,
		"blobs": func(on bool) {
			r.StallBlobs(0)
			if on {
				r.StallBlobs(50)
			}
		},
	} {
		silence(true)
		begin := time.Now()
		_, err := b.Resolve(testContext(t), r.Ref("slow:1"), nil)
		silence(false)
		oneLineOf(t, err, runtime.ErrRegistry, "does not answer")
		if took := time.Since(begin); took > 4*b.opts.RegistryTimeout {
			t.Errorf("%s: took %v", name, took)
		}
	}
	if _, err := b.Resolve(testContext(t), r.Ref("slow:1"), nil); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func resolveCancel(t *testing.T, b *Backend, r *ocitest.Registry) {
	if _, err := r.Push("cancel:1", image(t, ocitest.Config{Layers: [][]ocitest.File{{{Name: "c", Data: []byte(strings.Repeat("cancel", 1000))}}}})); err != nil {
		t.Fatal(err)
	}
	r.StallBlobs(50)
	defer r.StallBlobs(0)
	ctx, cancel := context.WithCancel(testContext(t))
	time.AfterFunc(500*time.Millisecond, cancel)
	begin := time.Now()
	if _, err := b.Resolve(ctx, r.Ref("cancel:1"), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if took := time.Since(begin); took > 1500*time.Millisecond {
		t.Errorf("took %v", took)
	}
}

// nothingHalf checks that no pull has left a lease or a half fetched blob.
func nothingHalf(t *testing.T, b *Backend) {
	err := b.call(testContext(t), func(ctx context.Context, c *client.Client) error {
		held, err := c.LeasesService().List(ctx)
		if err != nil || len(held) > 0 {
			t.Errorf("leases: %v %v", held, err)
		}
		half, err := c.ContentStore().ListStatuses(ctx)
		if err != nil || len(half) > 0 {
			t.Errorf("half fetched: %v %v", half, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCredentialsKeys(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "config.json"), `{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"},"example.com":{"identitytoken":"tok"},"https://example.org":{"username":"n","password":"w"}}}`, 0o600)
	c := &credentials{dir: dir}
	for host, want := range map[string]string{"registry-1.docker.io": "u p", "example.com": " tok", "example.org": "n w", "example.net": " "} {
		user, secret, err := c.lookUp(host)
		if err != nil || user+" "+secret != want {
			t.Errorf("%s: %q %q %v", host, user, secret, err)
		}
	}
}
