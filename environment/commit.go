package environment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/internal/conversion"
	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
	"github.com/git-env/git-env/internal/secret"
	"github.com/git-env/git-env/notes"
)

// casTries bounds how often a commit is rebuilt because a ref moved meanwhile.
const casTries = 50

// commitRequest says what is to be committed and recorded.
type commitRequest struct {
	caller  api.Caller
	message string
	record  *notes.Record // nil: no exec, only what is dirty
	output  *recorder     // the exec's output
	refs    *gitcmd.RefTransaction
	from    string // the branch before git inside committed; "" when it did not
	hold    *lateHold
	// recordOnly leaves what changed to the next commit.
	recordOnly bool
}

// commitResult says what became of it.
type commitResult struct {
	tip      string // the branch after it
	commit   string // empty when nothing changed
	parent   string // what the branch was at
	note     *gitcmd.RefUpdate
	changed  int
	warnings []string
}

// commit commits what git would commit of the workspace and records an exec, all
// in one transaction of the refs. v.mu is held and the workspace mounted.
func (v *Env) commit(ctx context.Context, req commitRequest) (*commitResult, error) {
	took := startLaps()
	left, err := v.loadSkipped()
	if err != nil {
		return nil, err
	}
	if quiet, err := v.nothingChanged(ctx, left); err != nil {
		return nil, fmt.Errorf("cannot commit: %w", err)
	} else if quiet || req.recordOnly {
		return v.transact(ctx, req, nil)
	}
	known, err := v.knownSecrets(ctx)
	if err != nil {
		return nil, err
	}
	req.message = known.Redact(req.message)
	sc, err := newScratch(v.e.tmpDir(), v.e.store.Git, v)
	if err != nil {
		return nil, fmt.Errorf("cannot commit: %w", err)
	}
	defer sc.close()
	var warn []string
	req.hold = &lateHold{v: v}
	defer req.hold.end()
	took.lap("begin")
	taken, err := v.takeInside(ctx, req.caller, req.hold, known)
	if err != nil {
		// What is in the workspace is committed all the same; git inside keeps
		// what it has.
		warn = append(warn, err.Error())
	}
	if taken != nil {
		req.hold.follow = taken.to
	}
	took.lap("take over")
	set, err := v.changes(ctx, sc, left, taken.paths())
	if err != nil {
		return nil, fmt.Errorf("cannot commit: %w", err)
	}
	took.lap("changes")
	set.guard = newGuard(v.e.writer.Format(), known, left.Secret)
	edits, err := v.store(ctx, sc, set)
	if err != nil {
		return nil, fmt.Errorf("cannot commit: %w", err)
	}
	took.lap("blobs")
	req.from = taken.before()
	res, err := v.transact(ctx, req, edits)
	if err != nil {
		return nil, fmt.Errorf("cannot commit: %w", err)
	}
	took.lap("refs")
	res.warnings = maskAll(known, append(warn, set.warn...))
	if res.commit != "" {
		v.follow(res.tip)
		req.hold.follow = ""
	}
	err = v.settle(ctx, set, left, res.tip)
	took.lap("mark")
	v.e.log.Debug("committed", append([]any{"env", v.name, "changed", res.changed}, took.parts...)...)
	return res, err
}

// nothingChanged says that there is nothing to commit, which most execs leave:
// found out without starting a process or writing a file.
func (v *Env) nothingChanged(ctx context.Context, left skipped) (bool, error) {
	if len(left.Held) > 0 || len(left.Ignored) > 0 {
		return false, nil
	}
	if left.Rules != "" {
		// Of limits only a commit takes note.
		sum, err := v.e.rules(ctx)
		if err != nil || !strings.HasPrefix(left.Rules, sum+" ") {
			return false, err
		}
	}
	d, err := v.dirty(ctx, []string{""})
	if err != nil || len(d.Entries) != 1 || len(d.Entries[0]) > 0 {
		return false, err
	}
	root, err := os.OpenRoot(filepath.Join(v.dir(), "git"))
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer root.Close()
	tip, err := v.e.store.Tip(ctx, v.st.Name)
	if err != nil {
		return false, err
	}
	inside := insideTip(root, v.st.Branch())
	return inside == tip || inside != "" && inside == v.standing(tip).Inside, nil
}

