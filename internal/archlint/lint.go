package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// linter collects the offences of one module.
type linter struct {
	root   string // directory of go.mod
	module string // module path
	layers []layer
	fset   *token.FileSet
	found  []string
	// docs says for each directory with Go files whether it has a doc.go.
	docs map[string]bool
	// arrays are package-level arrays, by "dir.name", and written the names that
	// something in the directory writes to.
	arrays  map[string]token.Pos
	written map[string]bool
}

// lint checks the module in root and returns its offences, sorted, each as
// "file:line: text".
func lint(root string) ([]string, error) {
	mod, err := modulePath(filepath.Join(root, "go.mod"))
	if err != nil {
		return nil, err
	}
	l := &linter{root: root, module: mod, layers: layers(), fset: token.NewFileSet(),
		docs: map[string]bool{}, arrays: map[string]token.Pos{}, written: map[string]bool{}}
	if err := filepath.WalkDir(root, l.visit); err != nil {
		return nil, err
	}
	for name, pos := range l.arrays {
		if l.written[name] {
			l.say(pos, "package-level array %s is written to: state belongs to a value that someone made", name)
		}
	}
	for dir, has := range l.docs {
		if !has {
			l.found = append(l.found, dir+": no doc.go: a package says what it is for")
		}
	}
	sort.Strings(l.found)
	return l.found, nil
}

func modulePath(gomod string) (string, error) {
	data, err := os.ReadFile(gomod)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if m, ok := strings.CutPrefix(strings.TrimSpace(line), "module "); ok {
			return strings.Trim(m, `" `), nil
		}
	}
	return "", fmt.Errorf("%s: no module line", gomod)
}

func (l *linter) visit(name string, d fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	base := d.Name()
	if d.IsDir() {
		hidden := strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_")
		if name != l.root && (hidden || base == "testdata" || base == "vendor") {
			return filepath.SkipDir
		}
		return nil
	}
	if !strings.HasSuffix(base, ".go") {
		return nil
	}
	return l.file(name)
}

// file checks one source file.
func (l *linter) file(name string) error {
	rel, err := filepath.Rel(l.root, name)
	if err != nil {
		return err
	}
	dir := filepath.ToSlash(filepath.Dir(rel))
	l.docs[dir] = l.docs[dir] || filepath.Base(name) == "doc.go"

	src, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	f, err := parser.ParseFile(l.fset, rel, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	if n := strings.Count(string(src), "\n"); n > maxLines && !ast.IsGenerated(f) {
		l.say(f.Pos(), "%d lines; more than %d are two things", n, maxLines)
	}
	test := strings.HasSuffix(rel, "_test.go")
	l.imports(f, dir, test)
	if test {
		return nil
	}
	if filepath.Base(name) == "doc.go" && f.Doc == nil {
		l.say(f.Pos(), "doc.go without a package comment")
	}
	l.calls(f, dir)
	l.writes(f, dir)
	for _, decl := range f.Decls {
		l.decl(decl, dir)
	}
	return nil
}

func (l *linter) say(pos token.Pos, format string, args ...any) {
	p := l.fset.Position(pos)
	l.found = append(l.found, fmt.Sprintf("%s:%d: %s", p.Filename, p.Line, fmt.Sprintf(format, args...)))
}

// imports checks the arrows and the banned imports.
func (l *linter) imports(f *ast.File, dir string, test bool) {
	for _, imp := range f.Imports {
		p, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			continue // the parser has refused it already
		}
		if to, ok := strings.CutPrefix(p, l.module+"/"); ok {
			l.ours(imp, dir, to, test)
		}
		if p == "os/exec" && imp.Name != nil && !test {
			l.say(imp.Pos(), "os/exec under another name: its calls could not be seen")
		}
		if why, banned := bannedImports()[p]; banned && !allowed(bannedAllowed()[p], dir) {
			l.say(imp.Pos(), "import of %s: %s", p, why)
		}
	}
}

