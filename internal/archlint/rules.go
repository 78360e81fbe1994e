package main

import (
	"path"
	"strings"
)

// maxLines is where a file is surely two things.
const maxLines = 600

// layer is a band of packages. Imports go to the same package tree or to a band
// below, never sideways and never up.
type layer struct {
	name string
	// roots are directories relative to the module; each stands for itself and
	// everything below. Two roots of one layer may not import one another.
	roots []string
	// level orders the layers; a package imports only lower levels.
	level  int
	reason string
}

func layers() []layer {
	return []layer{
		{"tests", []string{"e2e"}, 4,
			"end-to-end tests drive the program from outside; nothing may depend on them"},
		{"command line", []string{"cmd"}, 3,
			"the command line renders and exits; policy in it could not be reached by the daemon or another front end"},
		{"engine", []string{"environment"}, 2,
			"the engine alone ties branch, workspace, container and record together"},
		{"leaf", []string{"fusefs", "runtime", "notes", "hooks"}, 1,
			"a leaf that knows another leaf can no longer be replaced or tested alone"},
		{"internal", []string{"internal"}, 0,
			"shared ground: what everything stands on may not stand on anything"},
	}
}

// support are packages that only tests may import.
func support() []string { return []string{"internal/ocitest", "internal/archlint", "internal/benchfs"} }

// starter is a package that may start processes.
type starter struct{ dir, reason string }

// starters lists the packages that may start processes. Everything else runs git
// through internal/gitcmd, whose commands others may hold and wait for.
func starters() []starter {
	return []starter{
		{"internal/gitcmd", "the only package that runs git: one place scrubs the environment"},
		{"runtime/containerd", "starts the private containerd; asks credential helpers for a registry's password"},
		{"runtime/initproc", "is the first process of containers and starts their commands, inside"},
		{"fusefs", "starts the file server, a process of its own because a server must not be a client of its own mount"},
		{"environment/client", "starts the daemon when none is running"},
		{"cmd/git-env", "runs the user's pager"},
		{"internal/secret", "asks the commands that the user keeps secrets with"},
		{"internal/benchfs", "a program of its own that times other programs, git env as its user would call it among them"},
	}
}

// bannedImports maps an import to the reason nobody may use it.
func bannedImports() map[string]string {
	return map[string]string{
		"io/ioutil": "deprecated; os and io have it all",
		"unsafe":    "needs a line in rules.go with the reason",
		"plugin":    "needs cgo; the program is one static binary",
	}
}

// bannedAllowed lists the packages that use a banned import for a reason.
func bannedAllowed() map[string][]starter {
	return map[string][]starter{
		"unsafe": {
			{"fusefs", "rings and FUSE messages that are shared with the kernel"},
		},
	}
}

// processCalls are the calls that start a process or become another program.
func processCalls() map[string]bool {
	return map[string]bool{
		"exec.Command": true, "exec.CommandContext": true,
		"os.StartProcess": true, "syscall.ForkExec": true, "syscall.StartProcess": true,
		"syscall.Exec": true, "unix.Exec": true,
	}
}

// constantCalls are the calls whose result may be a package-level variable: it
// is set once and nothing changes it afterwards.
func constantCalls() map[string]string {
	return map[string]string{
		"errors.New":              "a sentinel error",
		"regexp.MustCompile":      "safe for concurrent use, and costly to build twice",
		"regexp.MustCompilePOSIX": "the same",
		"strings.NewReplacer":     "immutable",
		"template.Must":           "parsed once, executed concurrently",
		"crc32.MakeTable":         "a table",
		"encoding.NewEncoding":    "immutable",
		"base32.NewEncoding":      "immutable",
		"base64.NewEncoding":      "immutable",
	}
}

// linkerVariables are set by the linker (-X) and by nothing else.
func linkerVariables() map[string]bool { return map[string]bool{"internal/version.stamped": true} }

// layerOf finds the layer and the root of a directory relative to the module;
// nil for a directory that belongs to none.
func layerOf(all []layer, dir string) (*layer, string) {
	for i := range all {
		for _, root := range all[i].roots {
			if dir == root || strings.HasPrefix(dir, root+"/") {
				return &all[i], root
			}
		}
	}
	return nil, ""
}

// arrow says why the package in directory from may not import the one in
// directory to; "" when it may.
func arrow(all []layer, from, to string) string {
	lf, rootFrom := layerOf(all, from)
	lt, rootTo := layerOf(all, to)
	switch {
	case lf == nil:
		return path.Join("/", from)[1:] + " belongs to no layer; give it one in internal/archlint/rules.go"
	case lt == nil:
		return to + " belongs to no layer; give it one in internal/archlint/rules.go"
	case lf.level > lt.level, rootFrom == rootTo:
		return ""
	case lf.level == lt.level:
		return from + " and " + to + " are side by side: " + lf.reason
	default:
		return to + " is above " + from + ": " + lt.reason
	}
}

// startsProcesses reports whether the package may start processes. A listed
// package does not speak for the packages below it.
func startsProcesses(dir string) bool {
	for _, s := range starters() {
		if dir == s.dir {
			return true
		}
	}
	return false
}
