package environment

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/internal/devcontainer"
	"github.com/git-env/git-env/internal/secret"
	"github.com/git-env/git-env/internal/settings"
)

// The image that needs no registry, and where the workspace is inside.
const (
	defaultImage   = "host"
	defaultWorkdir = "/workspace"
)

// Settings is what holds for an environment: its project's file, git config and
// the flags that it was made with, the later ones winning. package
// internal/settings has the table of them.
type Settings struct {
	Image       string
	Workdir     string
	User        string   // "" takes the image's
	Setup       []string // lines of shell, before the workspace is there
	Install     []string // lines of shell, in the workspace
	Start       []string // lines of shell, in the workspace, after each start of the container
	Vars        []string // K=V
	Secrets     []secret.Spec
	Caches      []settings.Volume
	Mounts      []settings.Mount
	Memory      int64         // bytes; 0 for any number
	CPUs        float64       // 0 for any number
	Pids        int64         // 0 for any number, -1 for the runtime's default
	Disk        int64         // bytes that the workspace may keep on the disk; 0 for any number
	Timeout     time.Duration // of an exec; 0 for none
	Network     string        // none, full, host or allow
	Allow       []settings.HostPort
	HostPorts   []settings.OpenPort // of this machine's loopback that it reaches
	DNS         []settings.Server   // resolvers instead of this machine's
	Ports       []settings.Port
	Isolation   string // auto, userns or basic
	Profile     fusefs.Profile
	MaxFileSize int64 // bytes; a larger file is kept in the workspace, not committed
	Services    []Service

	WorkspaceDir string
	Containerd   string // socket of an existing containerd; "" runs a private one
	Idle         time.Duration
	Watchdog     time.Duration // what a file server may take to answer; 0 for ever
	Uring        bool          // FUSE over io_uring where the kernel has it
	OutputLimit  int64         // bytes of whole outputs kept per environment
	BlobCache    int64         // bytes of materialised blobs kept per repository; 0 for any number
	SetupCache   int64         // prepared root filesystems kept per repository; 0 for any number

	// Unsupported names settings that this version does not act on, and where they
	// are set.
	Unsupported []string
	// Asks is what the project's file asks of this machine, which takes effect only
	// with the user's consent.
	Asks []settings.Ask

	// asked is what Mounts and Caches were made of.
	asked []settings.Value
	// kept is what they were made of.
	kept *Kept
	// notes tells what a devcontainer.json asks for in vain.
	notes []string
}

// Service is a service that runs beside an environment.
type Service struct {
	Name           string
	Image          string // "" takes the environment's root filesystem
	Command        string // a line of shell; "" takes the image's command
	Ports          []settings.Port
	Vars           []string // K=V
	Secrets        []secret.Spec
	Volumes        []settings.Volume
	Health         string // a line of shell; "" for no check
	HealthInterval time.Duration
	Restart        string // on-failure, always or no
	Workdir, User  string // "" takes the image's
	Memory         int64  // bytes; 0 for any number
	CPUs           float64
}

// settingsFor reads the settings of an environment that is to be made from a
// commit.
func (s *Store) settingsFor(ctx context.Context, commit string, p api.Create) (Settings, error) {
	flags := p.Config
	if p.Image != "" {
		flags = append(flags[:len(flags):len(flags)], settings.Flag("env.image", p.Image))
	}
	return s.readAll(ctx, commit, devcontainer.Local{Environ: p.LocalEnv, WorkTree: p.LocalDir}, flags...)
}

// readSettings reads what a commit ("" for none) and git config say.
func (s *Store) readSettings(ctx context.Context, commit string) (Settings, error) {
	return s.readAll(ctx, commit, devcontainer.Local{})
}

