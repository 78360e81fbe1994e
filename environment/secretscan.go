package environment

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
	"github.com/git-env/git-env/internal/secret"
)

// redacted masks the values in what an error says.
func redacted(set *secret.Set, err error) error {
	if err == nil || set == nil {
		return err
	}
	e := *asError(err)
	if e.Msg = set.Redact(e.Msg); e.Msg == err.Error() {
		return err
	}
	e.Hint, e.Err = set.Redact(e.Hint), nil
	return &e
}

// looksThrough fails with a *secret.Found for a file with a value in it.
func looksThrough(set *secret.Set, name string) error {
	if set == nil {
		return nil
	}
	f, err := openData(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(io.Discard, set.Reader(f))
	return err
}

// heldSecret is a file that had a secret in it: its path, and the id that it would
// have as a blob.
type heldSecret struct {
	Path rawPath `json:"path"`
	ID   string  `json:"id"`
}

// guard decides which files have something in them that must not be committed.
type guard struct {
	format string
	known  *secret.Set
	held   map[string]string // by an earlier commit: path and id
	now    []heldSecret
}

func newGuard(format string, known *secret.Set, held []heldSecret) *guard {
	g := &guard{format: format, known: known, held: map[string]string{}}
	for _, h := range held {
		g.held[string(h.Path)] = h.ID
	}
	return g
}

// check fails with a *secret.Found for what need not be read to be held back: a
// name or a link with a value in it, and a file that had one and is as it was.
func (g *guard) check(f changedFile) error {
	for _, text := range []string{f.path, f.ent.Target} {
		if name := g.known.Find([]byte(text)); name != "" {
			return &secret.Found{Name: name}
		}
	}
	before, held := g.held[f.path]
	if !held {
		return nil
	}
	if id, err := g.id(f); err != nil || id != before {
		return err
	}
	return &secret.Found{}
}

// note remembers a file that is held back.
func (g *guard) note(f changedFile) error {
	id, err := g.id(f)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it has gone, or is written to
	}
	if err == nil {
		g.now = append(g.now, heldSecret{rawPath(f.path), id})
	}
	return err
}

// noted lists what note was told, sorted.
func (g *guard) noted() []heldSecret {
	slices.SortFunc(g.now, func(a, b heldSecret) int { return strings.Compare(string(a.Path), string(b.Path)) })
	return g.now[:min(len(g.now), maxHeld)]
}

func (g *guard) id(f changedFile) (string, error) {
	switch {
	case f.ent.Blob != "":
		return f.ent.Blob, nil
	case f.ent.Data == "":
		return objects.HashBlob(g.format, []byte(f.ent.Target))
	}
	file, err := openData(f.ent.Data)
	if err != nil {
		return "", err
	}
	defer file.Close()
	fi, err := file.Stat()
	if err != nil {
		return "", err
	}
	id, err := objects.HashReader(g.format, objects.KindBlob, io.LimitReader(file, fi.Size()), fi.Size())
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return "", nil // it is being written to: another file than any that was held
	}
	return id, err
}

// maskAll masks the values in texts.
func maskAll(set *secret.Set, texts []string) []string {
	if set != nil {
		for i := range texts {
			texts[i] = set.Redact(texts[i])
		}
	}
	return texts
}

// heldObjects is the file with the ids of objects of git inside that had a secret
// in them: they are not taken over when the value is another one later, either.
const heldObjects = "held-objects.json"

// checkImport looks through objects that are about to be taken over from git
// inside. list is the output of rev-list --objects; g sees the objects.
func (v *Env) checkImport(ctx context.Context, g *gitcmd.Git, set *secret.Set, list []byte) error {
	file := filepath.Join(v.dir(), heldObjects)
	var held []string
	if err := durable.ReadJSON(file, &held); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if set == nil && len(held) == 0 || len(list) == 0 {
		return nil
	}
	l := &objectScan{set: set, held: held}
	for line := range strings.Lines(string(list)) {
		id, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		l.ids, l.names = append(l.ids, id), append(l.names, name)
	}
	if err := l.run(ctx, g); err != nil || l.first == nil {
		return err
	}
	if len(l.held) > len(held) {
		if err := durable.WriteJSON(file, l.held[:min(len(l.held), maxHeld)], 0o600); err != nil {
			return err
		}
	}
	return l.first
}

// objectScan looks through objects and collects those with a secret.
type objectScan struct {
	set   *secret.Set
	ids   []string
	names []string // beside ids; empty for commits
	held  []string
	first *heldImport
}

func (l *objectScan) run(ctx context.Context, g *gitcmd.Git) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := g.Command(ctx, "cat-file", "--batch=%(objecttype) %(objectsize)")
	cmd.Stdin = strings.NewReader(strings.Join(l.ids, "\n") + "\n")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r := bufio.NewReader(out)
	for i := range l.ids {
		if err = l.object(r, i); err != nil {
			cancel() // it may have much more to say
			break
		}
	}
	if werr := cmd.Wait(); err == nil {
		err = werr
	}
	return err
}

// object reads what cat-file --batch answers for one.
func (l *objectScan) object(r *bufio.Reader, i int) error {
	head, err := r.ReadString('\n')
	if err != nil {
		return fmt.Errorf("git cat-file: %w", err)
	}
	var kind string
	var size int64
	if _, err := fmt.Sscan(head, &kind, &size); err != nil {
		return fmt.Errorf("git cat-file: '%s'", strings.TrimSpace(head))
	}
	content := io.LimitReader(r, size)
	_, err = io.Copy(io.Discard, l.set.Reader(content))
	var found *secret.Found
	before := slices.Contains(l.held, l.ids[i])
	if errors.As(err, &found) || before {
		_, err = io.Copy(io.Discard, content)
		l.found(i, kind, found, before)
	}
	if err != nil {
		return err
	}
	_, err = r.Discard(1)
	return err
}

func (l *objectScan) found(i int, kind string, found *secret.Found, before bool) {
	if !before {
		l.held = append(l.held, l.ids[i])
	}
	if l.first != nil {
		return
	}
	l.first = &heldImport{what: "a " + kind + " in it", why: "had the value of a secret"}
	if kind == "blob" {
		l.first.what = "'" + l.set.Redact(l.names[i]) + "' in it"
	}
	if found != nil {
		l.first.why = "has the value of secret '" + found.Name + "'"
	}
}

// heldImport is why commits made inside are not taken over.
type heldImport struct{ what, why string }

// Error names the secret and what has its value.
func (h *heldImport) Error() string {
	return h.what + " " + h.why + "; the commits stay in the environment until they are rewritten inside without it ('git commit --amend', 'git rebase -i')"
}
