package api

import (
	"time"

	"github.com/git-env/git-env/internal/secret"
	"github.com/git-env/git-env/internal/settings"
)

// Methods of the daemon.
const (
	MethodCreate       = "create"
	MethodRun          = "run"
	MethodSetup        = "setup"
	MethodFork         = "fork"
	MethodDelete       = "delete"
	MethodPath         = "path"
	MethodFreeze       = "freeze"
	MethodHydrate      = "hydrate"
	MethodRootDiff     = "rootdiff"
	MethodCommit       = "commit"
	MethodMerge        = "merge"
	MethodStatus       = "status"
	MethodDaemonStatus = "daemon.status"
	MethodDaemonStop   = "daemon.stop"
)

// Caller says on whose behalf a request is made: the parts of the client's
// surroundings that the daemon needs and cannot know.
type Caller struct {
	// Dir is the absolute working directory of the client.
	Dir string `json:"dir"`
	// Environ holds the caller's environment variables that matter on the host:
	// GIT_AUTHOR_*, GIT_COMMITTER_*, PATH, EMAIL, HOME, XDG_*.
	Environ []string `json:"environ,omitempty"`
}

// Ask asks the client that made a request for values of secrets, which it has to
// fetch as its user.
type Ask struct {
	Secrets []secret.Spec `json:"secrets"`
}

// Answer is what a client answers to Ask: the values in that order, or why there is
// one that it cannot fetch.
type Answer struct {
	Values []secret.Value `json:"values,omitempty"`
	Code   int            `json:"code,omitempty"` // exit code of a failure
	Error  string         `json:"error,omitempty"`
	Hint   string         `json:"hint,omitempty"`
}

// Create asks for a new environment.
type Create struct {
	Caller Caller `json:"caller"`
	// Name is the environment's name; empty lets the daemon choose one.
	Name string `json:"name,omitempty"`
	// From is any revision git takes, resolved in the caller's work tree by the
	// client to a commit id.
	From string `json:"from"`
	// FromText is what the user wrote, for messages.
	FromText string `json:"from_text,omitempty"`
	// Image is an OCI reference or "host"; empty takes the configured one.
	Image string `json:"image,omitempty"`
	Title string `json:"title,omitempty"`
	// Config holds settings that were given with the command: 'git -c env.x=y'.
	Config []settings.Entry `json:"config,omitempty"`
	// LocalEnv holds the user's environment variables and LocalDir the top of his
	// work tree, to which a devcontainer.json may refer.
	LocalEnv []string `json:"local_env,omitempty"`
	LocalDir string   `json:"local_dir,omitempty"`
	// NoSetup leaves the preparation out until somebody asks for it.
	NoSetup bool `json:"no_setup,omitempty"`
	// DirtyTree is the tree of the user's uncommitted work, to become the first
	// commit of the environment; empty for none.
	DirtyTree string `json:"dirty_tree,omitempty"`
	// Paths are what a sparse environment shows, relative to the top of the tree;
	// none for the whole tree.
	Paths []string `json:"paths,omitempty"`
}

// Created is the answer to Create and Fork.
type Created struct {
	Name      string `json:"name"`
	Branch    string `json:"branch"`
	Commit    string `json:"commit"`
	Base      string `json:"base"`
	Workspace string `json:"workspace"`
	Image     string `json:"image"`
	// Pause is for how many seconds a fork held up writes to its source.
	Pause float64 `json:"pause,omitempty"`
	// Setup is how many steps prepare a new environment: MethodSetup runs them.
	Setup int `json:"setup,omitempty"`
}

// Setup asks to run what has not succeeded yet of what prepares an environment.
// The answer stream carries what the steps print.
type Setup struct {
	Caller Caller `json:"caller"`
	Env    string `json:"env"`
}

