package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/git-env/git-env/environment/api"
)

// rootChangeJSON is one line of diff --rootfs --json.
type rootChangeJSON struct {
	Status string `json:"status"`
	Path   string `json:"path"`
	Dir    bool   `json:"dir,omitempty"`
}

// rootDiff lists what an environment changed in its root filesystem.
func (a *app) rootDiff(ctx context.Context, args []string) error {
	var asJSON, zero bool
	given := ""
	for i, arg := range args {
		switch {
		case arg == "--json":
			asJSON = true
		case arg == "-z":
			zero = true
		case strings.HasPrefix(arg, "-") || i > 0 && given != "":
			return usagef("'%s' does not go with --rootfs", arg)
		default:
			given = arg
		}
	}
	if asJSON && zero {
		return usagef("--json and -z do not go together")
	}
	name, err := a.resolve(ctx, given)
	if err != nil {
		return err
	}
	for after := 0; ; {
		var ans api.RootDiffed
		if err := a.call(ctx, api.MethodRootDiff, api.RootDiff{Caller: a.caller(), Env: name, After: after}, &ans); err != nil {
			return err
		}
		for _, c := range ans.Changes {
			path := string(c.Path)
			if c.Dir {
				path += "/"
			}
			switch {
			case asJSON:
				err = a.jsonLine(rootChangeJSON{Status: c.Status, Path: string(c.Path), Dir: c.Dir})
			case zero:
				_, err = fmt.Fprintf(a.stdout, "%s\x00%s\x00", c.Status, path)
			default:
				_, err = fmt.Fprintf(a.stdout, "%s\t%s\n", c.Status, quotePath(path))
			}
			if err != nil {
				return err
			}
		}
		after += len(ans.Changes)
		if !ans.More {
			return nil
		}
	}
}

// quotePath writes a path as git does where one has a line of its own: in
// double quotes, with escapes, when it has bytes that a terminal must not see.
func quotePath(path string) string {
	plain := true
	var q strings.Builder
	for i := range len(path) {
		c := path[i]
		if j := strings.IndexByte("\a\b\t\n\v\f\r\"\\", c); j >= 0 {
			plain = false
			q.WriteByte('\\')
			q.WriteByte("abtnvfr\"\\"[j])
			continue
		}
		if c < ' ' || c >= 0x7f {
			plain = false
			fmt.Fprintf(&q, "\\%03o", c)
			continue
		}
		q.WriteByte(c)
	}
	if plain {
		return path
	}
	return `"` + q.String() + `"`
}
