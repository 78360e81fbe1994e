package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// sqlite inserts rows into a new database, each in a transaction of its own or
// all in one.
func sqlite(rows int, one bool) error {
	var sql strings.Builder
	name := fmt.Sprintf("out/%d.db", rows)
	sql.WriteString("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, value INTEGER);\nCREATE INDEX i ON t (value);\n")
	if one {
		sql.WriteString("BEGIN;\n")
	}
	r := source(11)
	for i := range rows {
		fmt.Fprintf(&sql, "INSERT INTO t VALUES (%d, 'name of row %d', %d);\n", i, i, r.IntN(1e9))
	}
	if one {
		sql.WriteString("COMMIT;\n")
	}
	cmd := exec.Command("sqlite3", "-bail", name)
	cmd.Stdin = strings.NewReader(sql.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("sqlite3: %w: %s", err, tail(string(out)))
	}
	return nil
}

// npmProject writes a package.json that asks for all packages of the scratch
// directory.
func npmProject(p place) error {
	if err := os.MkdirAll("out/app", 0o755); err != nil {
		return err
	}
	var deps []string
	for i := range npmPackages {
		deps = append(deps, fmt.Sprintf("%q: %q", fmt.Sprintf("p%03d", i), fmt.Sprintf("file:%s/npm/p%03d.tgz", p.scratch, i)))
	}
	text := "{\"name\": \"app\", \"version\": \"1.0.0\", \"dependencies\": {\n" + strings.Join(deps, ",\n") + "\n}}\n"
	return os.WriteFile("out/app/package.json", []byte(text), 0o644)
}

// npmInstall installs them, offline; npm's cache is in the tree too.
func npmInstall(place) error {
	return shell("cd out/app && npm install --offline --no-audit --no-fund --no-progress --cache ../npm-cache >/dev/null")
}