// readAll reads what a commit, git config and flags say.
func (s *Store) readAll(ctx context.Context, commit string, local devcontainer.Local, flags ...settings.Entry) (Settings, error) {
	project, err := s.project(ctx, commit, local)
	if err != nil {
		return Settings{}, err
	}
	config, err := settings.ReadConfig(ctx, s.Git)
	if err != nil {
		return Settings{}, err
	}
	entries := slices.Concat(project.Entries, config, flags)
	m, err := settings.Merge(entries)
	if err != nil {
		return Settings{}, settingsError(err)
	}
	set := newSettings(m)
	set.kept = &Kept{entries}
	set.notes = project.Notes
	if len(project.Unused) > 0 {
		set.notes = append(set.notes, "not used here: "+strings.Join(project.Unused, ", "))
	}
	if project.NoImage == nil {
		return set, nil
	}
	if !ownImage(m) {
		return Settings{}, settingsError(project.NoImage)
	}
	set.notes = append(set.notes, "the image is "+set.Image+", and not what the file would build")
	return set, nil
}

// settingsError makes a mistake in a setting one of usage.
func settingsError(err error) error {
	var bad *settings.Error
	if errors.As(err, &bad) {
		return Errorf(ExitUsage, "%w", err)
	}
	return err // nil too
}

func newSettings(m *settings.Values) Settings {
	set := Settings{
		Image: settings.Env[string](m, "image"), Workdir: settings.Env[string](m, "workdir"), User: settings.Env[string](m, "user"),
		Setup: settings.EnvAll[string](m, "setup"), Install: settings.EnvAll[string](m, "install"),
		Start:   settings.EnvAll[string](m, "start"),
		Vars:    texts(settings.EnvAll[settings.Variable](m, "var")),
		Secrets: m.Secrets(""), Caches: settings.EnvAll[settings.Volume](m, "cache"),
		Mounts: settings.EnvAll[settings.Mount](m, "mount"),
		Memory: settings.Env[int64](m, "memory"), CPUs: settings.Env[float64](m, "cpus"), Pids: -1,
		Disk: settings.Env[int64](m, "disk"), Timeout: settings.Env[time.Duration](m, "timeout"),
		Network: settings.Env[string](m, "network"), Allow: settings.EnvAll[settings.HostPort](m, "allow"),
		HostPorts: settings.EnvAll[settings.OpenPort](m, "hostPort"), DNS: settings.EnvAll[settings.Server](m, "dns"),
		Ports: settings.EnvAll[settings.Port](m, "port"), Isolation: settings.Env[string](m, "isolation"),
		MaxFileSize: settings.Env[int64](m, "maxFileSize"),

		WorkspaceDir: settings.Env[string](m, "workspaceDir"), Containerd: settings.Env[string](m, "containerd"),
		Idle: settings.Env[time.Duration](m, "idleTimeout"), Watchdog: settings.Env[time.Duration](m, "watchdog"),
		Uring: settings.Env[bool](m, "fuseUring"), OutputLimit: settings.Env[int64](m, "outputLimit"),
		BlobCache: settings.Env[int64](m, "blobCache"), SetupCache: settings.Env[int64](m, "setupCache"),

		Unsupported: m.Pending(), Asks: m.Asks(),
		asked: slices.Concat(m.Of("mount"), m.Of("cache")),
	}
	if len(m.Of("pids")) > 0 {
		set.Pids = settings.Env[int64](m, "pids")
	}
	if settings.Env[string](m, "fsProfile") == "io" {
		set.Profile = fusefs.ProfileIO
	}
	for _, name := range m.Services() {
		set.Services = append(set.Services, newService(m, name))
	}
	return set
}

func newService(m *settings.Values, name string) Service {
	text := func(key string) string { return settings.Service[string](m, name, key) }
	return Service{
		Name: name, Image: text("image"), Command: text("command"),
		Ports:   settings.ServiceAll[settings.Port](m, name, "port"),
		Vars:    texts(settings.ServiceAll[settings.Variable](m, name, "var")),
		Secrets: m.Secrets(name),
		Volumes: settings.ServiceAll[settings.Volume](m, name, "volume"),
		Health:  text("health"), HealthInterval: settings.Service[time.Duration](m, name, "healthInterval"),
		Restart: text("restart"), Workdir: text("workdir"), User: text("user"),
		Memory: settings.Service[int64](m, name, "memory"), CPUs: settings.Service[float64](m, name, "cpus"),
	}
}

func texts(vars []settings.Variable) []string {
	var out []string
	for _, v := range vars {
		out = append(out, v.String())
	}
	return out
}