// SetUp is the answer to Setup.
type SetUp struct {
	// Steps is how many there are, Ran how many have run, Cached how many had
	// another environment's result.
	Steps  int `json:"steps"`
	Ran    int `json:"ran"`
	Cached int `json:"cached"`
	// Failed is the number of the step that failed, from 1; 0 when all have
	// succeeded. What follows is about it.
	Failed  int    `json:"failed,omitempty"`
	Command string `json:"command,omitempty"`
	Exec    string `json:"exec,omitempty"`
	// Ending is how it ended, in words.
	Ending string `json:"ending,omitempty"`
}

// Run asks for one exec. The answer stream carries stdout and stderr.
type Run struct {
	Caller Caller `json:"caller"`
	Env    string `json:"env"`
	// Args is the command; Display is how the record shows it when it differs
	// from the quoted Args (a shell line).
	Args    []string `json:"args"`
	Display string   `json:"display,omitempty"`
	// NoCommit leaves what the command changes uncommitted in the workspace.
	NoCommit bool `json:"no_commit,omitempty"`
	// Message becomes the commit's subject; empty derives it from the command.
	Message string        `json:"message,omitempty"`
	Workdir string        `json:"workdir,omitempty"`
	Vars    []string      `json:"vars,omitempty"`
	Timeout time.Duration `json:"timeout,omitempty"`
	TTY     bool          `json:"tty,omitempty"`
	Width   uint16        `json:"width,omitempty"`
	Height  uint16        `json:"height,omitempty"`
	// Stdin says that the client will send its standard input.
	Stdin bool `json:"stdin,omitempty"`
	// NoServices does not wait for services that are not up.
	NoServices bool `json:"no_services,omitempty"`
	// Network is the mode of the network that it is to have; empty takes that of
	// the environment's settings.
	Network string `json:"network,omitempty"`
	// Name is a background process's; only for MethodStart.
	Name string `json:"name,omitempty"`
	// Shell marks an interactive shell: when Args is empty the container's best
	// shell is taken.
	Shell bool `json:"shell,omitempty"`
}

// Ran is the answer to Run, after the commit and the record.
type Ran struct {
	Exec string `json:"exec"`
	// Exit is the code for the client to exit with: the command's own, 128+n for
	// signal n, 124 on timeout, 126, 127.
	Exit     int           `json:"exit"`
	Signal   string        `json:"signal,omitempty"`
	TimedOut bool          `json:"timed_out,omitempty"`
	Commit   string        `json:"commit,omitempty"` // empty when nothing changed
	Changed  int           `json:"changed"`
	Duration time.Duration `json:"duration"`
	Warnings []string      `json:"warnings,omitempty"`
}

// Fork asks for a copy of an environment.
type Fork struct {
	Caller Caller `json:"caller"`
	Env    string `json:"env"`
	Name   string `json:"name,omitempty"`
	Title  string `json:"title,omitempty"`
}

// Delete asks for the end of an environment.
type Delete struct {
	Caller Caller `json:"caller"`
	Env    string `json:"env"`
	Force  bool   `json:"force,omitempty"`
	// Into is the commit that must contain the environment's tip unless Force:
	// the caller's HEAD.
	Into string `json:"into,omitempty"`
}

// Deleted says what went.
type Deleted struct {
	Name string `json:"name"`
	Tip  string `json:"tip"`
	// Destroyed names what was not merged, committed or finished (force only).
	Destroyed []string `json:"destroyed,omitempty"`
}

// Path asks for the mounted workspace.
type Path struct {
	Caller Caller `json:"caller"`
	Env    string `json:"env"`
}

// Freeze asks for the layers that a workspace is made of, as it is now.
type Freeze struct {
	Caller Caller `json:"caller"`
	Env    string `json:"env"`
}

// Frozen is the answer to Freeze.
type Frozen struct {
	// Layers never change any more, bottom to top.
	Layers []string `json:"layers"`
	// Pause is for how many seconds writes to the workspace were held up.
	Pause float64 `json:"pause"`
}