// changes finds what is to be committed, looking again at what was left out when
// the rules for it have changed, be it with this very commit.
func (v *Env) changes(ctx context.Context, sc *scratch, left skipped, again []string) (*changeSet, error) {
	tip, err := v.e.store.Tip(ctx, v.st.Name)
	if err != nil {
		return nil, err
	}
	c, err := v.e.store.Reader.Commit(ctx, tip)
	if err != nil {
		return nil, err
	}
	settings, err := v.settings(ctx)
	if err != nil {
		return nil, err
	}
	cone, err := v.cone(ctx)
	if err != nil {
		return nil, err
	}
	rules, err := v.rules(ctx, settings.MaxFileSize)
	if err != nil {
		return nil, err
	}
	again = append(again, plainPaths(left.Held)...)
	again = append(again, plainPaths(left.Ignored)...)
	collect := func(all bool) (*changeSet, error) {
		col := &collector{view: v, scratch: sc, reader: v.e.store.Reader, maxSize: settings.MaxFileSize, cone: cone}
		set, err := col.collect(ctx, c.Tree, again, all)
		if set != nil {
			set.rules, set.all = rules, all
		}
		return set, err
	}
	set, err := collect(left.stale(rules))
	if err != nil || set.all || left.Rules == "" {
		return set, err
	}
	if room := left.More && len(set.held) <= maxHeld/2; room || set.rulesChanged() {
		return collect(true)
	}
	return set, nil
}

// rules is the fingerprint of what, outside of the tree, decides what is left out.
func (v *Env) rules(ctx context.Context, maxSize int64) (string, error) {
	sum, err := v.e.rules(ctx)
	return fmt.Sprintf("%s %d", sum, maxSize), err
}

// settings are read when they are needed: they are cheap beside a commit, and a
// user who changes one expects it to count at once.
func (v *Env) settings(ctx context.Context) (Settings, error) {
	return v.e.store.settingsOf(ctx, v.st)
}

// store writes the blobs of a change set and returns the edits of the tree.
func (v *Env) store(ctx context.Context, sc *scratch, set *changeSet) ([]objects.Edit, error) {
	edits := make([]objects.Edit, 0, len(set.files)+len(set.deleted))
	for _, p := range set.deleted {
		edits = append(edits, objects.Edit{Path: p})
	}
	config, err := v.e.conversions(ctx)
	if err != nil {
		return nil, err
	}
	att, err := v.attributes(ctx, sc, set, config)
	if err != nil {
		return nil, err
	}
	for i, f := range set.files {
		a := attrs{}
		if att != nil {
			a = att[i]
		}
		a.config = config.CleansLineEnds()
		id, err := v.blob(ctx, sc, f, a, set.guard)
		if errors.Is(err, os.ErrNotExist) && f.ent.Source != "" {
			if f, err = v.retry(ctx, f); err == nil {
				id, err = v.blob(ctx, sc, f, a, set.guard)
			}
		}
		var refused *gitcmd.Error
		var found *secret.Found
		switch {
		case errors.As(err, &found):
			if err := set.guard.note(f); err != nil {
				return nil, fmt.Errorf("'%s': %w", f.path, err)
			}
			set.hold(f.path, found.Error())
			continue
		case errors.Is(err, os.ErrNotExist):
			continue // deleted since: still dirty, for the next commit
		case errors.As(err, &refused) && ctx.Err() == nil:
			// One file that its filter or encoding does not take is no reason to
			// leave the others uncommitted.
			set.hold(f.path, err.Error())
			continue
		case err != nil:
			return nil, fmt.Errorf("'%s': %w", f.path, err)
		}
		edits = append(edits, objects.Edit{Path: f.path, Mode: gitMode(f.ent), ID: id})
	}
	return edits, nil
}

func (v *Env) attributes(ctx context.Context, sc *scratch, set *changeSet, config *conversion.Config) ([]attrs, error) {
	if len(set.files) == 0 {
		return nil, nil
	}
	paths := make([]string, len(set.files))
	dirs := make([]string, len(set.files))
	for i, f := range set.files {
		paths[i], dirs[i] = f.path, parentOf(f.path)
	}
	if err := sc.load(ctx, dirs); err != nil {
		return nil, err
	}
	return sc.attributesOf(ctx, paths, config.Global())
}

func gitMode(e fusefs.DirtyEntry) objects.Mode {
	switch {
	case e.Kind == fusefs.Symlink:
		return objects.ModeSymlink
	case e.Exec:
		return objects.ModeExec
	}
	return objects.ModeFile
}

