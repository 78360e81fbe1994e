package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/git-env/git-env/environment"
)

type showCmd struct {
	Env    string `arg:"" optional:"" name:"env" help:"The environment."`
	Exec   string `arg:"" optional:"" name:"exec-id" help:"Id of the exec, or the beginning of it; the newest when left out."`
	Output bool   `help:"Print what the command printed, byte for byte, and nothing else." xor:"form"`
	JSON   bool   `name:"json" help:"Print the record as a JSON object, without the output." xor:"form"`
	Quiet  bool   `short:"q" help:"Print the exec's id alone." xor:"form"`
}

// Run shows one record. Its JSON is one execJSON.
func (c *showCmd) Run(a *app) error {
	ctx, stop := a.interruptible()
	defer stop()
	name, err := a.resolve(ctx, c.Env)
	if err != nil && c.Exec == "" && looksLikeExec(c.Env) {
		// The environment left out, the exec given.
		if only, rerr := a.resolve(ctx, ""); rerr == nil {
			name, err = only, nil
			c.Exec = c.Env
		}
	}
	if err != nil {
		return err
	}
	rec, commit, err := a.store.Record(ctx, name, c.Exec)
	if err != nil {
		return err
	}
	switch {
	case c.JSON:
		return a.jsonLine(execOf(rec, commit))
	case c.Quiet:
		_, err := fmt.Fprintln(a.stdout, rec.ID)
		return err
	case c.Output && rec.OutputBytes == 0:
		return nil
	case c.Output:
		return a.store.OutputOf(ctx, rec, a.stdout)
	}
	return a.paged(ctx, func(out io.Writer, _ []string) error {
		rec.Excerpt = nil
		head := strings.TrimRight(string(rec.Encode()), "\n")
		if _, err := fmt.Fprintf(out, "commit %s\n%s\n", commit, head); err != nil {
			return err
		}
		if rec.OutputID == "" || rec.OutputBytes == 0 {
			return nil
		}
		if _, err := io.WriteString(out, "\n"); err != nil {
			return err
		}
		return a.store.OutputOf(ctx, rec, out)
	})
}

// looksLikeExec says whether a word may be a ULID or the beginning of one; an
// environment of that name comes first.
func looksLikeExec(s string) bool {
	const alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	s = strings.ToUpper(s)
	return len(s) >= 4 && len(s) <= 26 && strings.HasPrefix(s, "0") && strings.Trim(s, alphabet) == "" && environment.CheckName(s) == nil
}
