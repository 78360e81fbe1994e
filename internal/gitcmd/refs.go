package gitcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"
)

const (
	// lockTimeout is how long git itself waits for the lock of a ref that
	// another process holds, in milliseconds; it backs off between attempts.
	lockTimeout = "10000"
	// maxReflogMessage bounds the only text that travels as an argument, in bytes.
	maxReflogMessage = 1 << 10
	// maxPatterns is the number of refs up to which each is asked for by name.
	maxPatterns = 64
	// spuriousRetries is how often an update is tried again that failed though
	// nothing was wrong when looked at afterwards.
	spuriousRetries = 2
)

// RefUpdate is one change in a transaction. Ids are full hexadecimal ids.
//
//	New, Old      the ref moves from Old to New
//	New, ""       the ref is created; it must not exist
//	"", Old       the ref is deleted
//	"", ""        nothing changes, the ref must not exist
//	Old, Old      nothing changes, the ref must be at Old
type RefUpdate struct{ Ref, New, Old string }

// UpdateRefs makes all changes or none, in one transaction of git update-ref,
// whichever way the repository stores its refs. It waits up to 10 s for refs
// that others have locked. When a ref does not have its old value the error is
// ErrRefChanged; when a new one cannot be beside another, ErrRefInTheWay. The
// objects must be durable before.
func (g *Git) UpdateRefs(ctx context.Context, reflogMsg string, ups ...RefUpdate) error {
	args := updateArgs(reflogMsg)
	return g.updateRefs(ctx, ups, func(input []byte) error {
		_, err := g.Output(ctx, bytes.NewReader(input), args...)
		return err
	})
}

func updateArgs(reflogMsg string) []string {
	args := []string{
		"-c", "core.filesRefLockTimeout=" + lockTimeout,
		"-c", "core.packedRefsTimeout=" + lockTimeout,
		"-c", "reftable.lockTimeout=" + lockTimeout,
		"update-ref",
	}
	// git refuses an empty message.
	if msg := reflogMessage(reflogMsg); msg != "" {
		args = append(args, "-m", msg)
	}
	return append(args, "--stdin", "-z")
}

// updateRefs tries an update until it is clear whether it can be made.
func (g *Git) updateRefs(ctx context.Context, ups []RefUpdate, try func(input []byte) error) error {
	if len(ups) == 0 {
		return nil
	}
	input, err := transaction(ups)
	if err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		err := try(input)
		if err == nil || ctx.Err() != nil {
			return err
		}
		final, why := g.whyFailed(ctx, ups, err)
		if final || attempt >= spuriousRetries {
			return why
		}
	}
}

// transaction encodes updates for update-ref --stdin -z.
func transaction(ups []RefUpdate) ([]byte, error) {
	var b bytes.Buffer
	for _, u := range ups {
		if u.Ref == "" || strings.ContainsRune(u.Ref+u.New+u.Old, 0) {
			return nil, fmt.Errorf("invalid ref name '%s'", u.Ref)
		}
		switch {
		case u.New == u.Old && u.New == "":
			// In this format an empty old value is not the same as zeros.
			fmt.Fprintf(&b, "verify %s\x00%s\x00", u.Ref, zeros(ups))
		case u.New == u.Old:
			fmt.Fprintf(&b, "verify %s\x00%s\x00", u.Ref, u.Old)
		case u.New == "":
			fmt.Fprintf(&b, "delete %s\x00%s\x00", u.Ref, u.Old)
		case u.Old == "":
			fmt.Fprintf(&b, "create %s\x00%s\x00", u.Ref, u.New)
		default:
			fmt.Fprintf(&b, "update %s\x00%s\x00%s\x00", u.Ref, u.New, u.Old)
		}
	}
	return b.Bytes(), nil
}

// zeros is the null id, as long as the ids of the transaction; alone, git takes
// the shorter one in every repository when it is left out.
func zeros(ups []RefUpdate) string {
	for _, u := range ups {
		if n := max(len(u.New), len(u.Old)); n > 0 {
			return strings.Repeat("0", n)
		}
	}
	return ""
}

