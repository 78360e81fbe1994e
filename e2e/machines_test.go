package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// machines makes two machines of network namespaces with a cable between them,
// and commands that run others there: `host` on one that git env is to run on,
// 203.0.113.1 and 2001:db8:77::1, and `far` on another, 203.0.113.2 and
// 2001:db8:77::2. Nothing leads out of them.
func machines(ts *testscript.TestScript, neg bool, args []string) {
	plain(ts, "machines", neg)
	if len(args) != 0 {
		ts.Fatalf("usage: machines")
	}
	bin := ts.MkAbs("machines.bin")
	ts.Check(os.MkdirAll(bin, 0o755))
	host, far := machine(ts, bin, "host"), machine(ts, bin, "far")
	ip := func(ns, line string) {
		out, err := exec.Command("nsenter", append([]string{"--net=" + ns, "ip"}, strings.Fields(line)...)...).CombinedOutput()
		if err != nil {
			ts.Fatalf("ip %s: %v\n%s", line, err, out)
		}
	}
	ip(far, "link set lo up")
	ip(host, "link set lo up")
	ip(far, "link add cable type veth peer name cable netns "+host)
	for ns, n := range map[string]int{host: 1, far: 2} {
		ip(ns, fmt.Sprintf("addr add 203.0.113.%d/24 dev cable", n))
		ip(ns, fmt.Sprintf("-6 addr add 2001:db8:77::%d/64 dev cable nodad", n))
		ip(ns, "link set cable up")
	}
	ts.Setenv("PATH", bin+string(os.PathListSeparator)+ts.Getenv("PATH"))
}

// machine makes a network namespace that lasts as long as the script, and a
// command of a name that enters it. It returns its path.
func machine(ts *testscript.TestScript, bin, name string) string {
	type made struct {
		ns  *os.File
		err error
	}
	done := make(chan made)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends
		err := unix.Unshare(unix.CLONE_NEWNET)
		var ns *os.File
		if err == nil {
			ns, err = os.Open("/proc/thread-self/ns/net")
		}
		done <- made{ns, err}
	}()
	m := <-done
	ts.Check(m.err)
	ts.Defer(func() { _ = m.ns.Close() })
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), m.ns.Fd())
	text := fmt.Sprintf("#!/bin/sh\nexec nsenter --net=%s -- \"$@\"\n", path)
	ts.Check(os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755))
	return path
}
