package settings

import (
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/git-env/git-env/internal/gitcmd"
)

func newTarget(t *testing.T, text string) (Target, string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	if out, err := exec.Command("git", "init", "-q", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	file := filepath.Join(dir, ProjectFile)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Target{Environ: os.Environ(), Dir: dir, Where: []string{"-f", ProjectFile}, Scope: Project}, file
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestEdit changes what was asked for, keeps comments, and with a mistake nothing.
func TestEdit(t *testing.T) {
	const before = "# top\n[env]\n\t# why this one\n\timage = a\n\tvar = A=1\n\tvar = B=[2]\n\tvar = B=2\n"
	target, file := newTarget(t, before)
	ctx := t.Context()
	for _, c := range []struct{ name, value, want string }{
		{"env.memory", "lots", "env.memory = lots: not a size such as 100m, or unlimited"},
		{"env.idleTimeout", "1m", "env.idleTimeout concerns this machine; a project cannot set it, 'git config' can"},
		{"env.x", "1", "unknown key env.x"},
		{"service.a b.image", "x", "[service \"a b\"]: the name of a service is made of a to z, 0 to 9, '-' and '_'"},
	} {
		for _, err := range []error{target.Set(ctx, c.name, c.value), target.Add(ctx, c.name, c.value)} {
			if err == nil || err.Error() != c.want {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
	if err := target.Unset(ctx, "env.port"); !errors.Is(err, ErrNotSet) {
		t.Error(err)
	}
	if err := target.Unset(ctx, "env.var", "B=."); !errors.Is(err, ErrNotSet) {
		t.Error(err)
	}
	if got := read(t, file); got != before {
		t.Errorf("changed: %s", got)
	}
	name, key, err := target.Key("MAXFILESIZE")
	if err != nil || name != "env.maxFileSize" || key.Multi {
		t.Error(name, err)
	}
	for _, err := range []error{target.Set(ctx, "env.image", "b # c"), target.Set(ctx, "env.image", "b"),
		target.Unset(ctx, "env.var", "B=[2]"), target.Add(ctx, "env.var", "C= \"3\""), target.Set(ctx, "service.db.image", "pg")} {
		if err != nil && !strings.Contains(err.Error(), "b # c") {
			t.Error(err)
		}
	}
	const after = "# top\n[env]\n\t# why this one\n\timage = b\n\tvar = A=1\n\tvar = B=2\n\tvar = C= \\\"3\\\"\n[service \"db\"]\n\timage = pg\n"
	if got := read(t, file); got != after {
		t.Errorf("%s", got)
	}
}

// TestBecome makes any file say what any other one says, and nothing twice.
func TestBecome(t *testing.T) {
	target, file := newTarget(t, "")
	ctx := t.Context()
	rnd := rand.New(rand.NewPCG(7, 8))
	lines := []string{"[env]\n\timage = a\n", "[env]\n\timage = b\n", "[env]\n\tvar = A=1\n", "[env]\n\tvar = B=2 ; c\n", "[env]\n\tvar = A=1\n", "[env]\n\tvar =\n",
		"[service \"db\"]\n\timage = pg\n", "[service \"db\"]\n\tport = 1\n\timage = x\n", "[env]\n\tport = 3000\n", "# a comment\n", "[env]\n\timage =\n"}
	random := func() string {
		var b strings.Builder
		for range rnd.IntN(8) {
			b.WriteString(lines[rnd.IntN(len(lines))])
		}
		return b.String()
	}
	project := func() []Value {
		list, err := ReadFile(ctx, gitcmd.New(target.Dir+"/.git"), file, []byte(read(t, file)))
		if err != nil {
			t.Fatal(err)
		}
		m, err := Merge(list)
		if err != nil {
			t.Fatal(err)
		}
		can, _ := m.Project()
		return can
	}
	texts := func(values []Value) []string {
		var out []string
		for _, v := range values {
			out = append(out, v.Name()+"="+v.Text())
		}
		return out
	}
	for range 40 {
		from, to := random(), random()
		if err := os.WriteFile(file, []byte(to), 0o600); err != nil {
			t.Fatal(err)
		}
		want := project()
		if err := os.WriteFile(file, []byte(from), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := target.Become(ctx, want); err != nil {
			t.Fatalf("from %q to %q: %v", from, to, err)
		}
		got := read(t, file)
		if !reflect.DeepEqual(texts(project()), texts(want)) {
			t.Fatalf("from %q to %q: %q", from, to, got)
		}
		if strings.Count(got, "# a comment") != strings.Count(from, "# a comment") {
			t.Fatalf("from %q: a comment is gone: %q", from, got)
		}
		if changes, err := target.Become(ctx, want); err != nil || len(changes) != 0 {
			t.Fatalf("changes once more: %v, %v", changes, err)
		}
	}
}
