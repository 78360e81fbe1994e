package fusefs

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// openConnection opens the directory of a connection in FUSE's control file
// system. It goes on standing for that very connection: once that is gone
// nothing can be opened in it, although its number may have been given again.
func openConnection(minor string) (*os.File, error) {
	root, err := openControl()
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	fd, err := unix.Openat(root, minor, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "fusectl: " + minor, Err: err}
	}
	return os.NewFile(uintptr(fd), "fusectl: "+minor), nil
}

// waiting returns how many requests of a connection have no answer yet.
func waiting(control *os.File) (int, error) {
	n, err := readControl(int(control.Fd()), "waiting")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(n))
}

// abortControl ends a connection: everybody who waits gets an error.
func abortControl(control *os.File) error {
	fd, err := unix.Openat(int(control.Fd()), "abort", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil // gone
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte("1"))
	return err
}
