package environment

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/git-env/git-env/internal/devcontainer"
	"github.com/git-env/git-env/internal/hostpath"
	"github.com/git-env/git-env/internal/settings"
	"github.com/git-env/git-env/runtime"
)

// TestMountRefusals has each refused in one line that says where it was asked for.
func TestMountRefusals(t *testing.T) {
	r := newRig(t, map[string]string{"src/x": "", "data/x": "", ".gitenv": "[env]\n\tcache = /c\n"})
	home := filepath.Dir(r.repo)
	for _, d := range []string{"stuff/in", "rw", "data/git-env/x", "tree"} {
		if err := os.MkdirAll(filepath.Join(home, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	git(t, r.repo, "worktree", "add", "-q", home+"/tree/linked")
	for link, to := range map[string]string{home + "/tree/linked/out": home + "/stuff", home + "/rw/out": home + "/stuff", home + "/link": home} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	const source = "the source cannot be mounted: "
	for _, c := range []struct{ mount, want string }{
		{"/:/x", source + "/ is all of this machine's files"},
		{"~/:/x", source + home + " is the home directory"}, {"~/link:/x", source + home + " is the home directory"}, {"..:/x", source + home + " is the home directory"},
		{filepath.Dir(home) + ":/x", " contains "}, {"/root:/x", " is the home directory"},
		{".:/x", " contains the repository's git directory"}, {".git:/x", "belongs to the repository's git directory"}, {"src/../.git/env:/x", "belongs to the repository's git directory"},
		{"~/data:/x", "contains git env's own data"}, {"~/data/git-env/x:/x", "belongs to git env's own data"},
		{"/proc/self/root/etc:/x", "belongs to the kernel's /proc"}, {"/sys:/x", "belongs to the kernel's /sys"}, {"/dev/null:/x", "belongs to this machine's devices"},
		{"/run:/x", "is the directory of this machine's sockets"}, {"~/none:/x", "no such file or directory"},
		{"~/tree/linked/out:/x", "such a link is not followed"}, {"~/tree/linked/out/in:/x", "such a link is not followed"},
		{"/etc:/", "nothing can be mounted on the root directory"}, {"/etc:/workspace", "/workspace is taken inside"}, {"/etc:/workspace/a", "/workspace is taken inside"},
		{"/etc:/proc/x", "/proc is taken inside"}, {"/etc:/x/../dev", "/dev is taken inside"}, {"/etc:/.git-env", "/.git-env is taken inside"}, {"/etc:/run", "it would hide /run/secrets inside"},
		{"/etc:/etc", "it would hide /etc/hosts inside"}, {"/etc/passwd:/etc/resolv.conf", "/etc/resolv.conf is taken inside"},
		{"~/stuff:/first/x", "/first is in the way: env.mount, from command line"}, {"~/stuff:/", "root directory"},
		{"~/rw/out:/x", "such a link is not followed"},
	} {
		set, err := r.e.store.readAll(t.Context(), "", devcontainer.Local{}, settings.Flag("env.mount", "~/rw:/first:rw"), settings.Flag("env.mount", c.mount))
		if err != nil {
			t.Fatal(err)
		}
		err = r.e.checkMounts(t.Context(), set)
		if ExitCode(err) != ExitUsage || err == nil || !strings.HasPrefix(err.Error(), "command line: env.mount = "+c.mount+": ") ||
			!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %d, %v, want %q", c.mount, ExitCode(err), err, c.want)
		}
	}
	head := git(t, r.repo, "rev-parse", "HEAD")
	for flag, want := range map[string]string{
		"/c/d": "/c is in the way: env.cache, from .gitenv:2", "/": "not an absolute path", "/" + strings.Repeat("x/", 150): "too long", "..:/d": "not an absolute path",
	} {
		set, err := r.e.store.readAll(t.Context(), head, devcontainer.Local{}, settings.Flag("env.cache", flag))
		if err == nil {
			err = r.e.checkMounts(t.Context(), set)
		}
		if ExitCode(err) != ExitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", flag, err)
		}
	}
	for mount, want := range map[string]string{
		"~/stuff/in/:/x": home + "/stuff/in", "src:/x": r.repo + "/src", "../stuff:/x": home + "/stuff", "/etc/passwd:/x:rw": "/etc/passwd", "~/link/stuff:/x": home + "/stuff",
	} {
		set, err := r.e.store.readAll(t.Context(), "", devcontainer.Local{}, settings.Flag("env.mount", mount))
		if err != nil {
			t.Fatal(err)
		}
		list, err := r.e.hostMounts(t.Context(), set)
		if err != nil {
			t.Error(err)
			continue
		}
		release(list)
		if m := list[0].Mount; m.Source != want || m.ReadOnly == strings.HasSuffix(mount, ":rw") || !m.Flat {
			t.Errorf("%s: %+v", mount, m)
		}
	}
}

// TestTrust has a consent hold for what was shown in a file that is as it was.
func TestTrust(t *testing.T) {
	const asks = "[env]\n\tmount = /etc:/x\n\tnetwork = host\n\tsecret = A=env://A\n\tsecret = \"B=cmd://\\\"\\t\\n\\\"\"\n[service \"s\"]\n\timage = i\n\tsecret = C=file:///c\n"
	r := newRig(t, map[string]string{".gitenv": asks})
	s, ctx := r.e.store, t.Context()
	check := func() []Request {
		t.Helper()
		list, err := s.RequestsAt(ctx, git(t, r.repo, "rev-parse", "HEAD"), devcontainer.Local{})
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	open := func() (n int) {
		for _, q := range check() {
			if !q.Trusted {
				n++
			}
		}
		return n
	}
	list := check()
	if len(list) != 4 || open() != 4 || list[0].String() != ".gitenv:2: env.mount = /etc:/x" || list[2].String() != `.gitenv:5: env.secret = "B=cmd://\"\t\n\""` ||
		list[3].Key != "service.s.secret" {
		t.Fatalf("%+v", list)
	}
	set, err := s.readSettings(ctx, git(t, r.repo, "rev-parse", "HEAD"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Consent(ctx, list[:3]); err != nil {
		t.Fatal(err)
	}
	err = s.checkTrust(ctx, set)
	if ExitCode(err) != ExitFailed || err.Error() != "not trusted: .gitenv:8: service.s.secret = C=file:///c (reads a file of this machine)" {
		t.Errorf("%v", err)
	}
	for _, ask := range set.Asks {
		if ok, err := s.Trusted(ctx, ask.Value); err != nil || ok == (ask.Service == "s") {
			t.Errorf("%s: %v, %v", ask.Name(), ok, err)
		}
	}
	for range 2 {
		if err := s.Consent(ctx, list); err != nil || s.checkTrust(ctx, set) != nil {
			t.Errorf("%v, %v", err, s.checkTrust(ctx, set))
		}
	}
	commit := func(text string) {
		t.Helper()
		write(t, r.repo+"/.gitenv", text)
		git(t, r.repo, "add", ".gitenv")
		git(t, r.repo, "commit", "-q", "--allow-empty", "-m", "x")
	}
	commit("# comment\n" + asks)
	if open() != 4 {
		t.Error("another file is trusted")
	}
	commit(asks)
	if open() != 0 {
		t.Error("the same file is not trusted")
	}
	if fi, err := os.Stat(s.trustPath()); err != nil || fi.Mode() != 0o600 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	// The user's own word takes what the project asks for out of the question.
	git(t, r.repo, "config", "env.mount", "")
	if set, err := s.readSettings(ctx, git(t, r.repo, "rev-parse", "HEAD")); err != nil || len(set.Asks) != 3 {
		t.Errorf("%+v, %v", set.Asks, err)
	}
	if n, err := s.Revoke(ctx); err != nil || n != 4 || open() != 4 {
		t.Errorf("%d, %v", n, err)
	}
	for text, code := range map[string]int{"{": ExitRepository, `{"v":2}`: ExitRepository} {
		write(t, s.trustPath(), text)
		if err := s.checkTrust(ctx, set); ExitCode(err) != code || s.Consent(ctx, list) == nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := s.Revoke(ctx); err != nil || s.Consent(ctx, list) != nil {
		t.Error(err)
	}
}

type ofPid struct {
	runtime.Container
	pid int
}

func (c ofPid) Pid() int { return c.pid }

// TestCheckMounted finds out that something else was mounted than was looked at.
func TestCheckMounted(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"seen", "other"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	rules, err := hostpath.NewRules(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	o, err := hostpath.Open(filepath.Join(dir, "seen"), rules)
	if err != nil {
		t.Fatal(err)
	}
	self := ofPid{pid: os.Getpid()}
	for target, ok := range map[string]bool{"seen": true, "other": false, "none": false} {
		h := held{runtime.Mount{Target: filepath.Join(dir, target)}, o, settings.Value{}}
		if err := checkMounted(self, []held{h}); (err == nil) != ok {
			t.Errorf("%s: %v", target, err)
		}
	}
	release([]held{{source: o}})
}
