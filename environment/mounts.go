package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/internal/hostpath"
	"github.com/git-env/git-env/internal/settings"
	"github.com/git-env/git-env/runtime"
)

// Mounts of this machine's files, and cache volumes.

// held is a mount whose source is held open from when it was looked at until the
// container has it.
type held struct {
	runtime.Mount
	source *hostpath.Opened
	asked  settings.Value
}

// release lets go of sources.
func release(list []held) {
	for _, h := range list {
		_ = h.source.File.Close()
	}
}

// checkMounts says what is wrong with the mounts and caches that are asked for.
func (e *Engine) checkMounts(ctx context.Context, set Settings) error {
	list, err := e.hostMounts(ctx, set)
	release(list)
	return err
}

// hostMounts opens the sources of the mounts that are asked for. The caller
// releases them.
func (e *Engine) hostMounts(ctx context.Context, set Settings) (list []held, err error) {
	if err := checkTargets(set.asked); err != nil {
		return nil, settingsError(err)
	}
	if len(set.Mounts) == 0 {
		return nil, nil
	}
	top, trees, err := e.store.workTrees(ctx)
	if err != nil {
		return nil, err
	}
	rules, err := hostpath.NewRules(e.notShown(set), append(trees, writableSources(set.asked, top)...))
	if err != nil {
		return nil, err
	}
	for _, v := range set.asked {
		m, ok := v.Parsed.(settings.Mount)
		if !ok {
			continue
		}
		source, err := fullSource(m.Source, top)
		var o *hostpath.Opened
		if err == nil {
			o, err = hostpath.Open(source, rules)
		}
		if err != nil {
			release(list)
			return nil, settingsError(v.Refuse("the source cannot be mounted: %w", err))
		}
		list = append(list, held{runtime.Mount{Source: o.Path, Target: m.Target, ReadOnly: !m.Writable, Flat: true}, o, v})
	}
	return list, nil
}

// fullSource makes a source absolute; top is that of the work tree, if there is
// one.
func fullSource(source, top string) (string, error) {
	if rest, ok := strings.CutPrefix(source, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		return filepath.Join(home, rest), nil
	}
	if filepath.IsAbs(source) {
		return source, nil
	}
	if top == "" {
		return "", errors.New("it is relative to the top of the work tree, and this repository has none")
	}
	return top + "/" + source, nil
}

// workTrees lists the repository's work trees, and the
// top of the main one; "" when that has none.
func (s *Store) workTrees(ctx context.Context) (top string, all []string, err error) {
	out, err := s.Git.Output(ctx, nil, "worktree", "list", "--porcelain")
	if err != nil {
		return "", nil, err
	}
	for i, block := range strings.Split(string(out), "\n\n") {
		path, ok := strings.CutPrefix(block, "worktree ")
		path, rest, _ := strings.Cut(path, "\n")
		if !ok || path == "" {
			continue
		}
		if within(path, filepath.Join(DataHome(), "git-env")) {
			continue // a workspace, which is refused as a whole
		}
		if i == 0 && !strings.HasPrefix(rest, "bare") {
			top = path
		}
		all = append(all, path)
	}
	return top, all, nil
}

// writableSources are those that an environment can plant links in.
func writableSources(asked []settings.Value, top string) []string {
	var out []string
	for _, v := range asked {
		if m, ok := v.Parsed.(settings.Mount); ok && m.Writable {
			if source, err := fullSource(m.Source, top); err == nil {
				out = append(out, source)
			}
		}
	}
	return out
}

