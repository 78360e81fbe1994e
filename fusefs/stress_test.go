package fusefs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// notStressed are stressors of the class that are not run, and why.
var notStressed = map[string]string{
	"bind-mount": "mounts in a namespace of its own; nothing of it is in the workspace",
	"binderfs":   "a file system of its own",
	"eventfd":    "no file of the workspace",
	"fanotify":   "marks the mounts of the whole machine",
	"io":         "syncs the whole machine",
	"ioprio":     "about processes",
	"procfs":     "reads and writes /proc of the whole machine",
}

// complaint is a line of stress-ng that reports a failure.
var complaint = regexp.MustCompile(`(?m)^stress-ng: (fail|error): .*`)

// measured is a line of stress-ng about a stressor that did something.
var measured = regexp.MustCompile(`(?m)^stress-ng: metrc: +\[\d+\] [a-z-]+ +[1-9]\d* +[\d.]+ .*`)

// fewest is how many stressors do something at least. With stress-ng 0.15.06 on
// Linux 6.18 they are 37; an older kernel lacks what some need.
const fewest = 30

// stress-ng finds nothing in a workspace, which gets a new layer now and then.
func TestStress(t *testing.T) {
	stress, err := exec.LookPath("stress-ng")
	switch {
	case err == nil:
	case os.Getenv("GITENV_TEST_REQUIRE") == "1":
		t.Fatalf("stress-ng is required: %v", err)
	default:
		t.Skip("needs stress-ng")
	}
	if testing.Short() {
		t.Skip("takes most of a minute")
	}
	r := newRig(t, map[string]string{"tree/f": "x"})
	var exclude []string
	for name := range notStressed {
		exclude = append(exclude, name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute) // a hang, not slowness
	defer cancel()
	cmd := exec.CommandContext(ctx, stress, "--class", "filesystem", "--sequential", "1", "--timeout", "1", "--verify", "--metrics-brief",
		"--skip-silent", "--exclude", strings.Join(exclude, ","), "--temp-path", r.path("tree"),
		"--hdd-bytes", "4m", "--iomix-bytes", "4m", "--fallocate-bytes", "4m", "--fiemap-bytes", "4m",
		"--dirdeep-inodes", "2000", "--dentries", "500")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	ended := make(chan error)
	go func() { ended <- cmd.Wait() }()
	for i := 2; ; i++ {
		select {
		case err = <-ended:
		case <-time.After(2 * time.Second):
			id := fmt.Sprintf("l%d", i)
			if _, err := r.c.Freeze(context.Background(), r.spec.ID, id); err != nil {
				t.Error(err)
				cancel()
			}
			r.spec.Layers = append(r.spec.Layers, id)
			continue
		}
		break
	}
	if err != nil || complaint.MatchString(out.String()) {
		t.Errorf("stress-ng: %v\n%s", err, out.String())
	}
	if !strings.Contains(out.String(), "successful run completed") {
		t.Errorf("it did not run to its end:\n%s", out.String())
	}
	if ran := len(measured.FindAllString(out.String(), -1)); ran < fewest {
		t.Errorf("%d stressors did something, want %d:\n%s", ran, fewest, out.String())
	}
	// What it left is what a remount shows.
	before := snapshot(t, r.spec.Dir)
	r.unmount()
	r.mount()
	same(t, "remount", snapshot(t, r.spec.Dir), before, exact)
}