// whyFailed looks at the refs again to tell what an update failed of, and
// whether another attempt is pointless.
func (g *Git) whyFailed(ctx context.Context, ups []RefUpdate, failure error) (final bool, err error) {
	names := make([]string, 0, len(ups))
	for _, u := range ups {
		names = append(names, u.Ref)
	}
	have, err := g.ResolveRefs(ctx, names...)
	if err != nil {
		return true, errors.Join(failure, err)
	}
	for _, u := range ups {
		if have[u.Ref] != u.Old {
			return true, &changedError{ref: u.Ref, want: u.Old, have: have[u.Ref]}
		}
	}
	var ge *Error
	if errors.As(failure, &ge) && strings.Contains(ge.Stderr, ".lock': File exists") {
		return true, failure // git has waited for it long enough
	}
	for _, u := range ups {
		if other := g.inTheWay(ctx, u); other != "" {
			return true, &inTheWayError{ref: u.Ref, other: other}
		}
	}
	return false, failure
}

// inTheWay returns a ref that cannot exist beside a new one: one that is a
// directory of it, or that it would be a directory of.
func (g *Git) inTheWay(ctx context.Context, u RefUpdate) string {
	if u.Old != "" || u.New == "" {
		return ""
	}
	parents := []string{}
	for dir := path.Dir(u.Ref); dir != "." && dir != "refs" && dir != "/"; dir = path.Dir(dir) {
		parents = append(parents, dir)
	}
	if have, err := g.ResolveRefs(ctx, parents...); err == nil {
		for _, p := range parents {
			if have[p] != "" {
				return p
			}
		}
	}
	below, err := g.Line(ctx, "for-each-ref", "--count=1", "--format=%(refname)", u.Ref+"/")
	if err != nil {
		return ""
	}
	return below
}

// ResolveRefs returns the ids of the refs that exist, by full name, with one
// process. Symbolic refs are followed, tags are not peeled.
func (g *Git) ResolveRefs(ctx context.Context, refs ...string) (map[string]string, error) {
	found := make(map[string]string, len(refs))
	if len(refs) == 0 {
		return found, nil
	}
	wanted := make(map[string]bool, len(refs))
	for _, r := range refs {
		wanted[r] = true
	}
	args := append([]string{"for-each-ref", "--format=%(objectname) %(refname)"}, patterns(refs)...)
	out, err := g.Output(ctx, nil, args...)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(out)) {
		id, ref, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		// A name as a pattern also matches everything below it.
		if ok && wanted[ref] {
			found[ref] = id
		}
	}
	return found, nil
}

// patterns names refs one by one, or by directory when they are many: git
// compares every ref with every pattern.
func patterns(refs []string) []string {
	if len(refs) <= maxPatterns {
		return refs
	}
	dirs := map[string]bool{}
	for _, r := range refs {
		dirs[path.Dir(r)+"/"] = true
	}
	if len(dirs) > maxPatterns {
		return nil // all refs
	}
	out := make([]string, 0, len(dirs))
	for d := range dirs {
		out = append(out, d)
	}
	return out
}

// RevParse returns the commit that a revision names, a tag being followed. The
// error is ErrUnknownRevision when it names none.
func (g *Git) RevParse(ctx context.Context, rev string) (commit string, err error) {
	if rev == "" || strings.ContainsRune(rev, 0) {
		return "", &revisionError{rev}
	}
	peeled := rev + "^{commit}"
	if strings.HasPrefix(rev, ":/") {
		// Everything after the slash is a regular expression.
		id, err := g.verify(ctx, rev, rev)
		if err != nil {
			return "", err
		}
		peeled = id + "^{commit}"
	}
	return g.verify(ctx, rev, peeled)
}

func (g *Git) verify(ctx context.Context, rev, expr string) (string, error) {
	id, err := g.Line(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", expr)
	var e *Error
	if errors.As(err, &e) && (e.ExitCode == 1 || e.ExitCode == 128 && e.Stderr == "") {
		return "", &revisionError{rev}
	}
	if err != nil {
		return "", err
	}
	if !isID(id) {
		return "", &revisionError{rev} // such as ^main, which excludes
	}
	return id, nil
}

func isID(s string) bool {
	if len(s) != 40 && len(s) != 64 {
		return false
	}
	return strings.Trim(s, "0123456789abcdef") == ""
}

// reflogMessage makes one line of bounded length.
func reflogMessage(msg string) string {
	msg = strings.Join(strings.Fields(strings.ReplaceAll(msg, "\x00", " ")), " ")
	if len(msg) <= maxReflogMessage {
		return msg
	}
	cut := maxReflogMessage
	for cut > 0 && !utf8.RuneStart(msg[cut]) {
		cut--
	}
	return msg[:cut]
}
