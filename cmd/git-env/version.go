package main

import (
	"fmt"
	goruntime "runtime"

	"github.com/git-env/git-env/internal/version"
)

type versionCmd struct {
	JSON bool `name:"json" help:"Print a JSON object."`
}

// versionJSON is version --json.
type versionJSON struct {
	Version string `json:"version"`
	// Go is the version of the compiler, Platform "<system>/<processor>".
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Run prints the version.
func (c *versionCmd) Run(a *app) error {
	v := versionJSON{version.String(), goruntime.Version(), goruntime.GOOS + "/" + goruntime.GOARCH}
	if c.JSON {
		return a.jsonLine(v)
	}
	_, err := fmt.Fprintf(a.stdout, "git-env %s\n", v.Version)
	return err
}
