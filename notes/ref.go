package notes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
)

const (
	// maxNote bounds the notes that are read, in bytes; git has no limit.
	maxNote = 1 << 30
	// appendTimeout is how long Append goes on when others are always faster.
	appendTimeout = time.Minute
)

// Ref is a notes ref. It is safe for concurrent use, by other processes too:
// every change is a compare-and-swap.
type Ref struct {
	name       string
	author     string
	mail       string
	git        *gitcmd.Git
	r          *objects.Reader
	w          *objects.Writer
	appendLock *sync.Mutex // held by Append: one process need not race itself
	prepared   *prepared
	recent     *recent
}

// NewRef returns the notes ref of that full name, such as refs/notes/env.
func NewRef(name string, g *gitcmd.Git, r *objects.Reader, w *objects.Writer) *Ref {
	return &Ref{
		name: name, author: "git env", mail: "git-env@localhost",
		git: g, r: r, w: w, appendLock: &sync.Mutex{},
		prepared: &prepared{byTip: map[string]map[string][]byte{}},
		recent:   &recent{},
	}
}

// WithIdentity returns the ref with another author of its commits.
func (n *Ref) WithIdentity(name, mail string) *Ref {
	c := *n
	c.author, c.mail = name, mail
	return &c
}

// Name returns the full name of the ref.
func (n *Ref) Name() string { return n.name }

// Read returns the note of a commit, nil when it has none.
func (n *Ref) Read(ctx context.Context, commit string) ([]byte, error) {
	_, tree, err := n.tip(ctx)
	if err != nil || tree == "" {
		return nil, err
	}
	return n.readNote(ctx, tree, commit)
}

func (n *Ref) readNote(ctx context.Context, tree, commit string) ([]byte, error) {
	found, _, err := n.locate(ctx, tree, commit)
	if err != nil {
		return nil, err
	}
	return n.content(ctx, found)
}

// content joins the blobs of a note; there are several only when layouts were
// mixed, and git joins them the same way.
func (n *Ref) content(ctx context.Context, found []place) ([]byte, error) {
	var note []byte
	for _, p := range found {
		blob, err := n.r.Bytes(ctx, p.blob, maxNote)
		if err != nil {
			return nil, fmt.Errorf("read note: %w", err)
		}
		note = join(note, blob)
	}
	return note, nil
}

// Prepare writes a notes commit that appends text to the notes of commits, on
// top of the present tip, and returns the update that makes it the tip. Blocks
// and state lines that a note has already are left out; when nothing is left
// the update only verifies the tip. The caller syncs the writer, puts the update
// into a transaction, prepares again on gitcmd.ErrRefChanged, and calls Applied
// when it is made. What git commands have overwritten is put back too.
func (n *Ref) Prepare(ctx context.Context, add map[string][]byte) (gitcmd.RefUpdate, error) {
	old, tree, err := n.tip(ctx)
	if err != nil {
		return gitcmd.RefUpdate{}, err
	}
	up := gitcmd.RefUpdate{Ref: n.name, Old: old, New: old}
	lost, err := n.lost(ctx, old)
	if err != nil {
		return gitcmd.RefUpdate{}, fmt.Errorf("history of '%s': %w", n.name, err)
	}
	var edits []objects.Edit
	for commit, text := range add {
		lost[commit] = join(lost[commit], text)
	}
	for commit, text := range lost {
		e, err := n.edit(ctx, tree, strings.ToLower(commit), text)
		if err != nil {
			return gitcmd.RefUpdate{}, fmt.Errorf("note of %s: %w", commit, err)
		}
		edits = append(edits, e...)
	}
	if len(edits) == 0 {
		return up, nil
	}
	root, err := objects.EditTree(ctx, n.r, n.w, tree, edits)
	if err != nil {
		return gitcmd.RefUpdate{}, fmt.Errorf("notes tree: %w", err)
	}
	if up.New, err = n.commit(root, old); err == nil {
		n.remember(up.New, lost)
	}
	return up, err
}

// commit writes the notes commit.
func (n *Ref) commit(tree, parent string) (string, error) {
	who := objects.Signature(n.author, n.mail, time.Now())
	c := &objects.Commit{Tree: tree, Author: who, Committer: who, Message: ownMessage}
	if parent != "" {
		c.Parents = []string{parent}
	}
	return n.w.Commit(c)
}

// edit returns what has to change in the tree for one note.
func (n *Ref) edit(ctx context.Context, tree, commit string, text []byte) ([]objects.Edit, error) {
	found, target, err := n.locate(ctx, tree, commit)
	if err != nil {
		return nil, err
	}
	note, err := n.content(ctx, found)
	if err != nil {
		return nil, err
	}
	text = missing(note, text)
	if len(text) == 0 {
		return nil, nil
	}
	blob, err := n.w.Write(objects.KindBlob, join(note, text))
	if err != nil {
		return nil, err
	}
	var edits []objects.Edit
	for _, p := range found {
		if p.path != target {
			edits = append(edits, objects.Edit{Path: p.path})
		}
	}
	return append(edits, objects.Edit{Path: target, Mode: objects.ModeFile, ID: blob}), nil
}

// Append appends text to the notes of commits, durably. It tries again as long
// as others change the ref meanwhile, up to a minute.
func (n *Ref) Append(ctx context.Context, add map[string][]byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, appendTimeout,
		fmt.Errorf("'%s' kept changing for %s", n.name, appendTimeout))
	defer cancel()
	n.appendLock.Lock()
	defer n.appendLock.Unlock()
	for {
		up, err := n.Prepare(ctx, add)
		if err != nil || up.New == up.Old {
			return err
		}
		if err := n.w.Sync(); err != nil {
			return fmt.Errorf("flush notes: %w", err)
		}
		err = n.git.UpdateRefs(ctx, "notes: Notes added by 'git env'", up)
		if err == nil {
			n.Applied(up)
		}
		if !errors.Is(err, gitcmd.ErrRefChanged) {
			return err
		}
	}
}

// tip returns the notes commit and its tree, both empty when there is no ref.
func (n *Ref) tip(ctx context.Context) (commit, tree string, err error) {
	commit, kind, _, err := n.r.Kind(ctx, n.name)
	if errors.Is(err, objects.ErrNotFound) {
		return "", "", nil
	}
	if err != nil {
		return "", "", err
	}
	if kind != objects.KindCommit {
		return "", "", fmt.Errorf("'%s' is a %s, not a commit", n.name, kind)
	}
	c, err := n.r.Commit(ctx, commit)
	if err != nil {
		return "", "", err
	}
	return commit, c.Tree, nil
}

// EnsureMergeStrategy lets a plain git notes merge join the notes of two
// machines without conflict. What the user has set stays.
func EnsureMergeStrategy(ctx context.Context, g *gitcmd.Git) error {
	out, err := g.Output(ctx, nil, "config", "--name-only", "--get-regexp", `^notes\..*\.mergestrategy$`)
	var failed *gitcmd.Error
	if err != nil && !(errors.As(err, &failed) && failed.ExitCode == 1) { // 1: none
		return err
	}
	set := strings.Fields(string(out))
	for _, want := range [][2]string{
		{"notes.env.mergestrategy", "union"},
		{"notes.env-state.mergestrategy", "cat_sort_uniq"},
	} {
		if slices.Contains(set, want[0]) {
			continue
		}
		key := strings.Replace(want[0], "mergestrategy", "mergeStrategy", 1)
		if _, err := g.Output(ctx, nil, "config", key, want[1]); err != nil {
			return err
		}
	}
	return nil
}