// blob stores a file's content as git would and returns its id.
func (v *Env) blob(ctx context.Context, sc *scratch, f changedFile, a attrs, g *guard) (string, error) {
	if err := g.check(f); err != nil {
		return "", err
	}
	switch {
	case f.ent.Blob != "":
		return f.ent.Blob, nil
	case f.ent.Kind == fusefs.Symlink:
		return v.e.writer.Write(objects.KindBlob, []byte(f.ent.Target))
	case f.ent.Data == "":
		return v.e.writer.Write(objects.KindBlob, nil)
	}
	converts := !a.plain()
	if converts && a.lineEndsOnly() {
		crlf, err := hasCRLF(f.ent.Data)
		if err != nil {
			return "", err
		}
		converts = crlf
		if crlf && a.automatic() {
			// Git leaves line ends alone that were committed as they are.
			kept, err := v.crlfCommitted(ctx, f.path)
			if err != nil {
				return "", err
			}
			converts = !kept
		}
	}
	if converts {
		if err := looksThrough(g.known, f.ent.Data); err != nil {
			return "", err
		}
		return sc.clean(ctx, f.path, f.ent.Data)
	}
	return v.e.storeFile(f.ent.Data, g.known)
}

// storeFile writes a file as a blob, unless it has a secret in it: it fails with a
// *secret.Found then. The file may grow or shrink meanwhile: what
// is stored is then some state of it, and it is dirty again for the next commit.
func (e *Engine) storeFile(name string, known *secret.Set) (string, error) {
	const tries = 5
	var err error
	for range tries {
		var id string
		if id, err = e.storeOnce(name, known); err == nil {
			return id, nil
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			return "", err
		}
	}
	return "", fmt.Errorf("it changes all the time: %w", err)
}

func (e *Engine) storeOnce(name string, known *secret.Set) (string, error) {
	f, err := openData(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return "", err
	}
	return e.writer.Blob(known.Reader(io.LimitReader(f, fi.Size())), fi.Size())
}

// transact moves the branch, the record and the output in one transaction,
// anew from the present tips whenever one of them moved.
func (v *Env) transact(ctx context.Context, req commitRequest, edits []objects.Edit) (*commitResult, error) {
	var ident *identity
	for range casTries {
		tip, err := v.e.store.Tip(ctx, v.st.Name)
		if err != nil {
			return nil, err
		}
		res := &commitResult{tip: tip, parent: tip}
		var ups []gitcmd.RefUpdate
		if len(edits) > 0 {
			if ident == nil {
				if ident, err = v.e.identity(ctx, req.caller); err != nil {
					return nil, err
				}
			}
			if ups, err = v.buildCommit(ctx, req, res, ident, edits); err != nil {
				return nil, err
			}
		}
		if req.from != "" {
			if err := v.countSince(ctx, req.from, res); err != nil {
				return nil, err
			}
		}
		if req.record != nil {
			more, err := v.buildRecord(ctx, req, res)
			if err != nil {
				return nil, err
			}
			ups = append(ups, more...)
		}
		if len(ups) == 0 {
			return res, nil
		}
		if err := v.e.writer.Sync(); err != nil {
			return nil, err
		}
		if res.commit != "" {
			req.hold.begin(ctx)
		}
		if req.refs != nil {
			err = req.refs.Run(ctx, ups...)
		} else {
			err = v.e.store.Git.UpdateRefs(ctx, "git env: "+subject(req.message), ups...)
		}
		if err == nil {
			if res.note != nil {
				v.e.execs.Applied(*res.note)
			}
			return res, nil
		}
		if !errors.Is(err, gitcmd.ErrRefChanged) {
			return nil, err
		}
	}
	return nil, Errorf(ExitBusy, "the refs of environment '%s' keep moving", v.st.Name).WithHint("try again")
}

// countSince makes a result tell of all that happened since from, the branch's
// tip before git inside committed.
func (v *Env) countSince(ctx context.Context, from string, res *commitResult) error {
	a, err := v.e.treeOf(ctx, from)
	if err != nil {
		return err
	}
	b, err := v.e.treeOf(ctx, res.tip)
	if err != nil {
		return err
	}
	res.parent, res.commit = from, res.tip
	res.changed, err = countChanged(ctx, v.e.store.Reader, a, b)
	return err
}

