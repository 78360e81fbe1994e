package notes

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
)

// git notes add, append and edit read the notes tree, do their work, which may
// include a person's editing, and write the whole tree back on whatever the tip
// is by then. What others have noted meanwhile is then no longer in the tree,
// though it is in the history, or, in a much shorter window, in neither. Ref
// gives it back: before it writes, it looks through the commits of others since
// its own last one.

const (
	// maxForeign is how many commits of others are looked through.
	maxForeign = 64
	// maxBehind is how far back a commit of theirs may have read its tree.
	maxBehind = 64
	// maxRecent is how many updates of ours are remembered.
	maxRecent = 64

	ownMessage = "Notes added by 'git env'\n"
)

// recent remembers what this process has noted, for the case that the commits
// are not even in the history any more.
type recent struct {
	mu      sync.Mutex
	applied []applied // guarded by mu
}

type applied struct {
	tip string
	add map[string][]byte
}

// prepared is what an update of Prepare adds, until it is applied.
type prepared struct {
	mu    sync.Mutex
	byTip map[string]map[string][]byte // guarded by mu
}

// Applied tells the ref that an update made by Prepare has been made, so that
// what it added is given back if a git command overwrites it. Append does this
// by itself.
func (n *Ref) Applied(up gitcmd.RefUpdate) {
	n.prepared.mu.Lock()
	add := n.prepared.byTip[up.New]
	delete(n.prepared.byTip, up.New)
	n.prepared.mu.Unlock()
	if add == nil {
		return
	}
	n.recent.mu.Lock()
	defer n.recent.mu.Unlock()
	n.recent.applied = append(n.recent.applied, applied{up.New, add})
	if extra := len(n.recent.applied) - maxRecent; extra > 0 {
		n.recent.applied = slices.Delete(n.recent.applied, 0, extra)
	}
}

// Settle gives back what git commands of others have overwritten, if anything.
// Prepare and Append do the same before they add; Settle is for the time when
// nothing is added any more.
func (n *Ref) Settle(ctx context.Context) error { return n.Append(ctx, nil) }

func (n *Ref) remember(tip string, add map[string][]byte) {
	n.prepared.mu.Lock()
	defer n.prepared.mu.Unlock()
	if len(n.prepared.byTip) >= maxRecent {
		clear(n.prepared.byTip)
	}
	n.prepared.byTip[tip] = add
}

// lost returns what the notes at tip should have and may not have.
func (n *Ref) lost(ctx context.Context, tip string) (map[string][]byte, error) {
	lost := map[string][]byte{}
	if tip == "" {
		n.forget() // deleted on purpose
		return lost, nil
	}
	for id, depth := tip, 0; depth < maxForeign; depth++ {
		c, err := n.r.Commit(ctx, id)
		if err != nil {
			return nil, err
		}
		if c.Message == ownMessage {
			break // its writer has looked through what was before
		}
		if len(c.Parents) != 1 {
			break
		}
		id = c.Parents[0]
		if deliberate(c.Message) {
			continue
		}
		if err := n.judge(ctx, c, lost); err != nil {
			return nil, err
		}
	}
	return lost, n.unreachable(ctx, tip, lost)
}

// deliberate reports whether a commit may take notes away.
func deliberate(message string) bool {
	return !strings.HasPrefix(message, "Notes added by 'git notes ") &&
		!strings.HasPrefix(message, "Notes removed by 'git notes edit'")
}

// judge finds the tree that a commit of git notes was made from: the one from
// which it differs in one note. If that is not its parent's, what came between
// is lost.
func (n *Ref) judge(ctx context.Context, c *objects.Commit, lost map[string][]byte) error {
	parent, err := n.r.Commit(ctx, c.Parents[0])
	if err != nil {
		return err
	}
	base := parent
	for range maxBehind {
		changed, err := n.diff(ctx, base.Tree, c.Tree)
		if err != nil {
			return err
		}
		if len(changed) <= 1 {
			if err := n.between(ctx, base.Tree, parent.Tree, lost); err != nil {
				return err
			}
			// In the one note it is right that a person took something away.
			if strings.Contains(c.Message, "'git notes append'") {
				return n.overwritten(ctx, changed, lost)
			}
			return nil
		}
		if len(base.Parents) == 0 {
			break
		}
		if base, err = n.r.Commit(ctx, base.Parents[0]); err != nil {
			return err
		}
	}
	return nil
}

// between collects what was appended from one tree to another.
func (n *Ref) between(ctx context.Context, from, to string, lost map[string][]byte) error {
	changed, err := n.diff(ctx, from, to)
	if err != nil {
		return err
	}
	return n.collect(ctx, changed, lost, false)
}

// overwritten collects what an append has not appended to.
func (n *Ref) overwritten(ctx context.Context, changed map[string]change, lost map[string][]byte) error {
	for commit, ch := range changed {
		changed[commit] = change{from: ch.to, to: ch.from}
	}
	return n.collect(ctx, changed, lost, true)
}

// collect adds the blocks and states that are in the second version of notes
// and not in the first, or all that was appended to the first.
func (n *Ref) collect(ctx context.Context, changed map[string]change, lost map[string][]byte, blocksOnly bool) error {
	for commit, ch := range changed {
		from, err := n.content(ctx, ch.from)
		if err != nil {
			return err
		}
		to, err := n.content(ctx, ch.to)
		if err != nil {
			return err
		}
		text, isSuffix := bytes.CutPrefix(to, from)
		if blocksOnly || !isSuffix {
			text = missing(from, onlyRecords(to))
		}
		if len(bytes.TrimSpace(text)) > 0 {
			lost[commit] = join(text, lost[commit])
		}
	}
	return nil
}

// onlyRecords drops foreign text.
func onlyRecords(note []byte) []byte {
	var out []byte
	for _, r := range Parse(note) {
		out = join(out, r.Encode())
	}
	for line := range bytes.Lines(note) {
		if len(line) > 0 && line[0] == '{' {
			out = join(out, line)
		}
	}
	return out
}

// unreachable adds what this process noted in commits that are no longer in the
// history.
func (n *Ref) unreachable(ctx context.Context, tip string, lost map[string][]byte) error {
	n.recent.mu.Lock()
	mine := slices.Clone(n.recent.applied)
	n.recent.mu.Unlock()
	if len(mine) == 0 || mine[len(mine)-1].tip == tip {
		return nil
	}
	for _, a := range slices.Backward(mine) {
		in, err := n.ancestor(ctx, a.tip, tip)
		if err != nil {
			return err
		}
		if in {
			break // and so are the ones before
		}
		if back, err := n.ancestor(ctx, tip, a.tip); err != nil || back {
			n.forget() // rewound on purpose
			return err
		}
		for commit, text := range a.add {
			lost[commit] = join(text, lost[commit])
		}
	}
	return nil
}

func (n *Ref) forget() {
	n.recent.mu.Lock()
	defer n.recent.mu.Unlock()
	n.recent.applied = nil
}

// ancestor first looks at the commits nearby.
func (n *Ref) ancestor(ctx context.Context, old, tip string) (bool, error) {
	for id, depth := tip, 0; depth < 4; depth++ {
		if id == old {
			return true, nil
		}
		c, err := n.r.Commit(ctx, id)
		if err != nil || len(c.Parents) != 1 {
			break
		}
		id = c.Parents[0]
	}
	_, err := n.git.Output(ctx, nil, "merge-base", "--is-ancestor", old, tip)
	var failed *gitcmd.Error
	if errors.As(err, &failed) && failed.ExitCode == 1 {
		return false, nil
	}
	return err == nil, err
}
