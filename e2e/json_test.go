package e2e

import (
	"encoding/json"
	"os"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// documented <section> asserts that the last stdout is JSON, an object a line,
// each with the fields that the section of docs/json.md says are always there and
// no field that it does not name. "status" has those of "list" too.
func documented(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, "documented", neg)
	if len(args) != 1 {
		ts.Fatalf("usage: documented section")
	}
	always, all := documentedFields(ts, args[0])
	if args[0] == "status" {
		more, rest := documentedFields(ts, "list")
		always, all = append(always, more...), append(all, rest...)
	}
	out := ts.ReadFile("stdout")
	if out == "" {
		ts.Fatalf("no output")
	}
	for line := range strings.Lines(out) {
		var object map[string]json.RawMessage
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			ts.Fatalf("not an object: %v: %s", err, line)
		}
		for field, value := range object {
			if !slices.Contains(all, field) || string(value) == "null" {
				ts.Fatalf("docs/json.md does not speak of %s: %s under %s", field, value, args[0])
			}
		}
		for _, field := range always {
			if object[field] == nil {
				ts.Fatalf("no %s in %s", field, line)
			}
		}
	}
}

// documentedFields reads the table of a section.
func documentedFields(ts *testscript.TestScript, section string) (always, all []string) {
	data, err := os.ReadFile("../docs/json.md")
	ts.Check(err)
	_, text, found := strings.Cut(string(data), "\n## "+section+"\n")
	if !found {
		ts.Fatalf("docs/json.md has no section %q", section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.HasPrefix(line, "| `") {
			continue
		}
		field := strings.Trim(cells[1], " `")
		all = append(all, field)
		if strings.TrimSpace(cells[2]) == "always" {
			always = append(always, field)
		}
	}
	return always, all
}
