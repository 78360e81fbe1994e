package environment

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/git-env/git-env/internal/gitcmd"
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

// secretInName says why a path or the target of a link is held back.
func secretInName(set *secret.Set, f changedFile) error {
	for _, text := range []string{f.path, f.ent.Target} {
		if name := set.Find([]byte(text)); name != "" {
			return &secret.Found{Name: name}
		}
	}
	return nil
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

// checkImport looks through objects that are about to be taken over from git
// inside. list is the output of rev-list --objects; g sees the objects.
func checkImport(ctx context.Context, g *gitcmd.Git, set *secret.Set, list []byte) error {
	if set == nil || len(list) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := g.Command(ctx, "cat-file", "--batch=%(objecttype) %(objectsize)")
	var ids strings.Builder
	names := []string{}
	for line := range strings.Lines(string(list)) {
		id, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		names = append(names, name)
		ids.WriteString(id + "\n")
	}
	cmd.Stdin = strings.NewReader(ids.String())
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = lookThroughObjects(bufio.NewReader(out), set, names)
	if err != nil {
		cancel() // it may have much more to say
	}
	if werr := cmd.Wait(); err == nil {
		err = werr
	}
	return err
}

// lookThroughObjects reads what cat-file --batch answers for objects of names,
// which are empty for commits.
func lookThroughObjects(r *bufio.Reader, set *secret.Set, names []string) error {
	for _, name := range names {
		head, err := r.ReadString('\n')
		if err != nil {
			return fmt.Errorf("git cat-file: %w", err)
		}
		var kind string
		var size int64
		if _, err := fmt.Sscan(head, &kind, &size); err != nil {
			return fmt.Errorf("git cat-file: '%s'", strings.TrimSpace(head))
		}
		_, err = io.Copy(io.Discard, set.Reader(io.LimitReader(r, size)))
		var found *secret.Found
		if errors.As(err, &found) {
			what := "a " + kind
			if kind == "blob" {
				what = "'" + set.Redact(name) + "'"
			}
			return &heldImport{what, found.Name}
		}
		if err != nil {
			return err
		}
		if _, err := r.Discard(1); err != nil {
			return fmt.Errorf("git cat-file: %w", err)
		}
	}
	return nil
}

// heldImport is why commits made inside are not taken over.
type heldImport struct{ what, secret string }

// Error names the secret and what has its value.
func (h *heldImport) Error() string {
	return fmt.Sprintf("%s in it has the value of secret '%s'; the commits stay in the environment until they are rewritten inside without it ('git commit --amend', 'git rebase -i')", h.what, h.secret)
}
