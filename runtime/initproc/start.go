package initproc

import (
	"errors"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// start makes the process of a request. It leads a session of its own; what the
// container's first process was given (filter, bounding set, limits, control
// group, no new privileges) it has by birth. How it ends is sent to end.
func (s *server) start(req *Request, fds []int, end chan<- syscall.WaitStatus) (pidfd int, fail *Reply) {
	file, fail := lookUp(req)
	if fail != nil {
		return -1, fail
	}
	pidfd = -1
	attr := &syscall.ProcAttr{
		Dir: req.Cwd,
		Env: req.Env,
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			PidFD:      &pidfd,
			Credential: &syscall.Credential{Uid: req.UID, Gid: req.GID, Groups: req.Groups},
		},
	}
	switch req.Streams {
	case StreamsTerminal:
		attr.Files = []uintptr{uintptr(fds[0]), uintptr(fds[0]), uintptr(fds[0])}
		attr.Sys.Setctty = true // of descriptor 0
	case StreamsAll:
		attr.Files = []uintptr{uintptr(fds[0]), uintptr(fds[1]), uintptr(fds[2])}
	case StreamsOutput:
		null, err := s.emptyInput()
		if err != nil {
			return -1, failure(StageExec, err)
		}
		defer null.Close()
		attr.Files = []uintptr{null.Fd(), uintptr(fds[0]), uintptr(fds[1])}
	}
	s.children.begin()
	pid, err := syscall.ForkExec(file, req.Args, attr)
	if err != nil {
		s.children.failed()
		if pidfd >= 0 {
			_ = unix.Close(pidfd)
		}
		return -1, failure(stageOf(req, err), err)
	}
	s.children.started(pid, pidfd, end)
	return pidfd, nil
}

// emptyInput is /dev/null, or a pipe that has ended where there is none.
func (s *server) emptyInput() (*os.File, error) {
	if s.null != nil {
		fd, err := unix.FcntlInt(s.null.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		return os.NewFile(uintptr(fd), "null"), err
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	_ = unix.Close(p[1])
	return os.NewFile(uintptr(p[0]), "empty"), nil
}

func failure(stage Stage, err error) *Reply {
	errno := syscall.EIO
	errors.As(err, &errno)
	return &Reply{Kind: ReplyFailed, Stage: stage, Value: uint32(errno)}
}

// stageOf tells what a failed start failed at: the kernel says only why.
func stageOf(req *Request, err error) Stage {
	switch {
	case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ELOOP):
	case !enterable(req):
		return StageDirectory
	}
	return StageExec
}

// enterable reports whether the command's user may have the working directory.
// This process itself may enter any.
func enterable(req *Request) bool {
	for dir := path.Clean(req.Cwd); ; dir = path.Dir(dir) {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || !searchable(&st, req) {
			return false
		}
		if dir == "/" || dir == "." {
			return true
		}
	}
}

func searchable(st *unix.Stat_t, req *Request) bool {
	if req.UID == 0 {
		return true
	}
	if st.Uid == req.UID {
		return st.Mode&0o100 != 0
	}
	member := st.Gid == req.GID
	for _, g := range req.Groups {
		member = member || st.Gid == g
	}
	if member {
		return st.Mode&0o010 != 0
	}
	return st.Mode&0o001 != 0
}

// lookUp finds the command's file as a shell would: in the PATH that the command
// gets. A relative result is relative to the working directory.
func lookUp(req *Request) (string, *Reply) {
	name := req.Args[0]
	if strings.Contains(name, "/") {
		return name, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(req.Cwd, &st); err != nil {
		return "", failure(StageDirectory, err)
	}
	found := false
	for dir := range strings.SplitSeq(variable(req.Env, "PATH"), ":") {
		if dir == "" {
			dir = "."
		}
		file := dir + "/" + name
		at := file
		if !path.IsAbs(at) {
			at = req.Cwd + "/" + at
		}
		if unix.Stat(at, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		if st.Mode&0o111 != 0 {
			return file, nil
		}
		found = true
	}
	if found {
		return "", failure(StageLookup, unix.EACCES)
	}
	return "", failure(StageLookup, unix.ENOENT)
}

// variable is the value of a variable; of several, the last counts.
func variable(env []string, name string) (value string) {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			value = v
		}
	}
	return value
}
