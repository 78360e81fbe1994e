package environment

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/git-env/git-env/internal/secret"
)

// vault answers for a user who has secrets.
type vault struct {
	values map[string]string // by reference; a missing one fails
	asked  int
}

func (k *vault) source(_ context.Context, specs []secret.Spec) ([]secret.Value, error) {
	k.asked++
	var out []secret.Value
	for _, s := range specs {
		v, ok := k.values[s.Ref]
		if !ok {
			return nil, Errorf(ExitFailed, "locked").WithHint("unlock it")
		}
		out = append(out, secret.Value{Data: []byte(v)})
	}
	return out, nil
}

const token = "tok-0xA/B+c=123456"

// withSecrets is an environment that has had a container, and a user to ask.
func withSecrets(r *rig, v *Env) *vault {
	git(r.t, r.repo, "config", "--add", "env.secret", "TOKEN=env://T")
	if err := v.writeFile("started", nil); err != nil {
		r.t.Fatal(err)
	}
	return &vault{values: map[string]string{"T": token}}
}

func (k *vault) commit(v *Env) (*commitResult, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.commit(WithSecretSource(context.Background(), k.source), commitRequest{message: "use " + k.values["T"]})
}

func TestSecretsAreHeldBack(t *testing.T) {
	r := newRig(t, map[string]string{"f": "one\n", "old": "old\n", ".gitattributes": "*.txt text eol=crlf\n"})
	v := r.env("e")
	k := withSecrets(r, v)
	edit := func(name, text string) { write(t, filepath.Join(v.st.Workspace, name), text) }
	long := strings.Repeat("0123456789abcdef", 1<<17) // larger than what is held in memory
	edit("f", "two\n")
	leaks := map[string]string{
		"raw": "x" + token + "x", "coded": base64.StdEncoding.EncodeToString([]byte("user:" + token)),
		"long": long + token + long, "converted.txt": "a\r\n" + token + "\r\n", "old": token, "d/e/deep": token,
		"named-" + strings.ReplaceAll(token, "/", "%2F"): "nothing",
	}
	for name, text := range leaks {
		edit(name, text)
	}
	if err := os.Symlink("/x/"+token, filepath.Join(v.st.Workspace, "link")); err != nil {
		t.Fatal(err)
	}
	res, err := k.commit(v)
	if err != nil {
		t.Fatal(err)
	}
	if got := git(t, r.repo, "log", "-1", "--format=%s", res.tip); got != "use ***" {
		t.Errorf("message %q", got)
	}
	if got := git(t, r.repo, "diff", "--name-only", res.tip+"^", res.tip); got != "f" || len(res.warnings) != len(leaks)+1 {
		t.Errorf("committed %s, warned %q", got, res.warnings)
	}
	all := strings.Join(res.warnings, "\n")
	if strings.Contains(all, "0xA") || !strings.Contains(all, "'coded' stays in the workspace and is not committed: it has the value of secret 'TOKEN' in it") {
		t.Errorf("warned %s", all)
	}
	nowhere(t, r, v)

	// Without the value nothing is committed, and with another one only what was
	// written to meanwhile.
	v.secrets = nil
	edit("g", "three\n")
	k.values = nil
	if _, err := k.commit(v); ExitCode(err) != ExitFailed || !strings.Contains(err.Error(), "cannot be looked through for secrets") || Hint(err) != "unlock it" {
		t.Errorf("without the value: %v", err)
	}
	k.values = map[string]string{"T": "another one"}
	edit("d/e/deep", "not any more")
	if res, err = k.commit(v); err != nil {
		t.Fatal(err)
	}
	if got := git(t, r.repo, "diff", "--name-only", res.tip+"^", res.tip); got != "d/e/deep\ng" {
		t.Errorf("committed %s, warned %q", got, res.warnings)
	}
	if !slices.ContainsFunc(res.warnings, func(w string) bool {
		return strings.Contains(w, "'raw' stays") && strings.Contains(w, "was not changed since")
	}) {
		t.Errorf("warned %q", res.warnings)
	}
	nowhere(t, r, v)
}

// nowhere fails the test when the token is in git or in a file of ours that is
// not the workspace's own.
func nowhere(t *testing.T, r *rig, v *Env) {
	t.Helper()
	out, err := gitTry(r.repo, nil, "cat-file", "--batch-all-objects", "--batch", "--unordered")
	if err != nil {
		t.Fatal(err)
	}
	coded := base64.StdEncoding.EncodeToString([]byte("user:" + token))
	for _, text := range []string{token, coded} {
		if strings.Contains(out, text) {
			at := strings.Index(out, text)
			t.Errorf("%s is in git: …%s…", text, out[max(0, at-300):min(len(out), at+100)])
		}
	}
	for _, name := range []string{"env.json", heldObjects} {
		if data, err := os.ReadFile(filepath.Join(v.dir(), name)); err == nil && bytes.Contains(data, []byte(token)) {
			t.Errorf("it is in %s", name)
		}
	}
}

