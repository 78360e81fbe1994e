package environment

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/internal/settings"
)

const project = `[env]
	image = a:1
	var = A=1
	workdir = /w
	setup = "echo \"a; b\" # c"
	memory = 4g
	cpus = 1.5
	pids = unlimited
	network = host
	allow = example.com:443
	port = 8080:3000
[service "db"]
	image = postgres:16
	port = 5432
	var = POSTGRES_PASSWORD=x
[service "job"]
	command = sleep 1
	restart = no
`

func TestSettings(t *testing.T) {
	r := newRig(t, map[string]string{".gitenv": project})
	git(t, r.repo, "config", "env.image", "b:2")
	git(t, r.repo, "config", "--add", "env.var", "B=2")
	git(t, r.repo, "config", "env.watchdog", "off")
	head := git(t, r.repo, "rev-parse", "HEAD")
	set, err := r.e.store.readSettings(t.Context(), head)
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Asks) != 1 || set.Asks[0].Line != 9 {
		t.Errorf("%+v", set.Asks)
	}
	set.Unsupported, set.Asks, set.kept = nil, nil, nil
	set.asked = nil
	want := Settings{Image: "b:2", Workdir: "/w", Setup: []string{`echo "a; b" # c`}, Vars: []string{"A=1", "B=2"},
		Memory: 4 << 30, CPUs: 1.5, Network: "host", Allow: []settings.HostPort{{Host: "example.com", Port: 443}},
		Ports: []settings.Port{{Host: 8080, Inside: 3000}}, Isolation: "auto", MaxFileSize: 100 << 20,
		Idle: 10 * time.Minute, Uring: true, OutputLimit: 256 << 20, BlobCache: 10 << 30, SetupCache: 16,
		Services: []Service{
			{Name: "db", Image: "postgres:16", Ports: []settings.Port{{Inside: 5432}}, Vars: []string{"POSTGRES_PASSWORD=x"},
				HealthInterval: 2 * time.Second, Restart: "on-failure"},
			{Name: "job", Command: "sleep 1", HealthInterval: 2 * time.Second, Restart: "no"},
		}}
	if !reflect.DeepEqual(set, want) {
		t.Errorf("%+v\n%+v", set, want)
	}
}

// TestSettingsMistakes has mistakes told by file and line.
func TestSettingsMistakes(t *testing.T) {
	r := newRig(t, nil)
	for _, c := range []struct{ file, want string }{
		{"[env]\n\timgae = x\n", ".gitenv:2: unknown key env.imgae; did you mean env.image?"},
		{"[env] # c\n\tvar = \"A=\\\nx\"\n[ENV]\n\tMemory = lots\n", ".gitenv:5: env.memory = lots: not a size"},
		{"[service \"db\"]\n\timage = a\n\n\tprot = 1\n", ".gitenv:4: unknown key service.db.prot; did you mean service.db.port?"},
		{"[service \"db\"]\n\tport = 1\n", ".gitenv:2: [service \"db\"] has neither"},
		{"[service \"d b\"]\n\timage = 1\n", ".gitenv:2: [service \"d b\"]: the name"},
		{"[service]\n\timage = 1\n", ".gitenv:2: unknown key service.image"},
		{"[core]\n\teditor = vi\n", ".gitenv:2: unknown key core.editor; the sections are"},
		{"[include]\n\tpath = /etc/passwd\n", ".gitenv:2: include.path: a project's file includes no other"},
		{"[env]\n\timage\n", ".gitenv:2: env.image has no value"},
		{"[env]\n\n\tcontainerd = /evil\n", ".gitenv:3: env.containerd concerns this machine"},
		{"[env]\n\tsecret = A=hunter2\n", ".gitenv:2: env.secret: no reference"},
		{"[env]\n\tvar = A=1\n\tvar = 2\n", ".gitenv:3: env.var = 2: not NAME=value"},
		{"[env\n", ".gitenv:1: not the syntax of git config"},
		{"[env]\n\timage = \"x\n\tvar = y\n", ".gitenv:2: not the syntax of git config"},
	} {
		write(t, r.repo+"/.gitenv", c.file)
		git(t, r.repo, "add", ".gitenv")
		git(t, r.repo, "commit", "-q", "-m", "x")
		_, err := r.e.store.readSettings(t.Context(), git(t, r.repo, "rev-parse", "HEAD"))
		if ExitCode(err) != ExitUsage || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q: %d, %v", c.file, ExitCode(err), err)
		}
	}
	git(t, r.repo, "rm", "-q", ".gitenv")
	git(t, r.repo, "config", "env.idleTimeout", "soon")
	git(t, r.repo, "config", "env.colour", "red")
	_, err := r.e.store.readSettings(t.Context(), "")
	if ExitCode(err) != ExitUsage || err.Error() != r.repo+"/.git/config: env.idleTimeout = soon: not a duration such as 90s or 10m" {
		t.Error(err)
	}
	git(t, r.repo, "config", "env.idleTimeout", "")
	_, err = r.e.store.readSettings(t.Context(), "")
	if ExitCode(err) != ExitUsage || err.Error() != r.repo+"/.git/config: unknown key env.colour" {
		t.Error(err)
	}
}

// TestKeptSettings has an environment stay as it was made, whatever is committed
// later, and one of an earlier version go on with a file that would be refused now.
func TestKeptSettings(t *testing.T) {
	r := newRig(t, map[string]string{".gitenv": "[env]\n\tworkdir = /w\n\tmaxFileSize = 1m\n"})
	git(t, r.repo, "config", "env.workdir", "/mine")
	head := git(t, r.repo, "rev-parse", "HEAD")
	set, err := r.e.store.settingsFor(t.Context(), head, api.Create{Image: "x:1", Config: []settings.Entry{settings.Flag("env.disk", "1g")}})
	if err != nil {
		t.Fatal(err)
	}
	st := &State{Base: head, Config: set.kept}
	write(t, r.repo+"/.gitenv", "[env]\n\tnosuch = 1\n\tworkdir = /other\n")
	git(t, r.repo, "commit", "-q", "-a", "-m", "broken")
	st.Base = git(t, r.repo, "rev-parse", "HEAD")
	git(t, r.repo, "config", "env.maxFileSize", "2m")
	git(t, r.repo, "config", "env.disk", "2g")
	got, err := r.e.store.settingsOf(t.Context(), st)
	if err != nil || got.Workdir != "/mine" || got.MaxFileSize != 2<<20 || got.Disk != 1<<30 || got.Image != "x:1" {
		t.Errorf("%+v, %v", got, err)
	}
	git(t, r.repo, "config", "--unset", "env.workdir")
	if got, err = r.e.store.settingsOf(t.Context(), st); err != nil || got.Workdir != "/w" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err = r.e.store.settingsOf(t.Context(), &State{Base: st.Base}); err != nil || got.Workdir != "/other" || len(got.Unsupported) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	noted := st.Config.noted()
	if want := map[string]any{"env.workdir": "/mine", "env.maxFileSize": "1m", "env.image": "x:1", "env.disk": "1g"}; !reflect.DeepEqual(noted, want) {
		t.Errorf("%v", noted)
	}
}
