package secret

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Spec{
		"TOKEN=env://MY_TOKEN":                    {Name: "TOKEN", Scheme: "env", Ref: "MY_TOKEN"},
		"/run/secrets/npm.rc=file://~/.npmrc":     {Name: "npm.rc", File: true, Scheme: "file", Ref: "~/.npmrc"},
		"_a1=file:///etc/x=y":                     {Name: "_a1", Scheme: "file", Ref: "/etc/x=y"},
		"K=cmd://pass show a://b":                 {Name: "K", Scheme: "cmd", Ref: "pass show a://b"},
		"K=op://team/git hub/token":               {Name: "K", Scheme: "op", Ref: "team/git hub/token"},
		"/run/secrets/1=vault://secret/app#token": {Name: "1", File: true, Scheme: "vault", Ref: "secret/app#token"},
	} {
		got, err := Parse(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "TOKEN", "=env://X", "1A=env://X", "A-B=env://X", "TOKEN=hunter2", "TOKEN=env://", "TOKEN=env://A B",
		"TOKEN=file://x", "TOKEN=file://~root/x", "TOKEN=cmd:// ", "TOKEN=op://a/b", "TOKEN=op://a//b", "TOKEN=vault://a", "TOKEN=vault://-x#y",
		"TOKEN=http://x", "/run/secrets/=env://X", "/run/secrets/../x=env://X", "/run/secrets/a/b=env://X", "/etc/x=env://X", "/run/secrets/.x=env://X",
		"A\n=env://X", "TOKEN=file:///a\x00"} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: the value is told: %v", text, err)
		}
	}
}

// caller has a home, a directory and a PATH of its own.
func caller(t *testing.T) (Caller, string) {
	home := t.TempDir()
	return Caller{Dir: home, Environ: []string{"HOME=" + home, "PATH=" + home + "/bin:relative:/usr/bin:/bin", "TOKEN=from env", "EMPTY=", "SHORT=abc"}}, home
}

func put(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func TestResolve(t *testing.T) {
	c, home := caller(t)
	put(t, home+"/key", "from file\n", 0o600)
	put(t, home+"/large", strings.Repeat("x", MaxValue+1), 0o600)
	put(t, home+"/binary", "\xff\x00\xfe\x00\xfd", 0o600)
	put(t, home+"/real/key", "behind a link\n", 0o600)
	for _, link := range [][2]string{{home + "/key", home + "/link"}, {home + "/real", home + "/way"}, {"/dev/zero", home + "/device"}} {
		if err := os.Symlink(link[0], link[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(home+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	// They print what they were called with, which is what is tested.
	put(t, home+"/bin/op", "#!/bin/sh\nfor a; do printf '<%s>' \"$a\"; done\n", 0o755)
	put(t, home+"/bin/vault", "#!/bin/sh\nfor a; do printf '<%s>' \"$a\"; done; echo\n", 0o755)
	for ref, want := range map[string]string{
		"A=env://TOKEN":                       "from env",
		"A=file://~/key":                      "from file",
		"A=file://~/link":                     "from file",
		"A=file://" + home + "/way/key":       "behind a link",
		"/run/secrets/a=file://~/key":         "from file\n",
		"/run/secrets/a=file://~/binary":      "\xff\x00\xfe\x00\xfd",
		"A=cmd://cat key; echo \"$TOKEN\"":    "from file\nfrom env",
		"A=cmd://pwd":                         home,
		"A=op://team/git hub/token":           "<read><--no-newline><op://team/git hub/token>",
		"A=vault://secret/app#the field":      "<kv><get><-field=the field><secret/app>",
		"/run/secrets/a=vault://secret/a#b":   "<kv><get><-field=b><secret/a>\n",
		"A=cmd://echo early; exec sleep 0.01": "early",
	} {
		s, err := Parse(ref)
		if err != nil {
			t.Fatal(err)
		}
		v, err := c.Resolve(t.Context(), s)
		if err != nil || string(v.Data) != want {
			t.Errorf("%s: %q, %v", ref, v.Data, err)
		}
	}
	for ref, want := range map[string]string{
		"A=env://NOT_SET":              "secret 'A' (env://NOT_SET): NOT_SET is not set in your environment",
		"A=env://EMPTY":                "it is empty",
		"A=env://SHORT":                "it has 3 bytes",
		"A=file://~/nothing":           "no such file",
		"A=file://~/large":             "more than 65536 bytes",
		"A=file://~/binary":            "it is not text",
		"A=file://~/fifo":              "not a regular file",
		"A=file://~/device":            "not a regular file",
		"A=file:///etc":                "not a regular file",
		"A=cmd://echo oops >&2; false": "exit status 1: oops",
		"A=cmd://true":                 "it is empty",
		"A=cmd://yes":                  "more than 65536 bytes",
	} {
		s, err := Parse(ref)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := c.Resolve(t.Context(), s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v", ref, v.Data, err)
		}
	}
	for _, ref := range []string{"A=file://~/link", "A=file://" + home + "/way/key"} {
		s, _ := Parse(ref)
		s.Project = true
		if v, err := c.Resolve(t.Context(), s); err == nil || !strings.Contains(err.Error(), "symbolic link") {
			t.Errorf("%s for a project: %q, %v", ref, v.Data, err)
		}
	}
}

func TestMissingTool(t *testing.T) {
	c := Caller{Dir: t.TempDir(), Environ: []string{"PATH=relative:"}}
	put(t, filepath.Join(c.Dir, "relative/op"), "#!/bin/sh\necho planted\n", 0o755)
	for ref, tool := range map[string]string{"A=op://a/b/c": "op", "A=vault://a#b": "vault"} {
		s, _ := Parse(ref)
		_, err := c.Resolve(t.Context(), s)
		var e *Error
		if !errors.As(err, &e) || e.Missing != tool || !strings.Contains(e.Hint, tool) {
			t.Errorf("%s: %v", ref, err)
		}
	}
}
