package settings

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/git-env/git-env/internal/gitcmd"
	"github.com/git-env/git-env/internal/secret"
)

// TestSchema has a default that its kind takes for every setting, and one name
// each.
func TestSchema(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range Schema() {
		low := strings.ToLower(k.Name)
		if seen[low] || k.About == "" || strings.HasSuffix(k.About, ".") || k.Kind.Name == "" || k.Multi && k.Default != "" {
			t.Errorf("%+v", k)
		}
		seen[low] = true
		if k.Default != "" {
			if _, err := k.Kind.Parse(k.Default); err != nil {
				t.Errorf("%s: %v", k.Name, err)
			}
		}
		if _, err := k.Kind.Parse("a\x00b"); err == nil {
			t.Errorf("%s takes a NUL byte", k.Name)
		}
		found, service, ok := Find(strings.Replace(low, "*", "Db", 1))
		if !ok || found.Name != k.Name || (service == "Db") != strings.HasPrefix(k.Name, "service.") {
			t.Errorf("%s finds %s of %q", k.Name, found.Name, service)
		}
	}
}

func TestKinds(t *testing.T) {
	bad := error(nil)
	for _, c := range []struct {
		kind Kind
		text string
		want any // nil for a refusal
	}{
		{size(), "1", int64(1)}, {size(), "2k", int64(2 << 10)}, {size(), "3M", int64(3 << 20)}, {size(), "1t", int64(1 << 40)},
		{size(), "0", bad}, {size(), "k", bad}, {size(), "-1", bad}, {size(), "1p", bad}, {size(), "9999999999g", bad}, {size(), "1.5m", bad},
		{limit(), "0", int64(0)}, {limit(), "Unlimited", int64(0)}, {limit(), "4g", int64(4 << 30)}, {limit(), "none", bad}, {limit(), "5000000t", bad},
		{count(), "unlimited", int64(0)}, {count(), "512", int64(512)}, {count(), "-1", bad}, {count(), "1k", bad}, {count(), "99999999999", bad},
		{cpus(), "1.5", 1.5}, {cpus(), "0", 0.0}, {cpus(), "NaN", bad}, {cpus(), "inf", bad}, {cpus(), "0x1p1", bad}, {cpus(), "-2", bad}, {cpus(), "1e-9", bad},
		{duration(0), "90s", 90 * time.Second}, {duration(0), "0s", bad}, {duration(0), "5", bad}, {duration(time.Second), "500ms", bad},
		{offOr(duration(0)), "off", time.Duration(0)}, {offOr(duration(0)), "1h", time.Hour}, {offOr(duration(0)), "-1h", bad},
		{switched(), "AUTO", true}, {switched(), "off", false}, {switched(), "maybe", bad},
		{choice("a", "b"), "B", "b"}, {choice("a", "b"), "c", bad},
		{absolute(), "/a/../b", "/b"}, {absolute(), "a", bad},
		{socket(), "unix:///run/c.sock", "/run/c.sock"}, {socket(), "c.sock", bad},
		{image(), "reg:5000/a/b:1@sha256:00", "reg:5000/a/b:1@sha256:00"}, {image(), "a b", bad}, {image(), "-x", bad},
		{command(), "go build", "go build"}, {command(), " ", bad},
		{user(), "node:1000", "node:1000"}, {user(), "0", "0"}, {user(), ":x", bad}, {user(), "a:", bad}, {user(), "a b", bad},
		{variable(), "A=b=c", Variable{"A", "b=c"}}, {variable(), "A=", Variable{"A", ""}}, {variable(), "A", bad}, {variable(), "=x", bad},
		{secretRef(), "T=env://X", secret.Spec{Name: "T", Scheme: "env", Ref: "X"}}, {secretRef(), "T=hunter2", bad},
		{volume(), "..:/a", bad}, {volume(), "/var/lib/", Volume{"", "/var/lib"}}, {volume(), "go:/c", Volume{"go", "/c"}}, {volume(), "c", bad}, {volume(), "/", bad}, {volume(), "../x:/c", bad},
		{mount(), "/a:/b", Mount{"/a", "/b", false}}, {mount(), "~/a:/b/:rw", Mount{"~/a", "/b", true}}, {mount(), "/a", bad}, {mount(), "a:/b", Mount{"a", "/b", false}}, {mount(), "../a:/b:ro", Mount{"../a", "/b", false}}, {mount(), ":/b", bad}, {mount(), "/a:b", bad}, {mount(), "/a:/b:x", bad}, {mount(), "~root/a:/b", bad},
		{port(), "3000", Port{0, 3000}}, {port(), "8080:3000", Port{8080, 3000}}, {port(), "0", bad}, {port(), "0:1", bad}, {port(), "70000", bad}, {port(), "1:2:3", bad}, {port(), "http", bad},
		{hostPort(), "Example.com.", HostPort{"example.com", 0}}, {hostPort(), "*.x.org:443", HostPort{"*.x.org", 443}}, {hostPort(), "192.0.2.0/24", HostPort{"192.0.2.0/24", 0}},
		{hostPort(), "2001:db8::1", HostPort{"2001:db8::1", 0}}, {hostPort(), "[2001:db8::1]:80", HostPort{"2001:db8::1", 80}}, {hostPort(), "[2001:db8::1]", HostPort{"2001:db8::1", 0}},
		{hostPort(), "https://x.org", bad}, {hostPort(), "x.org/a", bad}, {hostPort(), "x.org:", bad}, {hostPort(), "*", bad}, {hostPort(), "a.*.b", bad}, {hostPort(), "-a", bad}, {hostPort(), "192.0.2.0/99", bad},
	} {
		got, err := c.kind.Parse(c.text)
		if c.want == nil && err == nil || c.want != nil && !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s %q: %v, %v", c.kind.Name, c.text, got, err)
		}
	}
}

