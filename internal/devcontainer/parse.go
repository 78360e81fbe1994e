package devcontainer

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/tailscale/hujson"

	"github.com/git-env/git-env/internal/settings"
)

// parser collects what a file says.
type parser struct {
	file    []byte
	origin  string
	local   Local
	workdir string   // that of the container
	vars    []string // of containerEnv
	out     *Result
}

// maxBrackets bounds the lists and objects of a file.
const maxBrackets = 5000

// hintOut is the way out of what cannot be had.
const hintOut = "; name an image with 'git env create --image', or write a .gitenv, which takes this file's place"

var syntaxLine = regexp.MustCompile(`line (\d+), column \d+: `)

// Parse reads a file. Its errors are *settings.Error.
func Parse(origin string, file []byte, local Local) (*Result, error) {
	p := &parser{file: file, origin: origin, local: local, workdir: workspace, out: &Result{}}
	at := settings.Entry{Scope: settings.Project, Origin: origin}
	// Deep nesting costs the parser the square of its depth.
	if bytes.Count(file, []byte("["))+bytes.Count(file, []byte("{")) > maxBrackets {
		return nil, at.Errorf("too large: more than %d brackets", maxBrackets)
	}
	root, err := hujson.Parse(file)
	if err != nil {
		msg := strings.TrimPrefix(err.Error(), "hujson: ")
		if m := syntaxLine.FindStringSubmatch(msg); m != nil {
			at.Line, _ = strconv.Atoi(m[1])
			msg = strings.Replace(msg, m[0], "", 1)
		}
		return nil, at.Errorf("not JSON with comments: %s", msg)
	}
	top := node{p: p, value: root}
	members, err := top.members()
	if err != nil {
		return nil, top.entry().Errorf("not an object")
	}
	byName := map[string]node{}
	for _, m := range members {
		if _, twice := byName[m.name]; twice {
			return nil, m.bad("given twice")
		}
		byName[m.name] = m.node
	}
	known := map[string]bool{}
	for _, f := range fields() {
		known[f.name] = true
		n, ok := byName[f.name]
		if !ok || n.isNull() {
			continue
		}
		if err := f.take(n); err != nil {
			return nil, err
		}
	}
	for _, m := range members {
		if !known[m.name] {
			return nil, m.bad("no such field is known%s", hintOut)
		}
	}
	return p.out, nil
}

// field is a field of the specification.
type field struct {
	name string
	take func(node) error
}

// fields lists all fields in the order in which they are looked at: what others
// refer to, and what others win over, comes first.
func fields() []field {
	return []field{
		{"$schema", nothing}, {"name", nothing},
		{"workspaceMount", node.workspaceMount}, {"workspaceFolder", node.workspaceFolder},
		{"build", noImage("images are not built here")},
		{"dockerFile", noImage("images are not built here")}, {"dockerfile", noImage("images are not built here")},
		{"context", noImage("images are not built here")},
		{"dockerComposeFile", noImage("Compose files are not read; services belong in a .gitenv")},
		{"service", noImage("Compose files are not read")}, {"runServices", noImage("Compose files are not read")},
		{"features", noImage("features are not installed; setup steps in a .gitenv can do that")},
		{"overrideFeatureInstallOrder", unused},
		{"image", as("env.image")},
		{"containerEnv", variables(false)}, {"remoteEnv", variables(true)},
		{"containerUser", as("env.user")}, {"remoteUser", as("env.user")},
		{"mounts", node.mounts},
		{"forwardPorts", node.forwardPorts}, {"appPort", node.appPort},
		{"runArgs", node.runArgs},
		{"onCreateCommand", commands("env.install")}, {"updateContentCommand", commands("env.install")},
		{"postCreateCommand", commands("env.install")}, {"postStartCommand", commands("env.start")},
		{"initializeCommand", refuse("nothing of a project runs on this machine")},
		{"overrideCommand", only(true, "the image's own command is never run")},
		{"privileged", only(false, "no environment is privileged")},
		{"init", anyBool},
		{"capAdd", refuse("capabilities cannot be added")}, {"securityOpt", refuse("the isolation cannot be changed")},
		{"postAttachCommand", unused}, {"waitFor", unused}, {"userEnvProbe", unused}, {"shutdownAction", unused},
		{"updateRemoteUserUID", unused}, {"hostRequirements", unused}, {"secrets", unused},
		{"customizations", unused}, {"portsAttributes", unused}, {"otherPortsAttributes", unused},
		{"extensions", unused}, {"settings", unused}, {"devPort", unused},
	}
}

func nothing(node) error { return nil }

// unused notes a field that has no meaning here.
func unused(n node) error {
	if !n.empty() {
		n.p.out.Unused = append(n.p.out.Unused, n.path)
	}
	return nil
}

func as(key string) func(node) error { return func(n node) error { return n.setText(key) } }

func refuse(why string) func(node) error {
	return func(n node) error {
		if n.empty() {
			return nil
		}
		return n.bad("%s", why)
	}
}

