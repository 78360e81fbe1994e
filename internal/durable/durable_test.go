package durable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, c := range []struct {
		data string
		perm fs.FileMode
	}{{"one", 0o600}, {"", 0o644}, {"three", 0o666}} {
		if err := WriteFile(path, []byte(c.data), c.perm); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		st, _ := os.Stat(path)
		if err != nil || string(data) != c.data || st.Mode().Perm() != c.perm {
			t.Errorf("%q %v, %v", data, st.Mode(), err)
		}
	}
	failure := errors.New("failure")
	err := Write(path, 0o600, func(w io.Writer) error { io.WriteString(w, "half"); return failure })
	if data, _ := os.ReadFile(path); !errors.Is(err, failure) || string(data) != "three" {
		t.Errorf("after a failure: %q, %v", data, err)
	}
	if err := WriteFile(filepath.Join(dir, "missing", "f"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(filepath.Join(dir, "d"), nil, 0o600); err == nil {
		t.Error("replaced a directory")
	}
	if got := names(t, dir); got != "d f" {
		t.Errorf("left behind: %s", got)
	}
}

func TestDirectories(t *testing.T) {
	dir := t.TempDir()
	deep := filepath.Join(dir, "a/b/c")
	for range 2 {
		if err := MkdirAll(deep, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(deep, "f")
	if err := WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := MkdirAll(filepath.Join(file, "x"), 0o700); err == nil {
		t.Error("a directory below a file")
	}
	if err := Remove(deep); err == nil {
		t.Error("removed a directory with a file")
	}
	if err := Rename(file, filepath.Join(dir, "g")); err != nil {
		t.Error(err)
	}
	if err := Rename(filepath.Join(dir, "g"), filepath.Join(dir, "h")); err != nil {
		t.Error(err)
	}
	for _, path := range []string{deep, deep, filepath.Join(dir, "h")} {
		if err := Remove(path); err != nil {
			t.Error(err)
		}
	}
	if got := names(t, dir) + names(t, filepath.Join(dir, "a/b")); got != "a" {
		t.Errorf("left behind: %s", got)
	}
}

func TestJSON(t *testing.T) {
	type doc struct {
		A string         `json:"a"`
		M map[string]int `json:"m"`
	}
	path := filepath.Join(t.TempDir(), "x.json")
	var got doc
	if err := ReadJSON(path, &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if err := WriteJSON(path, doc{"é<", map[string]int{"x": 1}}, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ReadJSON(path, &got); err != nil || got.A != "é<" || got.M["x"] != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ReadJSON(path, &got); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("malformed: %v", err)
	}
	if err := WriteJSON(path, func() {}, 0o600); err == nil {
		t.Error("encoded a function")
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	l, err := TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	var held *LockedError
	if _, err := TryLock(path); !errors.Is(err, ErrLocked) || !errors.As(err, &held) || held.PID != os.Getpid() {
		t.Errorf("second lock: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := Lock(ctx, path); !errors.Is(err, ErrLocked) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting lock: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if pid := LockPID(path); pid != 0 {
		t.Errorf("released, but of process %d", pid)
	}
	if _, err := TryLock(filepath.Join(path, "x")); err == nil || errors.Is(err, ErrLocked) {
		t.Errorf("impossible path: %v", err)
	}
}

// TestLockExcludes looks who else is inside, while the lock file is removed.
func TestLockExcludes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var inside, total atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				l, err := Lock(t.Context(), path)
				if err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two hold the lock")
				}
				inside.Add(-1)
				if total.Add(1)%7 == 0 {
					os.Remove(path) // others wait for this very file
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := total.Load(); n != 80 {
		t.Errorf("counted %d", n)
	}
}

// TestLockOfDeadProcess is free although its file names the process.
func TestLockOfDeadProcess(t *testing.T) {
	if path := os.Getenv("GITENV_TEST_LOCK"); path != "" {
		if _, err := TryLock(path); err != nil {
			t.Fatal(err)
		}
		fmt.Println("locked")
		io.Copy(io.Discard, os.Stdin)
		return
	}
	path := filepath.Join(t.TempDir(), "lock")
	cmd := exec.Command(os.Args[0], "-test.run=^TestLockOfDeadProcess$")
	cmd.Env = append(os.Environ(), "GITENV_TEST_LOCK="+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("locked\n"))); err != nil {
		t.Fatal(err)
	}
	var held *LockedError
	if _, err := TryLock(path); !errors.As(err, &held) || held.PID != cmd.Process.Pid {
		t.Errorf("got %v, want the lock of process %d", err, cmd.Process.Pid)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if LockPID(path) != cmd.Process.Pid {
		t.Error("the file does not name the process")
	}
	l, err := TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func BenchmarkWriteFile(b *testing.B) {
	path := filepath.Join(b.TempDir(), "f")
	for b.Loop() {
		if err := WriteFile(path, []byte("x"), 0o600); err != nil {
			b.Fatal(err)
		}
	}
}
