package environment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/git-env/git-env/internal/conversion"
	"github.com/git-env/git-env/internal/durable"
)

// Git inside has to convert content as git on the host does, or else it would
// take what a checkout made of a blob for a change. The settings are carried
// over. The programs of filters may not be there, though: files that a filter is
// about are marked in its index as unchanged until they are.

// insideUserAttributes is where git inside finds the user's attributes.
const insideUserAttributes = "info/user-attributes"

// carryConversions returns the settings about conversions for the configuration
// inside, and puts the attributes that are not in the tree in place.
func (v *Env) carryConversions(ctx context.Context, root *os.Root) (string, error) {
	config, err := v.e.conversions(ctx)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, kv := range config.Settings() {
		section, key := cutKey(kv[0])
		fmt.Fprintf(&text, "%s\n\t%s = %s\n", section, key, quoteConfig(kv[1]))
	}
	user, info := config.AttributeFiles()
	if data := concatenated(user); len(data) > 0 {
		if err := rootWrite(root, insideUserAttributes, data); err != nil {
			return "", err
		}
		fmt.Fprintf(&text, "[core]\n\tattributesFile = %s\n", insideGit+"/"+insideUserAttributes)
	}
	if data := concatenated([]string{info}); len(data) > 0 {
		if err := rootWrite(root, "info/attributes", data); err != nil {
			return "", err
		}
	}
	return text.String(), nil
}

// cutKey makes the header of a section and the variable's name of a key.
func cutKey(full string) (header, name string) {
	section, rest, _ := strings.Cut(full, ".")
	if i := strings.LastIndexByte(rest, '.'); i >= 0 {
		return fmt.Sprintf("[%s %s]", section, quoteConfig(rest[:i])), rest[i+1:]
	}
	return "[" + section + "]", rest
}

// concatenated reads files of the user; what is not there has nothing to say.
func concatenated(files []string) []byte {
	var all []byte
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && len(data) > 0 {
			all = append(append(all, data...), '\n')
		}
	}
	return all
}

// filteredSuffix names the list beside a cached index of the paths that a filter
// is about, each with a NUL behind it.
const filteredSuffix = ".filtered"

// writeFiltered keeps the paths of a tree that a filter is about, or removes an
// older list when there are none.
func writeFiltered(index string, paths map[string]*conversion.Rule) error {
	var list bytes.Buffer
	for p, r := range paths {
		if r.Filter {
			list.WriteString(p)
			list.WriteByte(0)
		}
	}
	if list.Len() == 0 {
		discard(index + filteredSuffix)
		return nil
	}
	return durable.WriteFile(index+filteredSuffix, list.Bytes(), 0o600)
}

// markFiltered marks in an index for git inside, which stands for the commit
// target, the files that a filter is about. Their size is not that of the blob, and
// to find out that their content is nevertheless the same takes the filter.
func (v *Env) markFiltered(ctx context.Context, f *os.File, target string) error {
	list, err := os.ReadFile(v.e.cachedIndex(&v.fixed) + filteredSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	now, err := v.filteredAt(ctx, target, list)
	if err != nil || now == "" {
		return err
	}
	if err := os.MkdirAll(v.e.tmpDir(), 0o700); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(v.e.tmpDir(), "index-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "index")
	if err := copyOut(f, file); err != nil {
		return err
	}
	g := v.e.store.Git.WithWorkTree(dir).WithEnv("GIT_INDEX_FILE=" + file)
	if _, err := g.Output(ctx, strings.NewReader(now), "update-index", "--assume-unchanged", "-z", "--stdin"); err != nil {
		// The user's index lacks one of them: git inside shows it as it is.
		v.e.log.Warn("cannot mark what filters are about", "env", v.name, "err", err)
		return nil
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return copyInto(f, file)
}

// copyOut copies all of f to a new file.
func copyOut(f *os.File, to string) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, io.NewSectionReader(f, 0, fi.Size()))
	if cerr := dst.Close(); err == nil {
		err = cerr
	}
	return err
}

// filteredAt brings the list of paths that a filter is about in the tree the
// environment started from up to the commit tip. What did not change since then
// counts by the attributes of then, as the workspace shows it.
func (v *Env) filteredAt(ctx context.Context, tip string, list []byte) (string, error) {
	tree, err := v.e.treeOf(ctx, tip)
	if err != nil || tree == v.fixed.Tree {
		return string(list), err
	}
	out, err := v.e.store.Git.Output(ctx, nil, "diff-tree", "-r", "-z", "--no-renames", "--name-status", v.fixed.Tree, tree)
	if err != nil {
		return "", err
	}
	t, err := v.e.conversionsOf(ctx, tree)
	if err != nil {
		return "", err
	}
	defer v.e.endConversions(t)
	changed := map[string]bool{}
	var now strings.Builder
	fields := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	for i := 0; i+1 < len(fields); i += 2 {
		p := fields[i+1]
		changed[p] = true
		if fields[i] == "D" {
			continue
		}
		r, err := t.Rule(ctx, p)
		if err != nil {
			return "", err
		}
		if r != nil && r.Filter {
			now.WriteString(p + "\x00")
		}
	}
	for p := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		if !changed[p] {
			now.WriteString(p + "\x00")
		}
	}
	return now.String(), nil
}