// ours checks an import of a package of this module.
func (l *linter) ours(imp *ast.ImportSpec, dir, to string, test bool) {
	if why := arrow(l.layers, dir, to); why != "" {
		l.say(imp.Pos(), "%s", why)
	}
	for _, s := range support() {
		if to == s && !test && dir != s && dir != "e2e" {
			l.say(imp.Pos(), "%s is for tests only", to)
		}
	}
}

func allowed(list []starter, dir string) bool {
	for _, s := range list {
		if s.dir == dir {
			return true
		}
	}
	return false
}

// calls finds what starts processes.
func (l *linter) calls(f *ast.File, dir string) {
	if startsProcesses(dir) {
		return
	}
	ast.Inspect(f, func(n ast.Node) bool {
		starts := false
		switch n := n.(type) {
		case *ast.CallExpr:
			starts = processCalls()[selector(n.Fun)]
		case *ast.CompositeLit:
			starts = selector(n.Type) == "exec.Cmd"
		}
		if starts {
			l.say(n.Pos(), "%s may not start processes: git runs through internal/gitcmd", dir)
		}
		return true
	})
}

// selector is "pkg.Name" for an expression of that shape, else "".
func selector(e ast.Expr) string {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	pkg, ok := sel.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return pkg.Name + "." + sel.Sel.Name
}

// decl finds init functions and package-level state.
func (l *linter) decl(decl ast.Decl, dir string) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil && d.Name.Name == "init" {
			l.say(d.Pos(), "init() runs for everyone who imports the package; call what it does")
		}
	case *ast.GenDecl:
		if d.Tok != token.VAR {
			return
		}
		for _, spec := range d.Specs {
			l.variable(d, spec.(*ast.ValueSpec), dir)
		}
	}
}

func (l *linter) variable(d *ast.GenDecl, v *ast.ValueSpec, dir string) {
	if embedded(d.Doc) || embedded(v.Doc) {
		return
	}
	for i, name := range v.Names {
		if name.Name == "_" || linkerVariables()[dir+"."+name.Name] {
			continue
		}
		if i < len(v.Values) && l.constant(v.Values[i], name, dir) {
			continue
		}
		l.say(name.Pos(), "package-level variable %s: state belongs to a value that someone made", name.Name)
	}
}

// constant tells whether a variable's value makes it one in name only: a call
// whose result nothing changes, or an array, which is remembered until it is
// known whether anything writes to it.
func (l *linter) constant(value ast.Expr, name *ast.Ident, dir string) bool {
	switch v := value.(type) {
	case *ast.CallExpr:
		return constantCalls()[selector(v.Fun)] != ""
	case *ast.CompositeLit:
		if array, ok := v.Type.(*ast.ArrayType); ok && array.Len != nil && !name.IsExported() {
			l.arrays[dir+"."+name.Name] = name.Pos()
			return true
		}
	}
	return false
}

// writes remembers the names that are assigned to, whole or in part, or whose
// address is taken. It knows no scopes, so a local variable of the same name
// counts too; then one of them has to be called something else.
func (l *linter) writes(f *ast.File, dir string) {
	note := func(e ast.Expr) {
		for {
			switch x := e.(type) {
			case *ast.IndexExpr:
				e = x.X
			case *ast.SelectorExpr:
				e = x.X
			case *ast.ParenExpr:
				e = x.X
			case *ast.Ident:
				l.written[dir+"."+x.Name] = true
				return
			default:
				return
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for _, e := range n.Lhs {
				note(e)
			}
		case *ast.IncDecStmt:
			note(n.X)
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				note(n.X)
			}
		}
		return true
	})
}

func embedded(doc *ast.CommentGroup) bool {
	if doc == nil {
		return false
	}
	for _, c := range doc.List {
		if strings.HasPrefix(c.Text, "//go:embed ") {
			return true
		}
	}
	return false
}
