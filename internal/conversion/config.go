package conversion

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/git-env/git-env/internal/gitcmd"
)

// Config is what the user's configuration says about conversions, as it was when
// it was read. It does not change.
type Config struct {
	autocrlf   string // "true", "input" or ""
	eol        string // "crlf", "lf" or ""
	attributes string // the user's attributes file, "" for none
	global     bool
	filters    map[string]filter
	raw        [][2]string // what was set, for Settings
	below      []string
	above      string
	// fingerprint is over all of it, with the content of the attribute files.
	fingerprint string
}

// filter is a [filter "name"] section.
type filter struct{ clean, smudge, process, required string }

// Global reports whether something besides the .gitattributes files of a tree
// may have content converted.
func (c *Config) Global() bool { return c.global }

// CleansLineEnds reports whether CRLF becomes LF when a file that no attribute
// is about is added.
func (c *Config) CleansLineEnds() bool { return c.autocrlf != "" }

// Settings lists the settings that decide about conversions, as they were given:
// core.autocrlf, core.eol and those of filters.
func (c *Config) Settings() [][2]string { return c.raw }

// AttributeFiles returns the files with attributes besides those of a tree: the
// system's and the user's, and the one that wins over a tree's. Some may not be
// there.
func (c *Config) AttributeFiles() (below []string, above string) { return c.below, c.above }

// Fingerprint tells configurations apart under which a checkout of some tree may
// differ; "" is the one where nobody has set anything.
func (c *Config) Fingerprint() string { return c.fingerprint }

// textIsCRLF is whether a file that is known to be text gets CRLF.
func (c *Config) textIsCRLF() bool {
	return c.autocrlf == "true" || c.autocrlf == "" && c.eol == "crlf"
}

