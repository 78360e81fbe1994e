package devcontainer

import (
	"reflect"
	"strings"
	"testing"

	"github.com/git-env/git-env/internal/settings"
)

func local() Local {
	return Local{Environ: []string{"HOME=/home/ada", "TOKEN=s3cret", "EMPTY="}, WorkTree: "/src/app", ID: "0abc"}
}

// TestFields has each field honoured, refused by its name and line, or listed as
// one that is not used.
func TestFields(t *testing.T) {
	for _, c := range []struct {
		fields string
		want   string // settings, one a line; or "error: …", "unused: …", "note: …", "image: …"
	}{
		{`"image": "mcr.example/go:1", // c`, "env.image=mcr.example/go:1"},
		{`"$schema": "x", "name": "App",`, ""},
		{`"containerEnv": {"A": "1", "N": 2, "E": ""}, "remoteEnv": {"A": "3", "B": "${containerEnv:A}/x", "P": "${containerEnv:PATH}:/b"}`,
			"env.var=A=1\nenv.var=N=2\nenv.var=E=\nenv.var=A=3\nenv.var=B=1/x\nenv.var=P=${containerEnv:PATH}:/b late"},
		{`"containerEnv": {"A": "${containerEnv:B}"}`, "error: 2: containerEnv.A: ${containerEnv:B} can only be used in remoteEnv"},
		{`"remoteEnv": {"A": null}`, "error: 2: remoteEnv.A: a variable of the image cannot be taken back"},
		{`"remoteEnv": {"H": "${localEnv:HOME}", "D": "${localEnv:NO:a:b}", "U": "${localEnv:NO}", "W": "${localWorkspaceFolder}", "B": "${localWorkspaceFolderBasename}", "I": "${devcontainerId}", "S": "${HOME} $HOME ${x:y}"}`,
			"env.var=H=/home/ada personal\nenv.var=D=a:b personal\nenv.var=U= personal\nenv.var=W=/src/app personal\nenv.var=B=app personal\nenv.var=I=0abc\nenv.var=S=${HOME} $HOME ${x:y}"},
		{`"containerEnv": {"GH_TOKEN": "${localEnv:TOKEN}", "TOKENS": "${localEnv:TOKEN}", "A_TOKEN": "${localEnv:NO}"}`, "env.secret=GH_TOKEN=env://TOKEN\nenv.var=TOKENS=s3cret personal\nenv.var=A_TOKEN= personal"},
		{`"remoteUser": "vscode", "containerUser": "root"`, "env.user=root\nenv.user=vscode"},
		{`"workspaceFolder": "/workspaces/app"`, "env.workdir=/workspace\nnote: the tree is at /workspace, not at /workspaces/app"},
		{`"workspaceFolder": "/workspace/sub", "remoteEnv": {"W": "${containerWorkspaceFolder}"}`, "env.workdir=/workspace/sub\nenv.var=W=/workspace/sub"},
		{`"workspaceMount": "source=${localWorkspaceFolder},target=/w,type=bind,consistency=cached", "workspaceFolder": "/w/sub/dir"`,
			"env.workdir=/workspace/sub/dir\nnote: the tree is at /workspace, not at /w"},
		{`"workspaceMount": "source=${localWorkspaceFolder}/sub,target=/w,type=bind"`, "error: 2: workspaceMount: the workspace is always"},
		{`"workspaceMount": "source=${localWorkspaceFolder},target=/w,type=bind", "workspaceFolder": "/x"`, "error: 2: workspaceFolder: it is not below"},
		{`"mounts": ["source=${localEnv:HOME}/.ssh,target=/root/.ssh,type=bind,readonly", "type=bind,src=/data,dst=/data", {"source": "mods", "target": "/m", "type": "volume"}]`,
			"env.mount=/home/ada/.ssh:/root/.ssh personal\nenv.mount=/data:/data:rw\nenv.cache=mods:/m"},
		{`"mounts": ["type=tmpfs,target=/t"]`, `error: 2: mounts[0]: mounts of type "tmpfs"`},
		{`"mounts": ["type=bind,source=a:b,target=/t"]`, "error: 2: mounts[0]: not a mount"},
		{`"forwardPorts": [3000, "8080", "localhost:9000"], "appPort": ["8000:80", 81]`, "env.port=3000\nenv.port=8080\nenv.port=9000\nenv.port=8000:80\nenv.port=81"},
		{`"forwardPorts": ["db:5432"]`, `error: 2: forwardPorts[0]: there is no host "db"`},
		{`"forwardPorts": [99999]`, "error: 2: env.port = 99999: not a port"},
		{`"runArgs": ["--memory=4GB", "-m", "512m", "--cpus", "1.5", "--pids-limit=-1", "--network=none", "-e", "A=b", "-eHOME", "-e", "NOPE", "--env=X=${localWorkspaceFolder}", "-u1000:1000", "-p", "127.0.0.1:8080:80", "-v", "/a:/b:ro,z", "-v", "vol:/v", "--init", "--name", "x", "--mount", "type=bind,source=/q,target=/q"]`,
			"env.memory=4g\nenv.memory=512m\nenv.cpus=1.5\nenv.pids=unlimited\nenv.network=none\nenv.var=A=b\nenv.var=HOME=/home/ada personal\nenv.var=X=/src/app personal\nenv.user=1000:1000\nenv.port=8080:80\nenv.mount=/a:/b\nenv.cache=vol:/v\nenv.mount=/q:/q:rw\nunused: runArgs: --init, runArgs: --name"},
		{`"runArgs": ["--cap-add=SYS_PTRACE"]`, "error: 2: runArgs: --cap-add: no such option of docker run"},
		{`"runArgs": ["--network", "mynet"]`, `error: 2: runArgs: --network: there is no network "mynet"`},
		{`"runArgs": ["--memory"]`, "error: 2: runArgs: --memory: its value is missing"},
		{`"onCreateCommand": "make deps", "updateContentCommand": ["npm", "ci", "it's"], "postCreateCommand": {"b": "two", "a": ["on e"]}, "postStartCommand": "srv &", "postAttachCommand": "x"`,
			"env.install=make deps\nenv.install=npm ci 'it'\\''s'\nenv.install=two\nenv.install='on e'\nenv.start=srv &\nunused: postAttachCommand"},
		{`"postCreateCommand": 3`, "error: 2: postCreateCommand: not a command"},
		{`"initializeCommand": "rm -rf /"`, "error: 2: initializeCommand: nothing of a project runs on this machine"},
		{`"build": {"dockerfile": "Dockerfile"}, "features": {}`, "image: 2: build: images are not built here"},
		{`"dockerFile": "Dockerfile", "context": ".."`, "image: 2: dockerFile: images are not built here"},
		{`"dockerComposeFile": ["a.yml"], "service": "app", "runServices": ["db"]`, "image: 2: dockerComposeFile: Compose files are not read"},
		{`"image": "a", "features": {"ghcr.io/x/y:1": {}}, "overrideFeatureInstallOrder": ["y"]`, "env.image=a\nunused: overrideFeatureInstallOrder\nimage: 2: features: features are not installed"},
		{`"privileged": false, "init": true, "overrideCommand": true, "capAdd": [], "securityOpt": []`, ""},
		{`"privileged": true`, "error: 2: privileged: no environment is privileged"},
		{`"capAdd": ["SYS_ADMIN"]`, "error: 2: capAdd: capabilities"},
		{`"securityOpt": ["seccomp=unconfined"]`, "error: 2: securityOpt: the isolation"},
		{`"overrideCommand": false`, "error: 2: overrideCommand: the image's own command"},
		{`"customizations": {"vscode": {}}, "portsAttributes": {"1": {}}, "otherPortsAttributes": {"a": 1}, "hostRequirements": {"cpus": 4}, "secrets": {"A": {}}, "waitFor": "x", "userEnvProbe": "none", "shutdownAction": "none", "updateRemoteUserUID": true, "settings": {"a": 1}, "extensions": ["x"], "devPort": 1`,
			"unused: waitFor, userEnvProbe, shutdownAction, updateRemoteUserUID, hostRequirements, secrets, customizations, portsAttributes, otherPortsAttributes, extensions, settings, devPort"},
		{`"imgae": "x"`, "error: 2: imgae: no such field is known"},
		{`"image": "a", "image": "b"`, "error: 2: image: given twice"},
		{`"image": 3e`, "error: 2: not JSON with comments"},
		{`"image": ["a"]`, "error: 2: image: not a string"},
		{`"image": null,`, ""},
	} {
		out, err := Parse("blob:x:.devcontainer.json", []byte("{\n"+c.fields+"\n}"), local())
		if got := shown(out, err); !(got == c.want || strings.Contains(c.want, "error: ") && strings.HasPrefix(got, c.want) ||
			strings.Contains(c.want, "image: 2") && strings.HasPrefix(got, c.want)) {
			t.Errorf("%s\n%s\nwant\n%s", c.fields, got, c.want)
		}
	}
}