// PathAnswer is the answer to Path.
type PathAnswer struct {
	Path string `json:"path"`
}

// Hydrate asks to bring the content of files into the cache.
type Hydrate struct {
	Caller Caller `json:"caller"`
	Env    string `json:"env"`
	// Paths are relative to the top of the tree; none for all of it.
	Paths []string `json:"paths,omitempty"`
}

// Hydrated is the answer to Hydrate.
type Hydrated struct {
	Blobs   int   `json:"blobs"`
	Bytes   int64 `json:"bytes"`
	Fetched int   `json:"fetched"` // of the blobs, those that were not there
}

// RootDiff asks for the next changes of an environment's root filesystem.
type RootDiff struct {
	Caller Caller `json:"caller"`
	Env    string `json:"env"`
	// After is how many of the changes were told already.
	After int `json:"after,omitempty"`
}

// RootDiffed is the answer to RootDiff.
type RootDiffed struct {
	Changes []RootChange `json:"changes"`
	// More says that there are others after these.
	More bool `json:"more,omitempty"`
}

// RootChange is one difference between a root filesystem and its image. Status
// is "A", "M" or "D", Path the bytes of an absolute path inside.
type RootChange struct {
	Status string `json:"status"`
	Path   []byte `json:"path"`
	Dir    bool   `json:"dir,omitempty"`
}

// Commit asks to commit what is uncommitted in the workspace, outside any exec:
// before merge, apply, diff and fork.
type Commit struct {
	Caller  Caller `json:"caller"`
	Env     string `json:"env"`
	Message string `json:"message,omitempty"`
}

// Committed is the answer to Commit.
type Committed struct {
	Tip      string   `json:"tip"`
	Commit   string   `json:"commit,omitempty"`
	Changed  int      `json:"changed"`
	Warnings []string `json:"warnings,omitempty"`
}

// Status asks for what only the daemon knows of an environment.
type Status struct {
	Env string `json:"env"`
}

// Live is the answer to Status.
type Live struct {
	Mounted   bool `json:"mounted"`
	Container bool `json:"container"`
	// Isolation is the level that the running container has.
	Isolation string   `json:"isolation,omitempty"`
	Execs     []string `json:"execs,omitempty"` // running execs, as "<id> <command>"
	// Busy says that the environment is being started, committed or forked; what
	// follows is not known then.
	Busy  bool     `json:"busy,omitempty"`
	Dirty []string `json:"dirty,omitempty"` // uncommitted paths, at most 1,000
	// DiskUsed is how many bytes the workspace keeps on the disk, DiskLimit how many
	// it may; both 0 where there is no limit.
	DiskUsed  int64 `json:"disk_used,omitempty"`
	DiskLimit int64 `json:"disk_limit,omitempty"`
}

// DaemonStatus is the answer to daemon.status.
type DaemonStatus struct {
	Pid        int       `json:"pid"`
	Version    string    `json:"version"`
	Started    time.Time `json:"started"`
	Envs       int       `json:"environments"`
	Mounts     int       `json:"mounts"`
	Execs      int       `json:"execs"`
	FilePid    int       `json:"file_server_pid,omitempty"`
	Containerd string    `json:"containerd,omitempty"`
}

// DaemonStop asks the daemon to leave: it suspends every environment first.
type DaemonStop struct {
	// Force stops running execs too; without it a busy daemon refuses.
	Force bool `json:"force,omitempty"`
}

// Merge asks to merge one environment into another.
type Merge struct {
	Caller  Caller `json:"caller"`
	From    string `json:"from"`
	Into    string `json:"into"`
	NoFF    bool   `json:"no_ff,omitempty"`
	Squash  bool   `json:"squash,omitempty"`
	Message string `json:"message,omitempty"`
}

// Merged is the answer to Merge.
type Merged struct {
	Tip      string `json:"tip"`
	Commit   string `json:"commit,omitempty"`
	UpToDate bool   `json:"up_to_date,omitempty"`
}