func TestSecretsInsideAreNotTakenOver(t *testing.T) {
	in := newInside(t)
	k := withSecrets(in.rig, in.v)
	commit := func() *commitResult {
		t.Helper()
		res, err := k.commit(in.v)
		if err != nil {
			t.Fatal(err)
		}
		in.settled(in.v)
		return res
	}
	in.edit("leak", token+"\n")
	in.edit("fine", "fine\n")
	in.git("add", "-A")
	in.git("commit", "-qm", "inside")
	for _, value := range []string{token, "another one"} {
		in.v.secrets, k.values["T"] = nil, value
		res := commit()
		if len(res.warnings) != 2 || !strings.Contains(res.warnings[0], "'leak' in it ha") || !strings.Contains(res.warnings[1], "'leak' stays") {
			t.Errorf("%s: %q", value, res.warnings)
		}
		if got := git(t, in.repo, "ls-tree", "--name-only", in.tip()); got != "f\nfine" {
			t.Errorf("%s: the tree has %s", value, got)
		}
		nowhere(t, in.rig, in.v)
	}
	in.v.secrets, k.values["T"] = nil, token
	in.git("rm", "-q", "--cached", "leak")
	if err := os.Remove(filepath.Join(in.v.st.Workspace, "leak")); err != nil {
		t.Fatal(err)
	}
	in.git("commit", "-q", "--amend", "-m", "told "+token)
	if res := commit(); len(res.warnings) != 1 || !strings.Contains(res.warnings[0], "a commit in it has") || strings.Contains(res.warnings[0], token) {
		t.Errorf("in a message: %q", res.warnings)
	}
	in.git("commit", "-q", "--amend", "-m", "clean")
	if res := commit(); len(res.warnings) != 0 {
		t.Errorf("warned %q", res.warnings)
	}
	if got := git(t, in.repo, "log", "--format=%s", in.tip()); !strings.Contains(got, "clean") {
		t.Errorf("not taken over: %s", got)
	}
	nowhere(t, in.rig, in.v)
	in.agree()
}

// TestSecretsAreAskedFor: when an environment is made, and not for what needs
// consent or could not have been written.
func TestSecretsAreAskedFor(t *testing.T) {
	r := newRig(t, map[string]string{".gitenv": "[env]\n\tsecret = A=env://T\n\tsecret = B=file:///etc/x\n[service \"db\"]\n\timage = host\n\tsecret = PASSWORD=env://T\n"})
	k := &vault{values: map[string]string{"T": token, "/etc/x": "from a file"}}
	ctx := WithSecretSource(t.Context(), k.source)
	head := git(t, r.repo, "rev-parse", "HEAD")
	set, err := r.e.store.readSettings(ctx, head)
	if err != nil {
		t.Fatal(err)
	}
	err = r.e.checkSecrets(ctx, &set)
	if ExitCode(err) != ExitFailed || !strings.Contains(err.Error(), ".gitenv:3: env.secret = B=file:///etc/x (reads a file of this machine)") || k.asked != 0 {
		t.Errorf("asked %d times, %v", k.asked, err)
	}
	git(t, r.repo, "config", "env.secret", "B=file:///etc/x")
	if set, err = r.e.store.readSettings(ctx, head); err != nil {
		t.Fatal(err)
	}
	got, err := r.e.fetchSecrets(ctx, &set)
	if err != nil || k.asked != 1 {
		t.Fatalf("asked %d times, %v", k.asked, err)
	}
	s := &envSecrets{byOwner: got}
	if a, b := s.vars(""), s.vars("db"); !slices.Equal(a, []string{"A=" + token, "B=from a file"}) || !slices.Equal(b, []string{"PASSWORD=" + token}) {
		t.Errorf("%q, %q", a, b)
	}
	if err := r.e.checkSecrets(t.Context(), &set); err == nil || !strings.Contains(err.Error(), "nobody to ask") {
		t.Errorf("with nobody to ask: %v", err)
	}
	// What nothing ran in cannot have a value in it.
	v := r.env("e")
	write(t, filepath.Join(v.st.Workspace, "f"), "x")
	if res := r.commit(v); res.commit == "" || k.asked != 1 {
		t.Errorf("asked %d times, %+v", k.asked, res)
	}
}

func TestErrorsAreMasked(t *testing.T) {
	set := secret.NewSet([]secret.Value{{Spec: secret.Spec{Name: "TOKEN"}, Data: []byte(token)}})
	err := redacted(set, Errorf(ExitBusy, "cannot run '%s'", token).WithHint("not %s", token))
	if err.Error() != "cannot run '***'" || Hint(err) != "not ***" || ExitCode(err) != ExitBusy || errors.Unwrap(err) != nil {
		t.Errorf("%+v", err)
	}
	plain := errors.New("plain")
	if redacted(set, plain) != plain || redacted(nil, plain) != plain || redacted(set, nil) != nil {
		t.Error("what has none is changed")
	}
}
