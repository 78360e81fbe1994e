package main

import (
	"fmt"
	"os"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	root := "."
	switch len(args) {
	case 0:
	case 1:
		root = args[0]
	default:
		fmt.Fprintln(os.Stderr, "usage: archlint [dir]")
		return 129
	}
	found, err := lint(root)
	if err != nil {
		fmt.Fprintln(os.Stderr, "fatal:", err)
		return 128
	}
	for _, f := range found {
		fmt.Println(f)
	}
	if len(found) > 0 {
		fmt.Fprintf(os.Stderr, "error: %d offences against the rules in internal/archlint/rules.go\n", len(found))
		return 1
	}
	return 0
}
