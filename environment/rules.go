package environment

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/git-env/git-env/internal/gitcmd"
)

// What is ignored depends on files outside of the tree as well: info/exclude of
// the repository, core.excludesFile, and the configuration that names that one.

// ruleFiles remembers the fingerprint of these files for as long as none of them
// is touched.
type ruleFiles struct {
	mu     sync.Mutex
	files  []string // all that bear on it, there or not; guarded by mu
	stamps string   // of files, guarded by mu
	sum    string   // guarded by mu; "" when it is not known
}

// rules returns a fingerprint of the ignore rules that are not in any tree. It
// starts a process only when a file it depends on was touched.
func (e *Engine) rules(ctx context.Context) (string, error) {
	r := &e.ruleFiles
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sum != "" && stampsOf(r.files) == r.stamps {
		return r.sum, nil
	}
	r.sum = ""
	rules, configs, err := e.listRuleFiles(ctx)
	if err != nil {
		return "", err
	}
	files := append(configs, rules...)
	stamps := stampsOf(files) // before they are read
	h := sha256.New()
	for _, f := range rules {
		data, err := readRules(f)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q %d\n", f, len(data))
		h.Write(data)
	}
	r.files, r.stamps, r.sum = files, stamps, hex.EncodeToString(h.Sum(nil))
	return r.sum, nil
}

// listRuleFiles names the files with rules, and the configuration that has a say
// in which they are.
func (e *Engine) listRuleFiles(ctx context.Context) (rules, configs []string, err error) {
	common := e.store.Repo.CommonDir
	home, xdg := os.Getenv("HOME"), os.Getenv("XDG_CONFIG_HOME")
	if xdg == "" {
		xdg = filepath.Join(home, ".config")
	}
	configs = []string{filepath.Join(common, "config"), filepath.Join(home, ".gitconfig"), filepath.Join(xdg, "git", "config"), "/etc/gitconfig"}
	out, err := e.store.Git.Output(ctx, nil, "config", "--list", "--show-origin", "--name-only", "-z")
	if err != nil {
		return nil, nil, err
	}
	for item := range bytes.SplitSeq(out, []byte{0}) { // what is included, too
		if f, ok := strings.CutPrefix(string(item), "file:"); ok && filepath.IsAbs(f) {
			configs = append(configs, f)
		}
	}
	rules = []string{filepath.Join(common, "info", "exclude")}
	kvs, err := listConfig(ctx, e.store.Git, "config", "-z", "--type=path", "--get-regexp", `^core\.excludesfile$`)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case len(kvs) == 0:
		rules = append(rules, filepath.Join(xdg, "git", "ignore"))
	case filepath.IsAbs(kvs[len(kvs)-1][1]): // git takes another one against a work tree it has not here
		rules = append(rules, kvs[len(kvs)-1][1])
	}
	return rules, uniq(configs), nil
}

// readRules reads a file with rules, as far as it is looked at; none is empty.
func readRules(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|oNonblock, 0)
	if err != nil {
		return nil, nil //nolint:nilerr // git goes without it too
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, maxRules))
}

// stampsOf tells whether one of the files was touched since.
func stampsOf(files []string) string {
	var b strings.Builder
	for _, f := range files {
		fi, err := os.Stat(f)
		if err != nil {
			fmt.Fprintf(&b, "%s -\n", f)
			continue
		}
		fmt.Fprintf(&b, "%s %d %d\n", f, fi.Size(), fi.ModTime().UnixNano())
	}
	return b.String()
}

// listConfig runs a git config listing and splits it; no match is no entry.
func listConfig(ctx context.Context, g *gitcmd.Git, args ...string) ([][2]string, error) {
	out, err := g.Output(ctx, nil, args...)
	var ge *gitcmd.Error
	if errors.As(err, &ge) && ge.ExitCode == 1 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var kvs [][2]string
	for item := range bytes.SplitSeq(bytes.TrimSuffix(out, []byte{0}), []byte{0}) {
		k, v, _ := strings.Cut(string(item), "\n")
		if k != "" {
			kvs = append(kvs, [2]string{k, v})
		}
	}
	return kvs, nil
}
