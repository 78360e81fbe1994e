package environment

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/git-env/git-env/internal/devcontainer"
	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/internal/settings"
)

// Request is something that a file of the repository asks of this machine.
type Request struct {
	// Key and Value are the setting, Why what it would be granted.
	Key, Value, Why string
	// File is the file that asks, relative to the top of the tree, and Line the line
	// in it; 0 when it is not known. Commit is the one whose file it is.
	File   string
	Line   int
	Commit string
	// Trusted says that the user has consented.
	Trusted bool

	digest string // of the file's content
}

// String is the request as one line, with nothing in it that a terminal obeys.
func (r Request) String() string {
	at := r.File
	if r.Line > 0 {
		at += ":" + strconv.Itoa(r.Line)
	}
	return fmt.Sprintf("%s: %s = %s", plain(at), plain(r.Key), plain(r.Value))
}

// plain quotes what is not plain text.
func plain(s string) string {
	if q := strconv.Quote(s); q != `"`+s+`"` && strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return q
	}
	return s
}

// consent is what the user has said of one file: its requests, as long as its
// content is this one.
type consent struct {
	File     string    `json:"file"`
	SHA256   string    `json:"sha256"`
	Requests []granted `json:"requests"`
	At       time.Time `json:"at"`
}

type granted struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

func (c consent) covers(r Request) bool {
	return c.File == r.File && c.SHA256 == r.digest && slices.Contains(c.Requests, granted{r.Key, r.Value})
}

// consents is trust.json.
type consents struct {
	V        int       `json:"v"`
	Consents []consent `json:"consents"`
}

// trustFormat is the version of trust.json.
const trustFormat = 1

// most consents that are kept; the oldest go first, and are asked for again.
const mostConsents = 1000

func (s *Store) trustPath() string { return filepath.Join(s.Dir, "trust.json") }

func (s *Store) loadConsents() (consents, error) {
	var c consents
	err := durable.ReadJSON(s.trustPath(), &c)
	if errors.Is(err, fs.ErrNotExist) {
		return consents{V: trustFormat}, nil
	}
	if err != nil {
		return c, Errorf(ExitRepository, "cannot read what is trusted: %w", err).
			WithHint("'git env trust --revoke' begins anew")
	}
	if c.V > trustFormat {
		return c, Errorf(ExitRepository, "%s is of format %d, and this version reads up to %d", s.trustPath(), c.V, trustFormat).
			WithHint("use the git-env that wrote it, or a later one")
	}
	return c, nil
}

// changeConsents lets change work on what is trusted, one process at a time.
func (s *Store) changeConsents(ctx context.Context, change func(*consents) error) error {
	if err := durable.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	lock, err := durable.Lock(ctx, s.trustPath()+".lock")
	if err != nil {
		return err
	}
	defer lock.Close()
	c, err := s.loadConsents()
	if err != nil {
		return err
	}
	if err := change(&c); err != nil {
		return err
	}
	return durable.WriteJSON(s.trustPath(), c, 0o600)
}

// Consent records the user's consent to requests. It holds for these requests as
// long as the content of the file that makes them is what it is now.
func (s *Store) Consent(ctx context.Context, requests []Request) error {
	return s.changeConsents(ctx, func(c *consents) error {
		for _, r := range requests {
			if slices.ContainsFunc(c.Consents, func(o consent) bool { return o.covers(r) }) {
				continue
			}
			i := slices.IndexFunc(c.Consents, func(o consent) bool { return o.File == r.File && o.SHA256 == r.digest })
			if i < 0 {
				i = len(c.Consents)
				c.Consents = append(c.Consents, consent{File: r.File, SHA256: r.digest})
			}
			c.Consents[i].Requests = append(c.Consents[i].Requests, granted{r.Key, r.Value})
			c.Consents[i].At = now()
		}
		if n := len(c.Consents) - mostConsents; n > 0 {
			c.Consents = c.Consents[n:]
		}
		return nil
	})
}

