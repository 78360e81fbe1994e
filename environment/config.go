package environment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/objects"
)

// Defaults of the settings.
const (
	defaultImage       = "host"
	defaultWorkdir     = "/workspace"
	defaultMaxFileSize = 100 << 20
	defaultOutputLimit = 256 << 20
	defaultBlobCache   = 10 << 30
	defaultIdle        = 10 * time.Minute
	defaultWatchdog    = 30 * time.Second
)

// Settings is what .gitenv and git config say, the latter winning.
type Settings struct {
	Image        string
	Workdir      string
	Vars         []string // K=V
	MaxFileSize  int64    // bytes; a larger file is kept in the workspace, not committed
	WorkspaceDir string
	Containerd   string // socket of an existing containerd; "" runs a private one
	Idle         time.Duration
	Watchdog     time.Duration  // what a file server may take to answer; 0 for ever
	Uring        bool           // FUSE over io_uring where the kernel has it
	Profile      fusefs.Profile // what new workspaces are to be good at
	OutputLimit  int64          // bytes of whole outputs kept per environment
	BlobCache    int64          // bytes of materialised blobs kept per repository; 0 for any number
	Disk         int64          // bytes that the workspace may keep on the disk; 0 for any number
	// Unsupported names keys of .gitenv that this version does not act on.
	Unsupported []string
}

// readSettings reads the settings that hold for an environment started from
// commit ("" reads git config alone).
func (s *Store) readSettings(ctx context.Context, commit string) (Settings, error) {
	set := Settings{Image: defaultImage, Workdir: defaultWorkdir, MaxFileSize: defaultMaxFileSize, Idle: defaultIdle, OutputLimit: defaultOutputLimit, BlobCache: defaultBlobCache, Watchdog: defaultWatchdog, Uring: true}
	if commit != "" {
		e, err := s.Reader.Path(ctx, commit, ".gitenv")
		switch {
		case err == nil && (e.Mode == 0o100644 || e.Mode == 0o100755):
			kvs, err := listConfig(ctx, s.Git, "config", "-z", "--no-includes", "--blob", e.ID, "--list")
			if err != nil {
				return set, Errorf(ExitUsage, ".gitenv of %.12s: %w", commit, err)
			}
			if err := set.apply(kvs, ".gitenv", true); err != nil {
				return set, err
			}
		case err != nil && !errors.Is(err, objects.ErrNotFound):
			return set, err
		}
	}
	kvs, err := listConfig(ctx, s.Git, "config", "-z", "--get-regexp", `^env\.`)
	if err != nil {
		return set, err
	}
	return set, set.apply(kvs, "git config", false)
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

// apply takes over key-value pairs. A repository's file may not set what
// concerns the host alone.
func (set *Settings) apply(kvs [][2]string, origin string, fromTree bool) error {
	for _, kv := range kvs {
		key, val := kv[0], kv[1]
		bad := func(err error) error {
			return Errorf(ExitUsage, "%s: %s = %s: %w", origin, key, val, err)
		}
		switch key {
		case "env.image":
			set.Image = val
		case "env.workdir":
			if !filepath.IsAbs(val) {
				return bad(errors.New("not an absolute path"))
			}
			set.Workdir = val
		case "env.var":
			if k, _, ok := strings.Cut(val, "="); !ok || k == "" {
				return bad(errors.New("not NAME=value"))
			}
			set.Vars = append(set.Vars, val)
		case "env.fsprofile":
			switch strings.ToLower(val) {
			case "meta", "":
				set.Profile = fusefs.ProfileMeta
			case "io":
				set.Profile = fusefs.ProfileIO
			default:
				return bad(errors.New("not meta or io"))
			}
		case "env.maxfilesize":
			n, err := parseSize(val)
			if err != nil {
				return bad(err)
			}
			set.MaxFileSize = n
		case "env.disk":
			n, err := parseLimit(val)
			if err != nil {
				return bad(err)
			}
			set.Disk = n
		default:
			if fromTree {
				set.Unsupported = append(set.Unsupported, key)
				continue
			}
			if err := set.applyHost(key, val); err != nil {
				return bad(err)
			}
		}
	}
	return nil
}

func (set *Settings) applyHost(key, val string) error {
	switch key {
	case "env.workspacedir":
		if !filepath.IsAbs(val) {
			return errors.New("not an absolute path")
		}
		set.WorkspaceDir = val
	case "env.containerd":
		set.Containerd = strings.TrimPrefix(val, "unix://")
	case "env.outputlimit":
		n, err := parseSize(val)
		if err != nil {
			return err
		}
		set.OutputLimit = n
	case "env.blobcache":
		if val == "0" || strings.EqualFold(val, "unlimited") {
			set.BlobCache = 0
			break
		}
		n, err := parseSize(val)
		if err != nil {
			return fmt.Errorf("%w, or unlimited", err)
		}
		set.BlobCache = n
	case "env.fuseuring":
		switch strings.ToLower(val) {
		case "on", "true", "yes", "1", "auto", "":
			set.Uring = true
		case "off", "false", "no", "0":
			set.Uring = false
		default:
			return errors.New("not on or off")
		}
	case "env.watchdog":
		return set.applyWatchdog(val)
	case "env.idletimeout":
		d, err := time.ParseDuration(val)
		if err != nil || d <= 0 {
			return errors.New("not a duration such as 10m")
		}
		set.Idle = d
	}
	return nil
}

// shortestWatchdog is what a busy machine may take for anything.
const shortestWatchdog = time.Second

func (set *Settings) applyWatchdog(val string) error {
	switch strings.ToLower(val) {
	case "off", "false", "no", "0":
		set.Watchdog = 0
		return nil
	}
	d, err := time.ParseDuration(val)
	if err != nil || d < shortestWatchdog {
		return errors.New("not off and not a duration of a second or more, such as 30s")
	}
	set.Watchdog = d
	return nil
}

// parseLimit reads a size, or 0 or unlimited for no limit.
func parseLimit(s string) (int64, error) {
	if s == "0" || strings.EqualFold(s, "unlimited") {
		return 0, nil
	}
	n, err := parseSize(s)
	if err != nil {
		return 0, fmt.Errorf("%w, or unlimited", err)
	}
	return n, nil
}

// parseSize reads a size in bytes with git's suffixes k, m and g, and t.
func parseSize(s string) (int64, error) {
	mult := int64(1)
	num := s
	if n := len(s); n > 0 {
		if i := slices.Index([]byte("kmgt"), s[n-1]|0x20); i >= 0 {
			mult = 1 << (10 * (i + 1))
			num = s[:n-1]
		}
	}
	v, err := strconv.ParseInt(num, 10, 64)
	if err != nil || v <= 0 || v > (1<<62)/mult {
		return 0, fmt.Errorf("not a size such as 100m")
	}
	return v * mult, nil
}
