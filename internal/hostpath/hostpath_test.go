package hostpath

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOpen refuses what must not be shown, by whatever name it goes.
func TestOpen(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	in := func(p string) string { return filepath.Join(top, p) }
	for _, d := range []string{"home/data/deep", "home/sub", "repo/.git/env", "repo/docs", "ours/cache", "else"} {
		if err := os.MkdirAll(in(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(in("home/file"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{
		"else/data": in("home/data"), "else/home": "../home", "else/git": in("repo/.git"), "else/a": "b", "else/b": "a",
		"repo/out": in("home/data"), "repo/docs/up": "../..", "else/repo": in("repo"), "else/out": in("repo/out"),
	} {
		if err := os.Symlink(to, in(link)); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("unix", in("else/sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	rules, err := NewRules([]Place{
		{Path: in("home"), What: "the home directory"}, {Path: in("repo/.git"), What: "the repository's git directory", Below: true},
		{Path: in("ours"), What: "git env's own data", Below: true}, {Path: in("later/on"), What: "what is to come", Below: true},
		{Path: "/proc", What: "the kernel's", Below: true}, {Path: "/dev", What: "devices", Below: true},
	}, []string{in("repo")})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, want string }{
		{"/", "/ is all of this machine's files"},
		{"/..", "/ is all of this machine's files"},
		{"/proc", "belongs to the kernel's"}, {"/proc/1/root/etc", "belongs to the kernel's"}, {"/dev/null", "belongs to devices"}, {"/dev/shm", "belongs to devices"},
		{"/sys/kernel", "is on a file system of the kernel's"},
		{in("home"), "is the home directory"}, {in("home/data/.."), "is the home directory"}, {in("else/home"), "is the home directory"},
		{top, "contains "}, {filepath.Dir(top), "contains "},
		{in("repo"), "contains the repository's git directory"}, {in("else/repo"), "contains the repository's git directory"},
		{in("repo/.git"), "belongs to the repository's git directory"}, {in("else/git/env"), "belongs to the repository's git directory"},
		{in("ours/cache"), "belongs to git env's own data"},
		{in("repo/out"), "not followed"}, {in("repo/out/deep"), "not followed"}, {in("repo/docs/up/home/data"), "not followed"}, {in("else/out"), "not followed"},
		{in("else/a"), "too many symbolic links"}, {in("else/sock"), "neither a directory nor a regular file"},
		{in("none"), "no such file"}, {in("home/file/x"), "not a directory"},
	} {
		o, err := Open(c.path, rules)
		if err == nil {
			o.File.Close()
			t.Errorf("%s: opened %s", c.path, o.Path)
		} else if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", c.path, err, c.want)
		}
	}
	for _, c := range []struct {
		path, real string
		dir        bool
	}{
		{in("home/data"), in("home/data"), true}, {in("else/data/deep/"), in("home/data/deep"), true},
		{in("home/file"), in("home/file"), false}, {in("repo/docs"), in("repo/docs"), true}, {in("repo/docs/../../else"), in("else"), true},
	} {
		o, err := Open(c.path, rules)
		if err != nil {
			t.Error(err)
			continue
		}
		o.File.Close()
		if o.Path != c.real || o.Dir != c.dir {
			t.Errorf("%s: %+v", c.path, o)
		}
		rel, err := filepath.Rel(top, c.real)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Inside(top, "/"+rel); err != nil || got != o.ID {
			t.Errorf("%s: %v, %v", c.real, got, err)
		}
	}
	// A link that leads out leads nowhere for those inside.
	if err := os.Symlink("/../../../etc", in("else/etc")); err != nil {
		t.Fatal(err)
	}
	if _, err := Inside(top, "/else/etc"); err == nil {
		t.Error("out of the root")
	}
}
