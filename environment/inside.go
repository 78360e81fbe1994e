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
	"strconv"
	"strings"

	"github.com/git-env/git-env/internal/objects"
	"github.com/git-env/git-env/runtime"
)

// Git inside: the container sees a private git directory with its own HEAD,
// refs, index and config, and the host's objects read-only through alternates.
// Everything in it is the container's to write, so the host goes there through
// os.Root alone, which follows no link out, and never runs git on it.

const (
	insideRoot    = "/.git-env"
	insideGit     = insideRoot + "/git"
	insideObjects = insideRoot + "/objects"
)

// gitMounts prepares the private git directory and returns the mounts that show
// it to the container. v.mu is held.
func (v *Env) gitMounts(ctx context.Context) ([]runtime.Mount, error) {
	if err := v.ensureIndex(ctx); err != nil {
		return nil, fmt.Errorf("cannot make the index: %w", err)
	}
	stores, err := objectStores(filepath.Join(v.e.store.Repo.CommonDir, "objects"))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(v.dir(), "git"), 0o755); err != nil {
		return nil, fmt.Errorf("cannot prepare git inside: %w", err)
	}
	if err := v.prepareInside(ctx, len(stores)); err != nil {
		// Something inside is in the way, put there by the environment itself. That
		// breaks its git, not its other commands.
		v.e.log.Warn("cannot prepare git inside", "env", v.name, "err", err)
	}
	link := filepath.Join(v.dir(), "dotgit")
	if err := os.WriteFile(link, []byte("gitdir: "+insideGit+"\n"), 0o644); err != nil {
		return nil, err
	}
	mounts := []runtime.Mount{
		{Source: link, Target: "/workspace/.git", ReadOnly: true},
		{Source: filepath.Join(v.dir(), "git"), Target: insideGit},
	}
	for i, s := range stores {
		mounts = append(mounts, runtime.Mount{Source: s, Target: insideObjects + "/" + strconv.Itoa(i), ReadOnly: true})
	}
	return mounts, nil
}

// objectStores lists a repository's objects directory and its alternates.
func objectStores(dir string) ([]string, error) {
	const maxStores = 16
	seen := map[string]bool{}
	list := []string{dir}
	for i := 0; i < len(list) && i < maxStores; i++ {
		seen[list[i]] = true
		data, err := os.ReadFile(filepath.Join(list[i], "info", "alternates"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(data)) {
			alt := strings.TrimSpace(line)
			if alt == "" || strings.HasPrefix(alt, "#") {
				continue
			}
			if !filepath.IsAbs(alt) {
				alt = filepath.Join(list[i], alt)
			}
			if fi, err := os.Stat(alt); err != nil || !fi.IsDir() {
				continue // git does without it too
			}
			if !seen[alt] {
				seen[alt] = true
				list = append(list, alt)
			}
		}
	}
	return list, nil
}

// prepareInside makes what the private git directory lacks; what is there is the
// environment's own and stays.
func (v *Env) prepareInside(ctx context.Context, stores int) error {
	root, err := os.OpenRoot(filepath.Join(v.dir(), "git"))
	if err != nil {
		return err
	}
	defer root.Close()
	for _, d := range []string{"objects/info", "objects/pack", "refs/heads", "refs/tags", "info"} {
		if err := root.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	var alt strings.Builder
	for i := range stores {
		fmt.Fprintf(&alt, "%s/%d\n", insideObjects, i)
	}
	if err := rootWrite(root, "objects/info/alternates", []byte(alt.String())); err != nil {
		return err
	}
	if _, err := root.Lstat("HEAD"); errors.Is(err, fs.ErrNotExist) {
		if err := v.firstInside(ctx, root); err != nil {
			return err
		}
	}
	tip, err := v.e.store.Tip(ctx, v.st.Name)
	if err != nil {
		return err
	}
	return v.bringRoot(ctx, root, tip)
}

// firstInside writes config, HEAD and the host's other refs as they are now.
func (v *Env) firstInside(ctx context.Context, root *os.Root) error {
	cfg := "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n" +
		"\tcheckStat = minimal\n\ttrustctime = false\n[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n"
	if v.e.store.Repo.ObjectFormat != objects.SHA1 {
		cfg = strings.Replace(cfg, "version = 0", "version = 1", 1) + "[extensions]\n\tobjectformat = " + v.e.store.Repo.ObjectFormat + "\n"
	}
	for _, key := range []string{"user.name", "user.email"} {
		if val, err := v.e.store.Git.Line(ctx, "config", "--get", key); err == nil && val != "" {
			sec, name, _ := strings.Cut(key, ".")
			cfg += fmt.Sprintf("[%s]\n\t%s = %s\n", sec, name, quoteConfig(val))
		}
	}
	if cone, err := v.cone(ctx); err != nil {
		return err
	} else if cone != nil {
		cfg += sparseConfig
		if err := rootWrite(root, "info/sparse-checkout", sparsePatterns(cone)); err != nil {
			return err
		}
	}
	carried, err := v.carryConversions(ctx, root)
	if err != nil {
		return err
	}
	cfg += carried
	refs, err := v.e.store.Git.Output(ctx, nil, "for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/tags", "refs/remotes")
	if err != nil {
		return err
	}
	packed := append([]byte("# pack-refs with: sorted\n"), refs...)
	for _, f := range []struct {
		name string
		data []byte
	}{{"config", []byte(cfg)}, {"packed-refs", packed}, {"HEAD", []byte("ref: " + v.st.Branch() + "\n")}} {
		if err := rootWrite(root, f.name, f.data); err != nil {
			return err
		}
	}
	return nil
}

func quoteConfig(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

// midOperation says whether git inside is in the middle of something that lives
// in its index.
func midOperation(root *os.Root) bool {
	return anyOf(root, "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD")
}

func rebasing(root *os.Root) bool { return anyOf(root, "rebase-merge", "rebase-apply") }

func anyOf(root *os.Root, names ...string) bool {
	for _, f := range names {
		if _, err := root.Lstat(f); err == nil {
			return true
		}
	}
	return false
}

// rootWrite replaces a file below root by renaming a new one over it. Links on
// the way that lead out of root are refused by os.Root; a link at the name
// itself is replaced, not followed.
func rootWrite(root *os.Root, name string, data []byte) error {
	tmp := name + ".git-env-new"
	_ = root.RemoveAll(tmp)
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, bytes.NewReader(data))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = root.Rename(tmp, name)
	}
	if err != nil {
		_ = root.Remove(tmp)
	}
	return err
}