func only(want bool, why string) func(node) error {
	return func(n node) error {
		got, err := n.boolean()
		if err == nil && got != want {
			err = n.bad("%s", why)
		}
		return err
	}
}

func anyBool(n node) error {
	_, err := n.boolean()
	return err
}

// noImage is a field that an image would have to be made for. The first of them
// is told, unless another origin names an image.
func noImage(why string) func(node) error {
	return func(n node) error {
		if n.empty() {
			return nil
		}
		if n.p.out.NoImage == nil {
			n.p.out.NoImage = n.bad("%s%s", why, hintOut)
		}
		return nil
	}
}

// workspaceMount may say where the workspace is to be, which is always the same
// place here, but not what it is.
func (n node) workspaceMount() error {
	s, err := n.text()
	if err != nil || s == "" {
		return err
	}
	if n.p.local.WorkTree == "" { // only compared
		n.p.local.WorkTree = "/"
		defer func() { n.p.local.WorkTree = "" }()
	}
	x, err := n.expand(s, false)
	if err != nil {
		return err
	}
	m, err := parseMount(x.text)
	if err != nil || m.kind != "bind" || m.source != n.p.local.WorkTree || !path.IsAbs(m.target) {
		return n.bad("the workspace is always the whole tree; another one cannot be mounted")
	}
	n.p.out.Notes = append(n.p.out.Notes, moved(m.target)...)
	n.p.workdir = m.target
	return nil
}

func moved(from string) []string {
	if from = path.Clean(from); from == workspace {
		return nil
	}
	return []string{fmt.Sprintf("the tree is at %s, not at %s", workspace, from)}
}

// workspaceFolder is where commands start. Wherever the file has the tree, it is
// at /workspace here.
func (n node) workspaceFolder() error {
	s, err := n.text()
	if err != nil || s == "" {
		return err
	}
	x, err := n.expand(s, false)
	if err != nil {
		return err
	}
	dir := path.Clean(x.text)
	if !path.IsAbs(dir) {
		return n.bad("not an absolute path")
	}
	mount := n.p.workdir
	if mount == workspace && !below(dir, workspace) { // the usual /workspaces/<name>
		mount = dir
		n.p.out.Notes = append(n.p.out.Notes, moved(dir)...)
	}
	if !below(dir, mount) {
		return n.bad("it is not below the tree, which is at %s", mount)
	}
	n.p.workdir = path.Join(workspace, strings.TrimPrefix(dir, mount))
	return n.set("env.workdir", expanded{text: n.p.workdir})
}

func below(dir, top string) bool {
	return dir == top || strings.HasPrefix(dir, strings.TrimSuffix(top, "/")+"/")
}

// variables takes containerEnv and remoteEnv, which wins.
func variables(remote bool) func(node) error {
	return func(n node) error {
		members, err := n.members()
		if err != nil {
			return err
		}
		for _, m := range members {
			if m.isNull() {
				if _, ok := lookup(n.p.vars, m.name); ok || !remote {
					return m.bad("a variable cannot be taken back; leave it out of containerEnv")
				}
				return m.bad("a variable of the image cannot be taken back")
			}
			if err := m.variable(m.name, remote); err != nil {
				return err
			}
		}
		return nil
	}
}

func (n node) forwardPorts() error {
	list, err := n.list()
	if err != nil {
		return err
	}
	for _, e := range list {
		s, err := e.scalar()
		if err != nil {
			return err
		}
		if strings.ContainsRune(s, ':') {
			host, port, _ := strings.Cut(s, ":")
			if host != "localhost" && host != "127.0.0.1" {
				return e.bad("there is no host %q to forward a port of", host)
			}
			s = port
		}
		if err := e.setString("env.port", s); err != nil {
			return err
		}
	}
	return nil
}

func (n node) appPort() error {
	if n.value.Value.Kind() != '[' {
		return n.setText("env.port")
	}
	list, err := n.list()
	for _, e := range list {
		if err := e.setText("env.port"); err != nil {
			return err
		}
	}
	return err
}

// commands takes a line of shell, the words of a command, or an object of those,
// which run one after the other.
func commands(key string) func(node) error {
	return func(n node) error {
		if n.value.Value.Kind() != '{' {
			return n.command(key)
		}
		members, err := n.members()
		for _, m := range members {
			if err := m.command(key); err != nil {
				return err
			}
		}
		return err
	}
}

func (n node) command(key string) error {
	if n.empty() {
		return nil
	}
	if n.value.Value.Kind() != '[' {
		s, err := n.text()
		if err != nil {
			return n.bad("not a command: a string or a list of strings")
		}
		return n.setString(key, s)
	}
	words, err := n.list()
	if err != nil {
		return err
	}
	var line []string
	var all expanded
	for _, w := range words {
		s, err := w.text()
		if err != nil {
			return err
		}
		x, err := w.expand(s, false)
		if err != nil {
			return err
		}
		all.personal = all.personal || x.personal
		line = append(line, quote(x.text))
	}
	all.text = strings.Join(line, " ")
	return n.set(key, all)
}

// quote makes one word of a shell of a string.
func quote(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./=:,@%+", r))
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
