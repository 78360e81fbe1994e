package settings

import (
	"slices"
	"strings"

	"github.com/git-env/git-env/internal/secret"
)

// Key is one setting.
type Key struct {
	// Name is how people write it. "*" stands for the name of a service.
	Name string
	Kind Kind
	// Multi says that each value is one more, and not in place of the last.
	Multi bool
	// Default is what holds when nobody sets it, as one would write it; "" for
	// nothing.
	Default string
	// Host marks what concerns this machine: a project's file cannot set it.
	Host bool
	// Daemon marks what the daemon reads when it starts, so that it cannot be set for
	// one command.
	Daemon bool
	// Trust tells why a value of the project's file needs the user's consent; ""
	// when it does not. Nil never asks.
	Trust func(value any) string
	// TrustFor says for people which values these are.
	TrustFor string
	// Pending marks a setting that is checked, but that no code acts on yet: an
	// environment that has it says so when it is made. Whoever makes it work takes
	// the mark away.
	Pending bool
	// Personal marks what stays on this machine when it comes from git config: it
	// may name the user's files, or say what others are not to read.
	Personal bool
	// About is what it is for, in one sentence without its full stop.
	About string
}

// anyService stands in a name for that of a service.
const anyService = "*"

// Schema lists all settings in the order of the reference page.
func Schema() []Key { return slices.Concat(environmentKeys(), machineKeys(), serviceKeys()) }

// environmentKeys are what an environment is made of; both the project's file
// and git config may set them.
func environmentKeys() []Key {
	return []Key{
		{Name: "env.image", Kind: image(), Default: "host",
			About: "image of the container: an OCI reference, or `host` for this machine's own tools"},
		{Name: "env.workdir", Kind: absolute(), Default: "/workspace",
			About: "directory in which commands start"},
		{Name: "env.user", Kind: user(), Pending: true,
			About: "user, by name or number, who runs commands; a group may follow after a colon. Without it the image's own"},
		{Name: "env.setup", Kind: command(), Multi: true,
			About: "a line of shell that prepares the root filesystem, before the workspace is there; its result is kept and shared"},
		{Name: "env.install", Kind: command(), Multi: true,
			About: "a line of shell that prepares the workspace when an environment is new, such as fetching dependencies"},
		{Name: "env.start", Kind: command(), Multi: true, Pending: true,
			About: "a line of shell to run in the workspace each time the environment's container has started"},
		{Name: "env.var", Kind: variable(), Multi: true, Personal: true,
			About: "`NAME=value` in the environment of every command"},
		{Name: "env.secret", Kind: secretRef(), Multi: true, Personal: true, Trust: trustSecret, TrustFor: "all but `env://`",
			About: "`NAME=<where>` or `/run/secrets/<name>=<where>`: a value that is never recorded, as a variable or a file, from `env://VARIABLE`, `file://path`, `cmd://line`, `op://…` or `vault://…`"},
		{Name: "env.cache", Kind: volume(), Multi: true,
			About: "a directory inside that all environments of the repository share; `name:/path` gives it a name of its own"},
		{Name: "env.mount", Kind: mount(), Multi: true, Personal: true, Trust: trustAlways("shows a part of this machine's files"), TrustFor: "always",
			About: "`source:target`: a file or directory of this machine, read-only unless `:rw` follows"},
		{Name: "env.memory", Kind: limit(), Default: "unlimited",
			About: "memory that everything in the environment may use together"},
		{Name: "env.cpus", Kind: cpus(), Default: "unlimited",
			About: "processors that everything in it may use together, such as `2` or `0.5`"},
		{Name: "env.pids", Kind: count(),
			About: "processes and threads that may exist in it at once; without it the runtime's own limit"},
		{Name: "env.disk", Kind: limit(), Default: "unlimited",
			About: "what the workspace may keep on the disk"},
		{Name: "env.timeout", Kind: offOr(duration(0)), Default: "off",
			About: "how long a command may run, unless `run --timeout` says"},
		{Name: "env.network", Kind: choice("none", "full", "host", "allow"), Default: "full", Trust: trustHostNetwork, TrustFor: "`host`",
			About: "what commands reach: `full` everything but this machine, `allow` only what `env.allow` lists, `none` nothing, `host` this machine's own network"},
		{Name: "env.allow", Kind: hostPort(), Multi: true,
			About: "a host that may be reached with `env.network = allow`: `name`, `*.name`, an address or a block of addresses; a port may follow after a colon"},
		{Name: "env.port", Kind: port(), Multi: true,
			About: "a port inside to publish on this machine's loopback address; `8080:3000` asks for port 8080 there"},
		{Name: "env.isolation", Kind: choice("auto", "userns", "basic"), Default: "auto", Trust: trustBasic, TrustFor: "`basic`",
			About: "how far root inside is from root of this machine: `userns` asks for a user namespace and is refused where there is none to be had, `basic` does without, `auto` takes the best there is"},
		{Name: "env.fsProfile", Kind: choice("meta", "io"), Default: "meta",
			About: "what the workspace is to be good at: `meta` for many files, `io` for large ones"},
		{Name: "env.maxFileSize", Kind: size(), Default: "100m",
			About: "a larger file is kept in the workspace and not committed"},
	}
}