func entries(scope Scope, kvs ...string) []Entry {
	var out []Entry
	for i := 0; i < len(kvs); i += 2 {
		out = append(out, Entry{Key: kvs[i], Value: kvs[i+1], Scope: scope, Origin: "file:x"})
	}
	return out
}

// TestMerge takes the heavier origin's value, adds up those that may be many, and
// begins anew at an empty one.
func TestMerge(t *testing.T) {
	project := entries(Project, "env.var", "A=1", "env.image", "a", "env.port", "1", "service.db.image", "pg", "service.db.var", "X=1", "env.network", "host")
	config := entries(Config, "env.var", "B=1", "env.image", "b", "env.port", "", "env.port", "2", "service.db.var", "Y=2", "env.workdir", "/x", "env.workdir", "")
	m, err := Merge(append(append(project, config...), entries(Command, "env.image", "c")...))
	if err != nil {
		t.Fatal(err)
	}
	if got := Env[string](m, "image"); got != "c" {
		t.Error(got)
	}
	if got := EnvAll[Variable](m, "var"); len(got) != 2 || got[1].Name != "B" {
		t.Error(got)
	}
	if got := EnvAll[Port](m, "port"); len(got) != 1 || got[0].Inside != 2 {
		t.Error(got)
	}
	if got := ServiceAll[Variable](m, "db", "var"); len(got) != 2 || got[0].Value != "1" {
		t.Error(got)
	}
	if got := Env[string](m, "workdir"); got != "/workspace" {
		t.Error(got)
	}
	if asks := m.Asks(); len(asks) != 1 || asks[0].Name() != "env.network" {
		t.Error(asks)
	}
	m, err = Merge(append(project, entries(Config, "env.network", "host")...))
	if err != nil || len(m.Asks()) != 0 {
		t.Error("asks for what the user has said himself", err)
	}
}

// TestPlaces finds the lines that git's own parser would, whatever the file.
func TestPlaces(t *testing.T) {
	dir := t.TempDir()
	for _, kv := range []string{"HOME", "XDG_CONFIG_HOME"} {
		t.Setenv(kv, dir)
	}
	g := gitcmd.New(dir)
	rnd := rand.New(rand.NewPCG(5, 6))
	bits := []string{"[env]", "[Env]", "[service \"D b]\"]", "[service \"a\\\"x\"]", "[a.B]", "\n", "\n", "\n", "\r\n", "\tkey = v", "K2=\"a # b\"", "bare", " ; c", " # [x]", "\\\n", " two words ", "\\\"", "\"q", "\"", "x=", "= y"}
	read := 0
	for range 400 {
		var b strings.Builder
		b.WriteString("[env]\n")
		for range 1 + rnd.IntN(14) {
			b.WriteString(bits[rnd.IntN(len(bits))])
		}
		file := filepath.Join(dir, "f")
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := g.Output(t.Context(), nil, "config", "-z", "--no-includes", "-f", file, "--list")
		if err != nil {
			places([]byte(b.String())) // only has to end
			continue
		}
		read++
		want := parseList(out, false, Project)
		got := places([]byte(b.String()))
		if len(got) != len(want) {
			t.Fatalf("%q: %v, but git has %v", b.String(), got, want)
		}
		text := strings.Split(b.String(), "\n")
		for i := range want {
			name := want[i].Key[strings.LastIndexByte(want[i].Key, '.')+1:]
			if got[i].key != want[i].Key || !strings.Contains(strings.ToLower(text[got[i].line-1]), name) {
				t.Fatalf("%q: %v, but git has %v", b.String(), got, want)
			}
		}
	}
	if read < 40 {
		t.Errorf("git understood only %d files", read)
	}
}

func TestSuggest(t *testing.T) {
	for in, want := range map[string]string{"env.imgae": "env.image", "env.memroy": "env.memory", "env.setupp": "env.setup", "env.colour": "",
		"service.db.comand": "service.db.command", "service.db.x": "", "env.cpu": "env.cpus", "env.envs": ""} {
		if got := suggest(in); got != want {
			t.Errorf("%s: %q", in, got)
		}
	}
}

func BenchmarkMerge(b *testing.B) {
	list := entries(Config, "env.var", "B=1", "env.image", "b", "env.port", "2")
	for range b.N {
		m, err := Merge(list)
		if err != nil {
			b.Fatal(err)
		}
		for range 20 {
			Env[string](m, "image")
			Env[int64](m, "blobCache")
		}
	}
}