// Revoke takes every consent back, and returns how many requests that were.
func (s *Store) Revoke(ctx context.Context) (n int, err error) {
	if c, err := s.loadConsents(); err == nil {
		for _, o := range c.Consents {
			n += len(o.Requests)
		}
	}
	if err := os.Remove(s.trustPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	return n, ctx.Err()
}

// RequestsAt lists what the files of a commit ask of this machine, of a user whose
// surroundings are local.
func (s *Store) RequestsAt(ctx context.Context, commit string, local devcontainer.Local) ([]Request, error) {
	project, err := s.project(ctx, commit, local)
	if err != nil {
		return nil, err
	}
	return s.requestsIn(ctx, project.Entries)
}

// RequestsOf lists what an environment's files asked of this machine when it was
// made; it asks for the same from then on.
func (s *Store) RequestsOf(ctx context.Context, st *State) ([]Request, error) {
	if st.Config == nil { // made by a version that kept none
		project, _, err := settings.ReadProject(ctx, s.Git, s.Reader, st.Base)
		if err != nil {
			return nil, settingsError(err)
		}
		return s.requestsIn(ctx, project)
	}
	project, _ := st.Config.split()
	project, _ = settings.Sound(project)
	return s.requestsIn(ctx, project)
}

func (s *Store) requestsIn(ctx context.Context, project []settings.Entry) ([]Request, error) {
	m, err := settings.Merge(project)
	if err != nil {
		return nil, settingsError(err)
	}
	return s.requests(ctx, m.Asks())
}

// requests describes what is asked and whether it is trusted.
func (s *Store) requests(ctx context.Context, asks []settings.Ask) ([]Request, error) {
	if len(asks) == 0 {
		return nil, nil
	}
	known, err := s.loadConsents()
	if err != nil {
		return nil, err
	}
	digests := map[string]string{}
	var out []Request
	for _, ask := range asks {
		r := Request{Key: ask.Name(), Value: ask.Text(), Why: ask.Why, Line: ask.Line}
		var ok bool
		if r.Commit, r.File, ok = inCommit(ask.Origin); !ok {
			return nil, fmt.Errorf("%s: it is not known which file of the project says %s", ask.Origin, r.Key)
		}
		if digests[ask.Origin] == "" {
			if digests[ask.Origin], err = s.digest(ctx, r.Commit, r.File); err != nil {
				return nil, fmt.Errorf("cannot read what %s asks of this machine: %w", r.File, err)
			}
		}
		r.digest = digests[ask.Origin]
		r.Trusted = slices.ContainsFunc(known.Consents, func(c consent) bool { return c.covers(r) })
		out = append(out, r)
	}
	return out, nil
}

// inCommit takes the origin of a project's setting apart: "blob:<commit>:<file>".
func inCommit(origin string) (commit, file string, ok bool) {
	rest, ok := strings.CutPrefix(origin, "blob:")
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, ":")
}

// mostOfFile bounds the size of a file that asks for something, in bytes.
const mostOfFile = 1 << 20

// digest is of the content, not of the object that has it: SHA-1 is no seal.
func (s *Store) digest(ctx context.Context, commit, file string) (string, error) {
	entry, err := s.Reader.Path(ctx, commit, file)
	if err != nil {
		return "", err
	}
	data, err := s.Reader.Bytes(ctx, entry.ID, mostOfFile)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// Trusted says whether what a value asks of this machine is granted: always, when
// it asks for nothing or the user has set it himself.
func (s *Store) Trusted(ctx context.Context, v settings.Value) (bool, error) {
	why := v.Asks()
	if why == "" {
		return true, nil
	}
	list, err := s.requests(ctx, []settings.Ask{{Value: v, Why: why}})
	return err == nil && list[0].Trusted, err
}

// checkTrust refuses settings that ask for what the user has not consented to.
func (s *Store) checkTrust(ctx context.Context, set Settings) error {
	list, err := s.requests(ctx, set.Asks)
	if err != nil {
		return err
	}
	var open []string
	commit := ""
	for _, r := range list {
		if !r.Trusted {
			open = append(open, fmt.Sprintf("%s (%s)", r, r.Why))
			commit = r.Commit
		}
	}
	if len(open) == 0 {
		return nil
	}
	return Errorf(ExitFailed, "not trusted: %s", strings.Join(open, "; ")).
		WithHint("'git env trust %.12s' shows what is asked of this machine, and allows it if you say so", commit)
}
