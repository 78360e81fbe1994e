package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
)

// options are the flags of a run.
type options struct {
	only       *regexp.Regexp
	columns    []string
	rounds     int
	slowRounds int
	json       bool
	gitEnv     string
	module     string
	dir        string
	backing    string
	classic    bool
	drop       int
	sizeMiB    int64
	figures    bool
	million    bool
	requests   bool
	limit      time.Duration
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "work" {
		os.Exit(workMain(os.Args[2:]))
	}
	os.Exit(benchMain(os.Args[1:]))
}

// benchMain is the command itself; it returns the exit code.
func benchMain(args []string) int {
	opts, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fatal:", err)
		return 129
	}
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "fatal: not root: mounting images and overlays needs it")
		return 1
	}
	ctx, stop := endings(context.Background())
	defer stop()
	b := &bench{options: opts, samples: map[string]map[string][]float64{}, counts: map[string]map[string]int{}}
	err = b.run(ctx)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintf(os.Stderr, "ended early: %v\n", context.Cause(ctx))
		if err != nil && !errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, "error:", err)
		}
		return 130
	case err != nil:
		fmt.Fprintln(os.Stderr, "fatal:", err)
		return 1
	case len(b.failed) > 0:
		fmt.Fprintf(os.Stderr, "error: %d of the measurements failed, see above\n", len(b.failed))
		return 1
	}
	return 0
}

func parse(args []string) (options, error) {
	var o options
	var only, columns string
	f := flag.NewFlagSet("benchfs", flag.ContinueOnError)
	f.StringVar(&only, "only", "", "run workloads and figures whose name matches this `regexp`")
	f.StringVar(&columns, "columns", "native,overlay,fuse-overlayfs,ours,ours-inside",
		"columns, separated by commas; also ours-io (env.fsProfile=io)")
	f.IntVar(&o.rounds, "rounds", 3, "rounds; each cell is the median of all")
	f.IntVar(&o.slowRounds, "slow-rounds", 1, "most rounds of workloads that take a minute (ripgrep, npm, go build)")
	f.BoolVar(&o.json, "json", false, "print one JSON document instead of the table")
	f.StringVar(&o.gitEnv, "git-env", "", "the git-env `binary`; default: the one on PATH")
	f.StringVar(&o.module, "module", ".", "repository of the Go module that is built")
	f.StringVar(&o.dir, "dir", "", "where the temporary directory is made; default $TMPDIR")
	f.StringVar(&o.backing, "backing", "ram", "ram: an ext4 image on tmpfs; file: an ext4 image in the temporary directory; disk: a plain directory there")
	f.BoolVar(&o.classic, "classic", false, "ours with the classic FUSE device (env.fuseUring=off)")
	f.IntVar(&o.drop, "drop-caches", 2, "what cold rows write to /proc/sys/vm/drop_caches, for the whole machine; 0: only what concerns the files themselves")
	f.Int64Var(&o.sizeMiB, "size", 1024, "size of the large file in MiB")
	f.BoolVar(&o.figures, "figures", true, "print the section without peers too")
	f.BoolVar(&o.million, "million", false, "memory also with 1,000,000 files")
	f.BoolVar(&o.requests, "requests", false, "count FUSE requests of ours by kind (needs tracefs)")
	f.DurationVar(&o.limit, "limit", 15*time.Minute, "longest time for one step, after which its session is given up")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	var err error
	if o.only, err = regexp.Compile(only); err != nil {
		return o, fmt.Errorf("--only: %w", err)
	}
	if o.rounds < 1 || o.slowRounds < 1 || o.sizeMiB < 1 {
		return o, errors.New("--rounds, --slow-rounds and --size: at least 1")
	}
	switch o.backing {
	case "ram", "file", "disk":
	default:
		return o, fmt.Errorf("--backing: %q is not one of ram, file, disk", o.backing)
	}
	for c := range strings.SplitSeq(columns, ",") {
		if c = strings.TrimSpace(c); newColumn(c) == nil {
			return o, fmt.Errorf("--columns: no column %q; there are native, overlay, fuse-overlayfs, ours, ours-inside, ours-io", c)
		}
		o.columns = append(o.columns, strings.TrimSpace(c))
	}
	return o, nil
}
