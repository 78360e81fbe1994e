package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// tracer counts the FUSE requests of one mount by kind, with the kernel's own
// trace points in a trace instance of ours.
type tracer struct{ dir string }

func newTracer(ctx context.Context, s *session) (*tracer, error) {
	const root = "/sys/kernel/tracing"
	if _, err := os.Stat(root + "/instances"); err != nil {
		if err := run(ctx, "mount", "-t", "tracefs", "benchfs", root); err != nil {
			return nil, fmt.Errorf("--requests: %w", err)
		}
	}
	minor, err := deviceOf(s.dir)
	if err != nil {
		return nil, err
	}
	t := &tracer{dir: filepath.Join(root, "instances", filepath.Base(s.work))}
	if err := os.Mkdir(t.dir, 0o700); err != nil {
		return nil, fmt.Errorf("--requests: %w", err)
	}
	const event = "events/fuse/fuse_request_send/"
	for _, set := range [][2]string{
		{"buffer_size_kb", "32768"}, // for each processor
		{event + "filter", "connection == " + minor},
		{event + "enable", "1"},
	} {
		if err := os.WriteFile(filepath.Join(t.dir, set[0]), []byte(set[1]), 0o600); err != nil {
			return nil, errors.Join(fmt.Errorf("--requests: %w", err), t.close())
		}
	}
	return t, nil
}

// reset forgets all requests.
func (t *tracer) reset() error {
	if t == nil {
		return nil
	}
	return os.Truncate(filepath.Join(t.dir, "trace"), 0)
}

// read counts the requests since reset. "lost" are those that the buffer could
// not hold.
func (t *tracer) read() (map[string]int, error) {
	f, err := os.Open(filepath.Join(t.dir, "trace"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	counts := map[string]int{}
	in := bufio.NewScanner(f)
	for in.Scan() {
		line := in.Text()
		var held, written int
		if n, _ := fmt.Sscanf(line, "# entries-in-buffer/entries-written: %d/%d", &held, &written); n == 2 && written > held {
			counts["lost"] = written - held
		}
		if _, rest, ok := strings.Cut(line, " (FUSE_"); ok {
			kind, _, _ := strings.Cut(rest, ")")
			counts[kind]++
		}
	}
	return counts, in.Err()
}

// close removes the instance.
func (t *tracer) close() error { return os.Remove(t.dir) }
