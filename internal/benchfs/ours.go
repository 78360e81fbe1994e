package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ours is a workspace of git env, worked in from the host.
type ours struct {
	host
	profile string // env.fsProfile; "" leaves the default
}

func (o *ours) open(ctx context.Context, s *session) error {
	if err := s.startEnv(ctx, o.profile); err != nil {
		return err
	}
	path, err := s.gitEnvOut(ctx, "path", "e")
	if err != nil {
		return err
	}
	s.dir = strings.TrimSpace(path)
	return s.noteTransport(ctx)
}

// inside is a workspace worked in from within its container.
type inside struct{ ours }

func (i *inside) open(ctx context.Context, s *session) error {
	if err := i.ours.open(ctx, s); err != nil {
		return err
	}
	// The container sees neither the program nor the group's files.
	line := fmt.Sprintf("tar c -C '%s' . | git env run e -c 'mkdir -p %s && tar x -C %s'", s.scratch, insideScratch, insideScratch)
	_, err := command{dir: s.repo(), env: s.env(), args: []string{"sh", "-c", line}}.output(ctx)
	return err
}

// insideScratch is where the group's files are in the container.
const insideScratch = "/var/tmp/benchfs"

func (i *inside) work(ctx context.Context, s *session, args ...string) (string, error) {
	args = append([]string{"run", "e", "--", insideScratch + "/benchfs", "work", "-scratch", insideScratch}, args...)
	return s.gitEnvOut(ctx, args...)
}

// repo is the repository of a session of ours.
func (s *session) repo() string { return filepath.Join(s.back.dir, "repo.git") }

// env is the environment of every command of a session: nothing of the user's
// configuration, and all state of git env on the backing file system.
func (s *session) env() []string {
	return append(s.baseEnv(),
		"XDG_DATA_HOME="+filepath.Join(s.back.dir, "data"),
		"XDG_RUNTIME_DIR="+filepath.Join(s.back.dir, "run"))
}

// gitEnvOut runs "git env" as its user would and returns what it printed.
func (s *session) gitEnvOut(ctx context.Context, args ...string) (string, error) {
	return command{dir: s.repo(), env: s.env(), args: append([]string{"git", "env"}, args...)}.output(ctx)
}

// startEnv makes the repository and the environment "e" in it.
func (s *session) startEnv(ctx context.Context, profile string) error {
	if err := os.Mkdir(filepath.Join(s.back.dir, "run"), 0o700); err != nil {
		return err
	}
	if err := run(ctx, "cp", "-r", s.fixture, s.repo()); err != nil {
		return err
	}
	settings := map[string]string{}
	if s.classic {
		settings["env.fuseUring"] = "off"
	}
	if profile != "" {
		settings["env.fsProfile"] = profile
	}
	for k, v := range settings {
		if err := run(ctx, "git", "-C", s.repo(), "config", k, v); err != nil {
			return err
		}
	}
	s.later(s.stopEnv)
	_, err := s.gitEnvOut(ctx, "create", "e")
	return err
}

// stopEnv deletes every environment and ends the daemon. It does not stop when
// the run is interrupted: that is when it is needed.
func (s *session) stopEnv() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	names, err := s.gitEnvOut(ctx, "list", "-q")
	for name := range strings.FieldsSeq(names) {
		_, e := s.gitEnvOut(ctx, "delete", "--force", name)
		err = errors.Join(err, e)
	}
	_, e := s.gitEnvOut(ctx, "daemon", "stop", "--force")
	if err = errors.Join(err, e); err != nil {
		fmt.Fprintf(os.Stderr, "warning: %v; its processes are ended by force\n", err)
	}
	return endProcesses("XDG_DATA_HOME="+filepath.Join(s.back.dir, "data")+"\x00", err != nil)
}

// endProcesses waits until no process with mark in its environment is left, and
// ends those that stay, at once if now is set. The mark names a directory of
// this run, so that no other run has it.
func endProcesses(mark string, now bool) error {
	end := time.Now().Add(15 * time.Second)
	for {
		left := processesWith(mark)
		if len(left) == 0 {
			return nil
		}
		if now || time.Now().After(end) {
			for _, pid := range left {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if time.Now().After(end.Add(15 * time.Second)) {
			return fmt.Errorf("processes %v do not end", left)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// processesWith lists the processes whose environment contains mark.
func processesWith(mark string) []int {
	names, _ := filepath.Glob("/proc/[0-9]*")
	var found []int
	for _, name := range names {
		var pid int
		if _, err := fmt.Sscan(filepath.Base(name), &pid); err != nil || pid == os.Getpid() {
			continue
		}
		if data, err := os.ReadFile(name + "/environ"); err == nil && strings.Contains(string(data), mark) {
			found = append(found, pid)
		}
	}
	return found
}

// fileServer is the process id of the session's file server.
func (s *session) fileServer(ctx context.Context) (int, error) {
	out, err := s.gitEnvOut(ctx, "daemon", "status", "--json")
	if err != nil {
		return 0, err
	}
	var st struct {
		Pid int `json:"file_server_pid"`
	}
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		return 0, err
	}
	return st.Pid, nil
}

// noteTransport remembers how requests reach the file server: it has rings only
// where the kernel took them.
func (s *session) noteTransport(ctx context.Context) error {
	pid, err := s.fileServer(ctx)
	if err != nil {
		return err
	}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return err
	}
	s.transport = "classic device"
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == "anon_inode:[io_uring]" {
			s.transport = "io_uring"
		}
	}
	return nil
}
