package settings

import (
	"os"
	"strings"
	"testing"
)

// TestReference has docs/config.md say what the schema says. With UPDATE=1 it is
// written instead.
func TestReference(t *testing.T) {
	const page = "../../docs/config.md"
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for name, want := range Reference() {
		begin, end := "<!-- settings: "+name+" -->\n", "<!-- end -->\n"
		before, rest, ok := strings.Cut(text, begin)
		have, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("%s has no table %q", page, name)
		}
		if have == want {
			continue
		}
		if os.Getenv("UPDATE") == "" {
			t.Errorf("the table %q in %s is not that of the schema; UPDATE=1 go test ./internal/settings writes it\n%s", name, page, want)
		}
		text = before + begin + want + end + after
	}
	for _, k := range Schema() {
		if (k.Trust == nil) != (k.TrustFor == "") {
			t.Errorf("%s: when it needs trust is not told", k.Name)
		}
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
