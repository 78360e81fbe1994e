package main

import (
	"path"
	"path/filepath"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/git-env/git-env/environment"
)

// paths is an option that takes all words up to the next option, and may be
// repeated.
type paths []string

// Decode implements kong.MapperValue.
func (p *paths) Decode(ctx *kong.DecodeContext) error {
	var first string
	if err := ctx.Scan.PopValueInto("path", &first); err != nil {
		return err
	}
	*p = append(*p, first)
	for {
		next := ctx.Scan.Peek()
		word, ok := next.Value.(string)
		if !ok || !next.IsValue() || strings.HasPrefix(word, "-") {
			return nil
		}
		ctx.Scan.Pop()
		*p = append(*p, word)
	}
}

// fromTop makes paths that a user wrote, relative to where he is, relative to the
// top of the work tree.
func (a *app) fromTop(given []string) ([]string, error) {
	var out []string
	for _, p := range given {
		if p == "" {
			return nil, usagef("--paths is empty").withHint("leave it out, or give it a value")
		}
		full := path.Join(a.repo.Prefix, p)
		if filepath.IsAbs(p) {
			full = path.Clean(p)
			if rel, err := filepath.Rel(a.repo.WorkTree, full); a.repo.WorkTree != "" && err == nil {
				full = rel
			}
		}
		if !filepath.IsLocal(full) {
			return nil, environment.Errorf(environment.ExitRepository, "'%s' is outside repository", p)
		}
		out = append(out, full)
	}
	return out, nil
}
