package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// workload is a row of the table.
type workload struct {
	name  string
	group string
	goal  goal
	// prepare and run work in the tree; prepare is not timed.
	prepare, run func(place) error
	makes        bool // later rows of the group work on what it makes
	warm         bool // run once before it counts
	cold         bool // the kernel's caches are dropped before
	repeat       int  // times to run in one session
}

// group is what shares a session: workloads on one tree, in this order.
type group struct {
	name    string
	fixture string // what tree
	scratch func(dir string) error
	slow    bool
}

func groups() []group {
	return []group{
		{name: "data", fixture: "tiny"},
		{name: "new", fixture: "tiny", scratch: func(dir string) error { return writeTar(filepath.Join(dir, "u.tar")) }},
		{name: "tree", fixture: "tree"},
		{name: "sqlite", fixture: "tiny"},
		{name: "many", fixture: "many", slow: true},
		{name: "npm", fixture: "tiny", slow: true, scratch: func(dir string) error { return writePackages(filepath.Join(dir, "npm")) }},
		{name: "go", fixture: "module", slow: true},
	}
}

// workloads lists the rows in the order in which a session runs them.
func workloads() []workload {
	var all []workload
	for _, list := range [][]workload{dataRows(), newRows(), readRows(), changeRows(), buildRows()} {
		all = append(all, list...)
	}
	return all
}

const (
	bigFile = "out/big"
	block   = 4096
)

func dataRows() []workload {
	return []workload{
		{name: "sequential write", group: "data", goal: goal{overlay: 2.5, io: 1.1}, run: writeBig, makes: true},
		{name: "sequential read", group: "data", goal: goal{overlay: 1.25, io: 1.1}, run: readBig, warm: true, repeat: 3},
		{name: "random 4k read", group: "data", run: randomRead, warm: true, repeat: 3},
		{name: "random 4k write", group: "data", run: randomWrite},
	}
}

func newRows() []workload {
	return []workload{
		{name: "small-file create", group: "new", run: createSmall},
		{name: "untar 20,000", group: "new", goal: goal{overlay: 8, fuse: 0.2}, makes: true, run: func(p place) error {
			return shell(`mkdir out/u && tar xf "$SCRATCH/u.tar" -C out/u`, "SCRATCH="+p.scratch)
		}},
		{name: "rm -rf 20,000", group: "new", goal: goal{overlay: 3}, run: func(place) error { return shell("rm -rf out/u") }},
	}
}

func readRows() []workload {
	status := func(place) error { return shell("git status >/dev/null") }
	find := func(place) error { return shell(`find tree -printf '%s %p\n' >/dev/null`) }
	cat := func(place) error { return shell("find tree -type f -print0 | xargs -0 cat >/dev/null") }
	grep := func(place) error { return shell("grep -r nothing_has_this tree; test $? = 1") }
	evictTree := func(place) error { return evict("tree") }
	return []workload{
		{name: "git status, first", group: "tree", goal: goal{overlay: 1.3}, run: status},
		{name: "git status, stale index", group: "tree", goal: goal{overlay: 1.3}, run: status, prepare: func(place) error {
			return shell("git read-tree HEAD")
		}},
		{name: "git status, cold", group: "tree", goal: goal{overlay: 1.3}, run: status, cold: true},
		{name: "git status, warm", group: "tree", goal: goal{overlay: 1.3}, run: status, warm: true, repeat: 5},
		{name: "find, cold", group: "tree", run: find, cold: true},
		{name: "find, warm", group: "tree", goal: goal{overlay: 1.3}, run: find, warm: true, repeat: 5},
		{name: "read all, cold", group: "tree", run: cat, prepare: evictTree, cold: true},
		{name: "read all, warm", group: "tree", goal: goal{overlay: 2.5}, run: cat, warm: true, repeat: 3},
		{name: "grep -r, warm", group: "tree", goal: goal{overlay: 2.5}, run: grep, warm: true, repeat: 3},
		{name: "ripgrep 100,000, cold", group: "many", run: ripgrep, prepare: func(place) error { return evict("many") }, cold: true},
		{name: "ripgrep 100,000, warm", group: "many", goal: goal{overlay: 2.5}, run: ripgrep, warm: true, repeat: 3},
	}
}

func changeRows() []workload {
	return []workload{
		{name: "cp -r 5,000", group: "tree", run: func(place) error {
			return shell("mkdir out/cp && cp -r tree/d00 tree/d01 tree/d02 tree/d03 tree/d04 out/cp")
		}},
		{name: "chmod -R 2,000 lower", group: "tree", goal: goal{overlay: 0.33}, run: func(place) error { return shell("chmod -R g+w chmod") }},
		{name: "append to 2,000 lower", group: "tree", goal: goal{overlay: 0.33}, run: appendLines},
		{name: "mv dir of 2,000 lower", group: "tree", goal: goal{overlay: 0.33}, run: func(place) error { return shell("mv rename renamed") }},
	}
}

func buildRows() []workload {
	build := func(place) error {
		here, err := os.Getwd()
		if err != nil {
			return err
		}
		out := filepath.Join(here, "out")
		return program([]string{"GOCACHE=" + out + "/gocache", "GOPATH=" + out + "/gopath", "GOPROXY=off", "GOTOOLCHAIN=local",
			"GOFLAGS=-mod=vendor -buildvcs=false", "CGO_ENABLED=0"}, "go", "build", "-o", out+"/bin/", "./...")
	}
	return []workload{
		{name: "sqlite 1,000 commits", group: "sqlite", run: func(place) error { return sqlite(sqliteSingle, false) }},
		{name: "sqlite 200,000 rows", group: "sqlite", run: func(place) error { return sqlite(sqliteBulk, true) }},
		{name: "npm install, 300 packages", group: "npm", prepare: npmProject, run: npmInstall},
		{name: "go build, cold", group: "go", goal: goal{overlay: 1.1}, run: build},
		{name: "go build, warm", group: "go", goal: goal{overlay: 1.05}, run: build, warm: true, repeat: 3},
	}
}

func ripgrep(place) error {
	return shell("rg --no-messages nothing_has_this many; test $? = 1")
}

// walk calls visit for every regular file below dir.
func walk(dir string, visit func(name string) error) error {
	return filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		return visit(name)
	})
}

// appendLines appends one line to every file below append/.
func appendLines(place) error {
	return walk("append", func(name string) error {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		if _, err := f.WriteString("one more line\n"); err != nil {
			return err
		}
		return f.Close()
	})
}

// createSmall creates files of one KiB, a hundred in a directory.
func createSmall(place) error {
	data := make([]byte, 1024)
	for i := range createFiles {
		dir := fmt.Sprintf("out/c/%03d", i/100)
		if i%100 == 0 {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(fmt.Sprintf("%s/%02d", dir, i%100), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// lastWanted is the index of the last row that only matches; -1 for none.
func lastWanted(rows []workload, only *regexp.Regexp) int {
	last := -1
	for i, w := range rows {
		if only.MatchString(w.name) {
			last = i
		}
	}
	return last
}