func shown(r *Result, err error) string {
	if err != nil {
		return strings.Replace(err.Error(), ".devcontainer.json:", "error: ", 1)
	}
	var lines []string
	for _, e := range r.Entries {
		v, err := settings.Check(e)
		if err != nil {
			return err.Error()
		}
		l := v.Name() + "=" + v.Text()
		for word, is := range map[string]bool{" personal": e.Personal, " late": e.Late} {
			if is {
				l += word
			}
		}
		lines = append(lines, l)
	}
	if len(r.Unused) > 0 {
		lines = append(lines, "unused: "+strings.Join(r.Unused, ", "))
	}
	for _, n := range r.Notes {
		lines = append(lines, "note: "+n)
	}
	if r.NoImage != nil {
		lines = append(lines, strings.Replace(r.NoImage.Error(), ".devcontainer.json:", "image: ", 1))
	}
	return strings.Join(lines, "\n")
}

// TestComments reads what editors write: comments, trailing commas, and the line
// of a mistake after them.
func TestComments(t *testing.T) {
	out, err := Parse("blob:x:a/b.json", []byte("// top\n{\n\t/* a\n b */ \"image\": \"x\", // c\n\t\"forwardPorts\": [1, 2,],\n}\n// end\n"), local())
	if err != nil || len(out.Entries) != 3 || out.Entries[0].Line != 4 || out.Entries[1].Line != 5 {
		t.Errorf("%+v, %v", out, err)
	}
	_, err = Parse("blob:x:a/b.json", []byte("// top\n{\n\n\t\"privileged\": true,\n}"), local())
	if err == nil || !strings.HasPrefix(err.Error(), "a/b.json:4: privileged: ") {
		t.Error(err)
	}
	for _, bad := range []string{"", "[]", "{", "3", strings.Repeat("[", maxFile)} {
		if _, err := Parse("blob:x:a/b.json", []byte(bad), local()); err == nil {
			t.Errorf("%.20q passed", bad)
		}
	}
}

func TestExpandImage(t *testing.T) {
	got := ExpandImage("P=${containerEnv:PATH}:/b ${containerEnv:NO:d} ${HOME}", []string{"PATH=/bin"})
	if got != "P=/bin:/b d ${HOME}" {
		t.Error(got)
	}
}

func TestEveryFieldOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range fields() {
		if seen[f.name] {
			t.Errorf("%s twice", f.name)
		}
		seen[f.name] = true
	}
	if !reflect.DeepEqual(Files(), []string{".devcontainer/devcontainer.json", ".devcontainer.json"}) {
		t.Error(Files())
	}
}
