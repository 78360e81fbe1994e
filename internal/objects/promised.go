package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/git-env/git-env/internal/gitcmd"
)

// In a partial clone git fetches an object that is not here when it is asked
// for it: one conversation with the remote for each. A Reader therefore reads
// such a repository through a git directory without remotes, whose objects are
// the repository's, learns what is missing, and fetches that at once.

const (
	// fetchBatch is how many objects are asked of a remote at once.
	fetchBatch = 10_000
	// fetchSilence is how long a fetch may make no progress.
	fetchSilence = 2 * time.Minute
	// fetchPatience is how long a fetch may take to fail before others wait: then
	// none is tried for as long again, at most for fetchPause.
	fetchPatience, fetchPause = 2 * time.Second, time.Minute
)

// partial is what makes a repository a partial clone.
type partial struct {
	git     *gitcmd.Git
	remotes []string // that promised objects, in the order in which git asks
	here    *Reader  // knows what is here only

	turn   chan struct{} // one fetch at a time
	failed error         // of the last fetch; guarded by turn
	until  time.Time     // no other one is tried before; guarded by turn
}

// ErrFetch means that objects of a partial clone could not be fetched.
var ErrFetch = errors.New("fetch failed")

type partialOnce struct {
	once sync.Once
	p    *partial
}

// Partial reports whether the repository is a partial clone, whose objects may
// have to be fetched.
func (r *Reader) Partial() bool { return r.partial() != nil }

// partial returns nil for a repository that has all its objects.
func (r *Reader) partial() *partial {
	if r.isHere {
		return nil
	}
	r.promise.once.Do(func() {
		config, err := os.ReadFile(filepath.Join(r.git.GitDir(), "config"))
		config = bytes.ToLower(config)
		if err != nil || !bytes.Contains(config, []byte("promisor")) && !bytes.Contains(config, []byte("partialclone")) {
			return
		}
		// Without it everything works, only slowly: git fetches one by one.
		r.promise.p, _ = newPartial(r.git, r.size)
	})
	return r.promise.p
}

func newPartial(g *gitcmd.Git, procs int) (*partial, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	remotes, err := promisors(ctx, g)
	if err != nil || len(remotes) == 0 {
		return nil, err
	}
	format, err := g.Line(ctx, "rev-parse", "--show-object-format")
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(g.GitDir(), "env", "objects-only")
	if err := makeBareDir(dir, format); err != nil {
		return nil, err
	}
	here := NewReader(gitcmd.New(dir).WithEnv("GIT_OBJECT_DIRECTORY="+filepath.Join(g.GitDir(), "objects")), procs)
	here.isHere = true
	return &partial{git: g, remotes: remotes, here: here, turn: make(chan struct{}, 1)}, nil
}

// promisors lists the remotes that promised objects; that of the extension is
// the last one, as for git.
func promisors(ctx context.Context, g *gitcmd.Git) ([]string, error) {
	out, err := g.Output(ctx, nil, "config", "-z", "--get-regexp", `^(remote\..*\.promisor|extensions\.partialclone)$`)
	var ge *gitcmd.Error
	if errors.As(err, &ge) && ge.ExitCode == 1 {
		return nil, nil
	}
	var remotes []string
	last := ""
	for item := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		key, value, valued := strings.Cut(item, "\n")
		if key == "extensions.partialclone" {
			last = value
			continue
		}
		name := strings.TrimSuffix(strings.TrimPrefix(key, "remote."), ".promisor")
		switch strings.ToLower(value) {
		case "false", "no", "off", "0":
			continue
		case "":
			if valued {
				continue
			}
		}
		if !slices.Contains(remotes, name) {
			remotes = append(remotes, name)
		}
	}
	if last != "" {
		remotes = append(slices.DeleteFunc(remotes, func(r string) bool { return r == last }), last)
	}
	return slices.DeleteFunc(remotes, func(r string) bool { return r == "" || strings.HasPrefix(r, "-") }), err
}

// makeBareDir makes a git directory with nothing in it, whoever else does at
// the same time.
func makeBareDir(dir, format string) error {
	for _, sub := range []string{"objects", "refs"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"HEAD":   "ref: refs/heads/none\n",
		"config": "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tobjectFormat = " + format + "\n",
	} {
		path := filepath.Join(dir, name)
		if data, err := os.ReadFile(path); err == nil && string(data) == text {
			continue
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		tmp, err := os.CreateTemp(dir, ".tmp-")
		if err != nil {
			return err
		}
		_, err = tmp.WriteString(text)
		err = errors.Join(err, tmp.Close())
		if err == nil {
			err = os.Rename(tmp.Name(), path)
		}
		if err != nil {
			return errors.Join(err, os.Remove(tmp.Name()))
		}
	}
	return nil
}

// here is the Reader for what is in the repository without a fetch.
func (r *Reader) here() *Reader {
	if p := r.partial(); p != nil {
		return p.here
	}
	return r
}

// promised fetches objects that are not here, all at once.
func (r *Reader) promised(ctx context.Context, ids []string) error {
	p := r.partial()
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// Whoever was before us may have fetched the same.
	missing, err := p.missing(ctx, ids)
	if err != nil {
		return err
	}
	if len(missing) > 0 && time.Now().Before(p.until) {
		return p.failed
	}
	start := time.Now()
	for _, remote := range p.remotes {
		if len(missing) == 0 {
			return nil
		}
		for part := range slices.Chunk(missing, fetchBatch) {
			if ferr := p.fetch(ctx, remote, part); ferr != nil {
				err = fmt.Errorf("%w of %d object(s) from '%s', whose partial clone this is: %w", ErrFetch, len(part), remote, ferr)
				break
			}
		}
		still, merr := p.missing(ctx, missing)
		if merr != nil {
			return merr
		}
		missing = still
	}
	if len(missing) == 0 || err == nil {
		return nil // what no remote has is missing, as in any repository
	}
	if took := time.Since(start); ctx.Err() == nil && took > fetchPatience {
		p.failed, p.until = err, time.Now().Add(min(took, fetchPause))
	}
	return err
}

func (p *partial) missing(ctx context.Context, ids []string) ([]string, error) {
	sizes, err := p.here.sizes(ctx, ids)
	if err != nil {
		return nil, err
	}
	var missing []string
	for i, size := range sizes {
		if size < 0 {
			missing = append(missing, ids[i])
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing), nil
}

// fetch asks a remote for objects the way git does for a single one.
func (p *partial) fetch(ctx context.Context, remote string, ids []string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(fetchSilence, func() {
		cancel(fmt.Errorf("no progress for %v", fetchSilence))
	})
	defer stalled.Stop()
	return p.git.Fetch(ctx, remote, ids, func() { stalled.Reset(fetchSilence) })
}
