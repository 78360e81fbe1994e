package main

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/git-env/git-env/environment/api"
)

// jsonSection is what docs/json.md says of one kind of object.
type jsonSection struct {
	always, sometimes []string
	example           string
}

var fieldRow = regexp.MustCompile("^\\| `([a-z_]+)` \\| ([^|]+) \\| ")

func jsonSections(t *testing.T) map[string]*jsonSection {
	t.Helper()
	data, err := os.ReadFile("../../docs/json.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]*jsonSection{}
	var now *jsonSection
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "## "); ok {
			now = &jsonSection{}
			sections[name] = now
		}
		if m := fieldRow.FindStringSubmatch(line); m != nil {
			if m[2] == "always" {
				now.always = append(now.always, m[1])
			} else {
				now.sometimes = append(now.sometimes, m[1])
			}
		}
		if ex, ok := strings.CutPrefix(line, "    {"); ok {
			now.example = "{" + ex
		}
	}
	return sections
}

// tags lists the fields of a type's own objects, and which of them may be left
// out.
func tags(typ reflect.Type) (always, sometimes []string) {
	for f := range typ.Fields() {
		tag, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
		case opts == "":
			always = append(always, tag)
		default:
			sometimes = append(sometimes, tag)
		}
	}
	return always, sometimes
}

// TestJSONDocs holds docs/json.md to the types that are printed.
func TestJSONDocs(t *testing.T) {
	sections := jsonSections(t)
	types := map[string]any{
		"exec": execJSON{}, "list": summaryJSON{}, "setup": setupJSON{}, "status": statusJSON{}, "log": commitJSON{},
		"delete": api.Deleted{}, "fork": forkJSON{}, "layer": layerJSON{}, "hydrate": hydratedJSON{}, "diff --rootfs": rootChangeJSON{}, "daemon": daemonJSON{}, "ps": processJSON{}, "doctor": check{}, "config": configJSON{}, "trust": trustJSON{}, "version": versionJSON{},
	}
	for name, s := range sections {
		typ, ok := types[name]
		if !ok {
			t.Errorf("docs/json.md describes %q, which nothing prints", name)
			continue
		}
		always, sometimes := tags(reflect.TypeOf(typ))
		if !slices.Equal(always, s.always) || !slices.Equal(sometimes, s.sometimes) {
			t.Errorf("%s: documented always %q, else %q;\nprinted always %q, else %q", name, s.always, s.sometimes, always, sometimes)
		}
		dec := json.NewDecoder(strings.NewReader(s.example))
		dec.DisallowUnknownFields()
		if err := dec.Decode(reflect.New(reflect.TypeOf(typ)).Interface()); err != nil {
			t.Errorf("%s: the example is not what is printed: %v", name, err)
		}
	}
	for name := range types {
		if sections[name] == nil {
			t.Errorf("docs/json.md does not describe %q", name)
		}
	}
}
