package environment

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/git-env/git-env/runtime"
)

const (
	// firstCheck is the pause between checks of a service that is coming up; it
	// grows to the configured interval.
	firstCheck = 50 * time.Millisecond
	// checkTime is what a health check may take.
	checkTime = 10 * time.Second
	// sickAfter is how many checks in a row have to fail for a service that was
	// healthy to be called unhealthy.
	sickAfter = 3
)

// check looks whether the service is ready, and whether it stays healthy where
// there is a command that tells, until ctx ends.
func (s *service) check(ctx context.Context) {
	pause, bad, ready := firstCheck, 0, false
	for {
		err := s.healthy(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil && (!ready || bad >= sickAfter):
			ready = true
			s.becameReady(either(s.set.Health != "", "healthy", ""))
			if s.set.Health == "" {
				return
			}
			bad = 0
		case err == nil:
			bad = 0
		case !ready:
			s.mu.Lock()
			s.why = err.Error()
			s.mu.Unlock()
		default:
			if bad++; bad == sickAfter {
				s.home.update(func(p *Process) { p.Health = "unhealthy" })
			}
		}
		wait := s.set.HealthInterval
		if !ready {
			wait = min(pause, s.set.HealthInterval)
			pause *= 2
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

func either(cond bool, yes, no string) string {
	if cond {
		return yes
	}
	return no
}

// healthy says what keeps the service from being ready: its health check, else
// its ports, else nothing.
func (s *service) healthy(ctx context.Context) error {
	if s.set.Health != "" {
		return s.runCheck(ctx)
	}
	addr, err := netip.ParseAddr(s.addr)
	if err != nil {
		return err
	}
	for _, port := range s.set.ports() {
		there, err := listens(s.ctr.Pid(), addr, port)
		if err != nil {
			return err
		}
		if !there {
			return fmt.Errorf("nothing listens on port %d at its address %s ($GIT_ENV_ADDRESS), or at all addresses", port, s.addr)
		}
	}
	return nil
}

func (s *service) runCheck(ctx context.Context) error {
	said := &lastBytes{}
	masks := &recorder{secrets: s.mask}
	streams := runtime.IO{Stdout: masks.masked(said), Stderr: masks.masked(said)}
	proc, err := s.ctr.Exec(ctx, s.spec([]string{"sh", "-c", s.set.Health}), streams)
	if err != nil {
		return fmt.Errorf("its health check cannot be run: %w", err)
	}
	defer proc.Close()
	bg := context.WithoutCancel(ctx)
	limit := time.AfterFunc(checkTime, func() { s.warn("end a health check", proc.KillTree(bg)) })
	defer limit.Stop()
	stop := context.AfterFunc(ctx, func() { s.warn("end a health check", proc.KillTree(bg)) })
	defer stop()
	exit, err := proc.Wait()
	masks.flush()
	if err != nil {
		return err
	}
	if exit.Code == 0 && exit.Signal == "" {
		return nil
	}
	text := "its health check fails"
	if out := said.String(); out != "" {
		text += ": " + out
	}
	return errors.New(text)
}

// tcpListen is the state of a socket in /proc/net/tcp that waits for connections.
const tcpListen = "0A"

// listens says whether something in the network that a process sees waits for TCP
// connections to an address and port. Nothing is connected to.
func listens(pid int, addr netip.Addr, port uint16) (bool, error) {
	for _, table := range []string{"tcp", "tcp6"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) < 4 || fields[3] != tcpListen {
				continue
			}
			local, p, ok := socketAddr(fields[1])
			if ok && p == port && (local == addr || local.IsUnspecified()) {
				return true, nil
			}
		}
		if err := lines.Err(); err != nil {
			return false, err
		}
	}
	return false, nil
}

// socketAddr reads an address of /proc/net/tcp: words of four bytes in the
// machine's order, which is little-endian wherever we run.
func socketAddr(text string) (netip.Addr, uint16, bool) {
	host, portText, ok := strings.Cut(text, ":")
	port, err := strconv.ParseUint(portText, 16, 16)
	if !ok || err != nil || len(host) != 8 && len(host) != 32 {
		return netip.Addr{}, 0, false
	}
	var raw []byte
	for i := 0; i < len(host); i += 8 {
		word, err := strconv.ParseUint(host[i:i+8], 16, 32)
		if err != nil {
			return netip.Addr{}, 0, false
		}
		raw = append(raw, byte(word), byte(word>>8), byte(word>>16), byte(word>>24))
	}
	addr, ok := netip.AddrFromSlice(slices.Clip(raw))
	return addr.Unmap(), uint16(port), ok
}