// buildCommit writes tree and commit on top of res.tip; no update when the tree
// stays what it was.
func (v *Env) buildCommit(ctx context.Context, req commitRequest, res *commitResult, ident *identity, edits []objects.Edit) ([]gitcmd.RefUpdate, error) {
	parent, err := v.e.store.Reader.Commit(ctx, res.tip)
	if err != nil {
		return nil, err
	}
	tree, err := objects.EditTree(ctx, v.e.store.Reader, v.e.writer, parent.Tree, edits)
	if err != nil || tree == parent.Tree {
		return nil, err
	}
	if res.changed, err = countChanged(ctx, v.e.store.Reader, parent.Tree, tree); err != nil {
		return nil, err
	}
	id, err := v.e.writer.Commit(&objects.Commit{
		Tree: tree, Parents: []string{res.tip},
		Author: ident.author, Committer: ident.committer, Message: cleanMessage(req.message),
	})
	if err != nil {
		return nil, err
	}
	up := gitcmd.RefUpdate{Ref: v.st.Branch(), New: id, Old: res.tip}
	res.tip, res.commit = id, id
	return []gitcmd.RefUpdate{up}, nil
}

// buildRecord writes the note and the output for the commit that the exec made
// or ran on.
func (v *Env) buildRecord(ctx context.Context, req commitRequest, res *commitResult) ([]gitcmd.RefUpdate, error) {
	var ups []gitcmd.RefUpdate
	rec := *req.record
	rec.Changed = res.changed
	if req.output != nil {
		blob, err := req.output.store(v.e.writer)
		if err != nil {
			return nil, err
		}
		rec.OutputBytes, rec.OutputID, rec.Excerpt = req.output.bytes(), blob, req.output.excerpt()
		if rec.OutputBytes > 0 {
			up, err := v.keepOutput(ctx, rec.ID, blob)
			if err != nil {
				return nil, err
			}
			ups = append(ups, up)
		}
	}
	note, err := v.e.execs.Prepare(ctx, map[string][]byte{res.tip: rec.Encode()})
	if err != nil {
		return nil, err
	}
	res.note = &note
	return append(ups, note), nil
}

// settle tells the file server what is committed now and remembers what was left
// out.
func (v *Env) settle(ctx context.Context, set *changeSet, left skipped, tip string) error {
	now := skipped{Held: rawPaths(uniq(set.held)), Secret: set.guard.noted(), Rules: set.rules, More: left.More && !set.all}
	if len(now.Held) > maxHeld {
		now.Held, now.More = now.Held[:maxHeld], true
	}
	// Before the mark: it makes the file server forget these paths.
	if !equalSkipped(now, left) {
		if err := durable.WriteJSON(filepath.Join(v.dir(), "skipped.json"), now, 0o600); err != nil {
			return err
		}
	}
	if err := v.files.Mark(ctx, v.st.ID, set.seq, tip); err != nil {
		// It stays dirty and is looked at again: nothing is lost.
		v.e.log.Warn("cannot mark as committed", "env", v.st.Name, "err", err)
	}
	return nil
}

// stat, dirty, list and content make an Env the view a collector works on.

func (v *Env) stat(ctx context.Context, paths []string) ([]fusefs.DirtyEntry, error) {
	ents, err := v.files.Stat(ctx, v.st.ID, paths)
	if err != nil {
		return nil, err
	}
	return ents, v.fillHidden(ctx, paths, ents)
}

func (v *Env) dirty(ctx context.Context, dirs []string) (fusefs.Dirty, error) {
	return v.files.Dirty(ctx, v.st.ID, dirs)
}

func (v *Env) list(ctx context.Context, dirs []string) ([][]fusefs.DirtyEntry, error) {
	return v.files.List(ctx, v.st.ID, dirs)
}

func (v *Env) content(ctx context.Context, e fusefs.DirtyEntry, limit int64) ([]byte, error) {
	if e.Size > limit {
		return nil, fmt.Errorf("it has %d bytes, more than the %d that are looked at", e.Size, limit)
	}
	if e.Blob != "" {
		return v.e.store.Reader.Bytes(ctx, e.Blob, limit)
	}
	f, err := openData(e.Data)
	if errors.Is(err, os.ErrNotExist) && e.Source != "" {
		return v.e.store.Reader.Bytes(ctx, e.Source, limit) // as good for rules, of which this is about
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}
