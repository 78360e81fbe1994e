package notes

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/git-env/git-env/internal/objects"
)

// flatLimit is the number of entries up to which a tree without fan-out is
// kept so; above, every append would write too large a tree.
const flatLimit = 256

// place is where a note, or a part of it, is.
type place struct{ path, blob string }

// locate finds all places of a commit's note, and the path where it should be.
// A notes tree names a note by the id of its commit, with any number of leading
// pairs of digits split off as directories; git chooses that number anew
// whenever it writes, and reads them mixed.
func (n *Ref) locate(ctx context.Context, tree, commit string) (found []place, target string, err error) {
	if len(commit) != 40 && len(commit) != 64 || strings.Trim(commit, "0123456789abcdef") != "" {
		return nil, "", fmt.Errorf("invalid object id '%s'", commit)
	}
	dir, rest := "", commit
	for tree != "" {
		entries, err := n.r.Tree(ctx, tree)
		if err != nil {
			return nil, "", fmt.Errorf("notes tree: %w", err)
		}
		level := survey(entries, rest)
		if level.blob != "" {
			found = append(found, place{dir + rest, level.blob})
		}
		target = dir + level.choose(rest)
		tree = level.subtree
		dir, rest = dir+rest[:2]+"/", rest[2:]
		if len(rest) < 4 {
			break
		}
	}
	if target == "" {
		target = commit[:2] + "/" + commit[2:]
	}
	if len(found) > 0 {
		// Stays where it is; where there are several, at the deepest.
		target = found[len(found)-1].path
	}
	return found, target, nil
}

// level is what one directory of a notes tree says about a note.
type level struct {
	blob    string // the note itself
	subtree string // the directory to look further in
	notes   int    // notes in this directory
	fanout  bool   // there are directories of notes
	blocked bool   // something else has the directory's name
}

func survey(entries []objects.TreeEntry, rest string) level {
	var l level
	for i := range entries {
		e := &entries[i]
		switch {
		case e.Name == rest && !e.Mode.IsTree():
			l.blob = e.ID
			l.notes++
		case e.Name == rest[:2] && e.Mode.IsTree():
			l.subtree = e.ID
			l.fanout = true
		case e.Name == rest[:2]:
			l.blocked = true
		case len(e.Name) == len(rest) && !e.Mode.IsTree():
			l.notes++
		case len(e.Name) == 2 && e.Mode.IsTree() && strings.Trim(e.Name, "0123456789abcdef") == "":
			l.fanout = true
		}
	}
	return l
}

// choose returns the path of a new note from this directory on.
func (l level) choose(rest string) string {
	if l.blocked || !l.fanout && l.notes > 0 && l.notes < flatLimit {
		return rest
	}
	return rest[:2] + "/" + rest[2:]
}

// join puts text after a note, parted by one blank line; lines of states follow
// each other without.
func join(note, text []byte) []byte {
	text = bytes.TrimLeft(text, "\n")
	switch {
	case len(text) == 0:
		return note
	case len(bytes.TrimSpace(note)) == 0:
		return text
	}
	out := make([]byte, 0, len(note)+len(text)+2)
	out = append(out, note...)
	if out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	lines := text[0] == '{' && lastLine(note)[0] == '{'
	if !lines && !bytes.HasSuffix(out, []byte("\n\n")) {
		out = append(out, '\n')
	}
	return append(out, text...)
}

// lastLine returns the last line that is not blank; there is one.
func lastLine(note []byte) []byte {
	note = bytes.TrimSpace(note)
	return note[bytes.LastIndexByte(note, '\n')+1:]
}

// missing returns what of text the note does not have: blocks go by their exec
// id, states by their whole line, other text is always missing.
func missing(note, text []byte) []byte {
	ids, states := index(note)
	var out bytes.Buffer
	keep := true
	for line := range bytes.Lines(text) {
		if id, ok := blockID(bytes.TrimRight(line, "\r\n")); ok {
			keep = !ids[id]
		} else if line[0] == '{' {
			keep = !states[string(bytes.TrimRight(line, "\r\n"))]
		}
		if keep {
			out.Write(line)
		}
	}
	if len(bytes.TrimSpace(out.Bytes())) == 0 {
		return nil
	}
	return out.Bytes()
}

// index returns what a note has.
func index(note []byte) (ids, states map[string]bool) {
	ids, states = map[string]bool{}, map[string]bool{}
	for line := range bytes.Lines(note) {
		line = bytes.TrimRight(line, "\r\n")
		if id, ok := blockID(line); ok {
			ids[id] = true
		} else if len(line) > 0 && line[0] == '{' {
			states[string(line)] = true
		}
	}
	return ids, states
}