// pinned are environment variables that give git this configuration, though the
// files may say something else by now.
func (c *Config) pinned(attributes string) []string {
	pairs := [][2]string{
		{"core.autocrlf", cmpOr(c.autocrlf, "false")}, {"core.eol", cmpOr(c.eol, "native")}, {"core.attributesFile", attributes},
	}
	for _, name := range slices.Sorted(maps.Keys(c.filters)) {
		f := c.filters[name]
		for _, kv := range [][2]string{{"smudge", f.smudge}, {"process", f.process}, {"required", f.required}} {
			if kv[1] != "" {
				pairs = append(pairs, [2]string{"filter." + name + "." + kv[0], kv[1]})
			}
		}
	}
	env := []string{"GIT_CONFIG_COUNT=" + strconv.Itoa(len(pairs))}
	for i, kv := range pairs {
		n := strconv.Itoa(i)
		env = append(env, "GIT_CONFIG_KEY_"+n+"="+kv[0], "GIT_CONFIG_VALUE_"+n+"="+kv[1])
	}
	return env
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// A Source reads the configuration again when one of its files has changed. It
// is safe for concurrent use.
type Source struct {
	git *gitcmd.Git

	mu     sync.Mutex
	config *Config          // guarded by mu
	files  map[string]stamp // guarded by mu: what it was read from, missing ones too
}

// stamp tells versions of a file apart.
type stamp struct {
	ino         uint64
	size, mtime int64
}

// NewSource returns the configuration of g's repository.
func NewSource(g *gitcmd.Git) *Source { return &Source{git: g} }

// Config returns the configuration as it is now. The same value comes back as
// long as no file that it comes from has changed.
func (s *Source) Config(ctx context.Context) (*Config, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.config != nil && s.unchanged() {
		return s.config, nil
	}
	s.config, s.files = nil, map[string]stamp{}
	common := s.git.GitDir()
	s.watch(filepath.Join(common, "config"), filepath.Join(common, "config.worktree"), "/etc/gitconfig",
		home(".gitconfig"), xdg("config"))
	out, err := s.git.Output(ctx, nil, "config", "-z", "--list", "--show-origin")
	if err != nil {
		return nil, err
	}
	c := &Config{filters: map[string]filter{}}
	attributes := xdg("attributes")
	fields := strings.Split(string(out), "\x00")
	for i := 0; i+1 < len(fields); i += 2 {
		if file, ok := strings.CutPrefix(fields[i], "file:"); ok {
			if !filepath.IsAbs(file) {
				file = filepath.Join(common, file)
			}
			s.watch(file)
		}
		key, val, given := strings.Cut(fields[i+1], "\n")
		if !given {
			val = "true"
		}
		if key == "core.attributesfile" {
			attributes = userPath(val, common)
		}
		c.set(key, val)
	}
	system := []string{"/etc/gitattributes"}
	if bin, err := exec.LookPath("git"); err == nil {
		// Git that is installed somewhere else has its own.
		system = append(system, filepath.Join(filepath.Dir(filepath.Dir(bin)), "etc", "gitattributes"))
	}
	s.watch(append(system, filepath.Join(common, "info", "attributes"), attributes)...)
	c.global = c.autocrlf == "true"
	for _, f := range append(system, filepath.Join(common, "info", "attributes"), attributes) {
		if f != "" && s.files[f] != (stamp{}) {
			c.global = true
		}
	}
	if s.files[attributes] != (stamp{}) {
		c.attributes = attributes
	}
	c.below, c.above = append(system, attributes), filepath.Join(common, "info", "attributes")
	c.fingerprint = c.sum()
	s.config = c
	return c, nil
}

func (c *Config) sum() string {
	h := sha256.New()
	fmt.Fprintf(h, "%q", c.raw)
	nothing := len(c.raw) == 0
	for _, f := range append(slices.Clone(c.below), c.above) {
		data, err := os.ReadFile(f)
		fmt.Fprintf(h, "%d\x00%s", len(data), data)
		nothing = nothing && err != nil
	}
	if nothing {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func (c *Config) set(key, val string) {
	if key == "core.autocrlf" || key == "core.eol" || strings.HasPrefix(key, "filter.") {
		c.raw = append(c.raw, [2]string{key, val})
	}
	switch key {
	case "core.autocrlf":
		switch {
		case strings.EqualFold(val, "input"):
			c.autocrlf = "input"
		case isTrue(val):
			c.autocrlf = "true"
		default:
			c.autocrlf = ""
		}
	case "core.eol":
		c.eol = ""
		if v := strings.ToLower(val); v == "crlf" || v == "lf" {
			c.eol = v
		}
	}
	rest, ok := strings.CutPrefix(key, "filter.")
	dot := strings.LastIndexByte(rest, '.')
	if !ok || dot < 0 {
		return
	}
	f := c.filters[rest[:dot]]
	switch rest[dot+1:] {
	case "clean":
		f.clean = val
	case "smudge":
		f.smudge = val
	case "process":
		f.process = val
	case "required":
		f.required = strconv.FormatBool(isTrue(val))
	}
	c.filters[rest[:dot]] = f
}

// isTrue reads a boolean as git does.
func isTrue(val string) bool {
	switch strings.ToLower(val) {
	case "true", "yes", "on":
		return true
	}
	n, err := strconv.ParseInt(val, 0, 64)
	return err == nil && n != 0
}

// watch notes the state of files; one that cannot be looked at counts as missing.
func (s *Source) watch(files ...string) {
	for _, f := range files {
		if f != "" {
			s.files[f] = stampOf(f)
		}
	}
}

func (s *Source) unchanged() bool {
	for f, was := range s.files {
		if stampOf(f) != was {
			return false
		}
	}
	return true
}

func stampOf(file string) stamp {
	fi, err := os.Stat(file)
	if err != nil || !fi.Mode().IsRegular() {
		return stamp{}
	}
	st := stamp{size: fi.Size(), mtime: fi.ModTime().UnixNano()}
	if sys, ok := fi.Sys().(*syscall.Stat_t); ok {
		st.ino = sys.Ino
	}
	return st
}

func home(name string) string {
	if h := os.Getenv("HOME"); h != "" {
		return filepath.Join(h, name)
	}
	return ""
}

func xdg(name string) string {
	if h := os.Getenv("XDG_CONFIG_HOME"); h != "" {
		return filepath.Join(h, "git", name)
	}
	return home(filepath.Join(".config", "git", name))
}

// userPath is a path of a configuration file.
func userPath(val, dir string) string {
	if rest, ok := strings.CutPrefix(val, "~/"); ok {
		return home(rest)
	}
	if val == "" || filepath.IsAbs(val) {
		return val
	}
	return filepath.Join(dir, val)
}

// copyIfThere copies a file; one that is not there makes an empty one.
func copyIfThere(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(to, data, 0o600)
}