// notShown lists what no environment gets to see of this machine.
func (e *Engine) notShown(set Settings) []hostpath.Place {
	places := []hostpath.Place{
		{Path: e.store.Repo.CommonDir, What: "the repository's git directory", Below: true},
		{Path: filepath.Join(DataHome(), "git-env"), What: "git env's own data", Below: true},
		{Path: filepath.Join(RunHome(), "git-env"), What: "git env's own data", Below: true},
		{Path: "/proc", What: "the kernel's /proc", Below: true},
		{Path: "/sys", What: "the kernel's /sys", Below: true},
		{Path: "/dev", What: "this machine's devices", Below: true},
		{Path: "/run/containerd", What: "containerd's own data", Below: true},
		{Path: "/var/lib/containerd", What: "containerd's own data", Below: true},
		{Path: "/run", What: "the directory of this machine's sockets"},
		{Path: RunHome(), What: "the directory of your sockets"},
		{Path: "/root", What: "the home directory of root"},
	}
	if e.setting.Containerd != "" {
		places = append(places, hostpath.Place{Path: e.setting.Containerd, What: "containerd's socket"})
	}
	for _, dir := range []string{e.setting.WorkspaceDir, set.WorkspaceDir} {
		if dir != "" {
			places = append(places, hostpath.Place{Path: dir, What: "the directory of workspaces", Below: true})
		}
	}
	// Last: a home directory is called so, whatever else it contains.
	if home, err := os.UserHomeDir(); err == nil {
		places = append(places, hostpath.Place{Path: home, What: "the home directory"})
	}
	return places
}

// ownTargets are places inside that are taken, with what is below them.
func ownTargets() []string {
	return []string{defaultWorkdir, insideRoot, "/proc", "/sys", "/dev", "/run/secrets", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}
}

// longestName is the longest name of a file, in bytes.
const longestName = 255

// checkTargets finds mounts and caches that have no place inside.
func checkTargets(asked []settings.Value) error {
	for i, v := range asked {
		at := target(v)
		if c, ok := v.Parsed.(settings.Volume); ok && len(cacheName(c)) > longestName {
			return v.Refuse("too long for the name of a directory; give it a name: <name>:%s", at)
		}
		if at == "/" {
			return v.Refuse("nothing can be mounted on the root directory")
		}
		for _, own := range ownTargets() {
			switch {
			case within(at, own):
				return v.Refuse("%s is taken inside; nothing else can be mounted there", own)
			case within(own, at):
				return v.Refuse("it would hide %s inside", own)
			}
		}
		for _, o := range asked[:i] {
			if was := target(o); within(at, was) || within(was, at) {
				return v.Refuse("%s is in the way: %s, from %s", was, o.Name(), o.Where())
			}
		}
	}
	return nil
}

func target(v settings.Value) string {
	switch p := v.Parsed.(type) {
	case settings.Mount:
		return p.Target
	case settings.Volume:
		return p.Target
	}
	return ""
}

// checkMounted makes sure that what the container has is what was looked at, not
// what was put in its place meanwhile. Nothing has run in the container yet.
func checkMounted(c runtime.Container, list []held) error {
	for _, h := range list {
		got, err := hostpath.Inside("/proc/"+strconv.Itoa(c.Pid())+"/root", h.Target)
		if err == nil && got != h.source.ID {
			err = errors.New("it was replaced meanwhile")
		}
		if err != nil {
			return Errorf(ExitFailed, "%w", h.asked.Refuse("cannot make sure of what was mounted: %w", err))
		}
	}
	return nil
}

// cacheDir has the cache volumes of the repository's environments. Nobody but the
// user gets through it.
func (s *Store) cacheDir() string {
	return filepath.Join(DataHome(), "git-env", "caches", s.Key())
}

// cacheName is the name of a cache's directory: its own, or its target, in which
// there is always a "%".
func cacheName(c settings.Volume) string {
	if c.Name != "" {
		return c.Name
	}
	return url.PathEscape(c.Target)
}

// cacheMounts makes the directories of caches that are not there yet, and returns
// their mounts.
func (s *Store) cacheMounts(caches []settings.Volume) ([]runtime.Mount, error) {
	var mounts []runtime.Mount
	for _, c := range caches {
		dir := filepath.Join(s.cacheDir(), cacheName(c))
		if err := makeCache(dir); err != nil {
			return nil, fmt.Errorf("cannot make the cache for %s: %w", c.Target, err)
		}
		mounts = append(mounts, runtime.Mount{Source: dir, Target: c.Target, Flat: true})
	}
	return mounts, nil
}

// makeCache makes a cache that every user inside may write to, as in /tmp. Once it
// is there its mode is the environments' own affair.
func makeCache(dir string) error {
	if err := durable.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Chmod(dir, 0o777|fs.ModeSticky)
}