// machineKeys concern this machine, and only git config sets them.
func machineKeys() []Key {
	return []Key{
		{Name: "env.workspaceDir", Kind: absolute(), Host: true,
			About: "where workspaces are mounted, instead of `$XDG_DATA_HOME/git-env`"},
		{Name: "env.containerd", Kind: socket(), Host: true, Daemon: true,
			About: "socket of an existing containerd, instead of a private one"},
		{Name: "env.hostPort", Kind: openPort(), Multi: true, Host: true,
			About: "a port of this machine's loopback address that environments reach, as `host.git-env.internal`; `*` opens all"},
		{Name: "env.dns", Kind: server(), Multi: true, Host: true,
			About: "address, with a port if it is not 53, of a resolver that environments ask instead of this machine's"},
		{Name: "env.outputLimit", Kind: size(), Default: "256m", Host: true, Daemon: true,
			About: "whole outputs kept per environment; beyond it the oldest go, their records stay"},
		{Name: "env.blobCache", Kind: limit(), Default: "10g", Host: true, Daemon: true,
			About: "content of files kept as plain files for all environments of the repository; beyond it what was used the longest ago goes, except what is open"},
		{Name: "env.setupCache", Kind: count(), Default: "16", Host: true, Daemon: true,
			About: "root filesystems that setup steps have prepared, kept for the next environments of the repository; beyond it those that were not used for the longest time go"},
		{Name: "env.fuseUring", Kind: switched(), Default: "on", Host: true, Daemon: true,
			About: "let workspaces use FUSE over io_uring where the kernel has it"},
		{Name: "env.watchdog", Kind: offOr(duration(shortestWatchdog)), Default: "30s", Host: true, Daemon: true,
			About: "how long the file server may take to answer before it is taken to be stuck and ended; `off` lets everybody wait"},
		{Name: "env.idleTimeout", Kind: duration(0), Default: "10m", Host: true, Daemon: true,
			About: "an environment that nothing uses for this long is suspended; then the daemon leaves"},
	}
}

// serviceKeys describe a service that runs beside the environment.
func serviceKeys() []Key {
	keys := []Key{
		{Name: "image", Kind: image(), About: "image of the service; without it the environment's own root filesystem, and then it needs a command"},
		{Name: "command", Kind: command(), About: "a line of shell to run instead of the image's own command"},
		{Name: "port", Kind: port(), Multi: true, About: "a port that the service listens on"},
		{Name: "var", Kind: variable(), Multi: true, Personal: true, About: "`NAME=value` in its environment"},
		{Name: "secret", Kind: secretRef(), Multi: true, Personal: true, Trust: trustSecret, TrustFor: "all but `env://`", About: "like `env.secret`, for the service alone"},
		{Name: "volume", Kind: volume(), Multi: true, About: "a directory inside whose content stays and is forked with the environment"},
		{Name: "health", Kind: command(), About: "a line of shell that succeeds inside when the service is ready"},
		{Name: "healthInterval", Kind: duration(0), Default: "2s", About: "time between two of these checks"},
		{Name: "restart", Kind: choice("on-failure", "always", "no"), Default: "on-failure", About: "when to start it again after it has ended"},
		{Name: "workdir", Kind: absolute(), About: "directory in which it starts, instead of the image's"},
		{Name: "user", Kind: user(), About: "user who runs it, instead of the image's"},
		{Name: "memory", Kind: limit(), Default: "unlimited", About: "memory that it may use"},
		{Name: "cpus", Kind: cpus(), Default: "unlimited", About: "processors that it may use"},
	}
	for i := range keys {
		keys[i].Name = "service." + anyService + "." + keys[i].Name
	}
	return keys
}

// Find returns the setting that git lists as name, and the name of the service
// when it is one of a service. Only the first and the last part of a name are
// without case, as for git.
func Find(name string) (key Key, service string, ok bool) { return findIn(Schema(), name) }

func findIn(keys []Key, name string) (key Key, service string, ok bool) {
	section, rest, dotted := strings.Cut(name, ".")
	if !dotted {
		return Key{}, "", false
	}
	generic := name
	if strings.EqualFold(section, "service") {
		i := strings.LastIndexByte(rest, '.')
		if i < 0 {
			return Key{}, "", false
		}
		service, generic = rest[:i], section+"."+anyService+rest[i:]
	}
	for _, k := range keys {
		if strings.EqualFold(k.Name, generic) {
			return k, service, true
		}
	}
	return Key{}, "", false
}

// named puts the name of a service into a key's name.
func (k Key) named(service string) string {
	return strings.Replace(k.Name, anyService, service, 1)
}

func trustAlways(why string) func(any) string { return func(any) string { return why } }

func trustSecret(v any) string { return v.(secret.Spec).NeedsTrust() }

func trustHostNetwork(v any) string {
	if v == "host" {
		return "sees this machine's own network"
	}
	return ""
}

func trustBasic(v any) string {
	if v == "basic" {
		return "gives up the user namespace"
	}
	return ""
}
