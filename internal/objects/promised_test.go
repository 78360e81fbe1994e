package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/internal/gitcmd"
)

// partialClone makes a clone without blobs of a repository with n of them, and
// returns their ids. Each conversation with the remote adds a line to the file.
func partialClone(t *testing.T, format string, n int) (origin *repo, clone *repo, ids []string, log string) {
	t.Helper()
	origin = newRepo(t, format)
	var entries []TreeEntry
	for i := range n {
		id := origin.blob(fmt.Sprintf("content %d\n", i))
		ids = append(ids, id)
		entries = append(entries, TreeEntry{fmt.Sprintf("f%04d", i), ModeFile, id})
	}
	who := "a <a@x> 1 +0000"
	commit := must(origin.w.Commit(&Commit{Tree: must(origin.w.Tree(entries))(t), Author: who, Committer: who}))(t)
	origin.git("", "update-ref", "refs/heads/main", commit)
	origin.git("", "symbolic-ref", "HEAD", "refs/heads/main")
	origin.git("", "config", "uploadpack.allowFilter", "true")
	origin.git("", "config", "uploadpack.allowAnySHA1InWant", "true")
	dir := t.TempDir()
	log = filepath.Join(dir, "log")
	pack := filepath.Join(dir, "upload-pack")
	script := fmt.Sprintf("#!/bin/sh\necho x >> '%s'\nexec git upload-pack \"$@\"\n", log)
	if err := os.WriteFile(pack, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "clone.git")
	origin.git("", "clone", "-q", "--bare", "--filter=blob:none", "--upload-pack="+pack, "file://"+origin.dir, to)
	clone = &repo{t: t, dir: to, r: NewReader(gitcmd.New(to), 2)}
	t.Cleanup(func() { clone.r.Close() })
	clone.git("", "config", "remote.origin.uploadpack", pack)
	if err := os.WriteFile(log, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return origin, clone, ids, log
}

// conversations counts the lines of the log.
func conversations(t *testing.T, log string) int {
	t.Helper()
	return bytes.Count(must(os.ReadFile(log))(t), []byte("\n"))
}

// In a partial clone many sizes and contents cost one conversation.
func TestPartialClone(t *testing.T) {
	for _, format := range []string{SHA1, SHA256} {
		t.Run(format, func(t *testing.T) {
			_, c, ids, log := partialClone(t, format, 300)
			if !c.r.Partial() {
				t.Fatal("not recognised")
			}
			for i, size := range must(c.r.SizesHere(t.Context(), ids))(t) {
				if size != -1 {
					t.Errorf("%d is here, %d bytes", i, size)
				}
			}
			absent := strings.Repeat("1", len(ids[0]))
			sizes := must(c.r.SizesIf(t.Context(), ids[:100]))(t)
			for i, size := range sizes {
				if size != int64(len(fmt.Sprintf("content %d\n", i))) {
					t.Errorf("size %d is %d", i, size)
				}
			}
			if n := conversations(t, log); n != 1 {
				t.Errorf("%d conversations for 100 sizes", n)
			}
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() { checkContents(t, c.r, ids[50:250], 50) })
			}
			wg.Wait()
			if n := conversations(t, log); n != 2 {
				t.Errorf("%d conversations after 200 contents for four", n)
			}
			if data := must(c.r.Bytes(t.Context(), ids[299], 100))(t); string(data) != "content 299\n" {
				t.Errorf("%q", data)
			}
			if _, err := c.r.Bytes(t.Context(), absent, 100); err == nil {
				t.Error("what nobody has was read")
			}
		})
	}
}

func checkContents(t *testing.T, r *Reader, ids []string, first int) {
	next := 0
	err := r.Blobs(t.Context(), ids, func(i int, size int64, content io.Reader, err error) error {
		data := []byte(nil)
		if err == nil {
			data, err = io.ReadAll(content)
		}
		if want := fmt.Sprintf("content %d\n", first+i); err != nil || string(data) != want || size != int64(len(want)) {
			t.Errorf("blob %d: %q, %d bytes, %v", i, data, size, err)
		}
		next++
		return nil
	})
	if err != nil || next != len(ids) {
		t.Errorf("%d of %d blobs: %v", next, len(ids), err)
	}
}

// A remote that is away fails what is missing and says so; what is here is read.
func TestPartialCloneOffline(t *testing.T) {
	origin, c, ids, _ := partialClone(t, SHA1, 10)
	must(c.r.SizesIf(t.Context(), ids[:5]))(t)
	if err := os.Rename(origin.dir, origin.dir+".away"); err != nil {
		t.Fatal(err)
	}
	checkContents(t, c.r, ids[:5], 0)
	if _, err := c.r.SizesIf(t.Context(), ids); !errors.Is(err, ErrFetch) || !strings.Contains(err.Error(), "'origin'") {
		t.Errorf("sizes: %v", err)
	}
	failed := 0
	err := c.r.Blobs(t.Context(), ids, func(i int, _ int64, _ io.Reader, err error) error {
		if (err != nil) != (i >= 5) {
			t.Errorf("blob %d: %v", i, err)
		}
		if errors.Is(err, ErrFetch) {
			failed++
		}
		return nil
	})
	if err != nil || failed != 5 {
		t.Errorf("%d failed: %v", failed, err)
	}
	if err := os.Rename(origin.dir+".away", origin.dir); err != nil {
		t.Fatal(err)
	}
	c.r.promise.p.failed, c.r.promise.p.until = errFull, time.Now().Add(time.Hour)
	if _, err := c.r.SizesIf(t.Context(), ids); !errors.Is(err, errFull) {
		t.Errorf("within the pause: %v", err)
	}
	c.r.promise.p.until = time.Time{}
	checkContents(t, c.r, ids, 0)
}

// Who gives up does not wait for a remote that says nothing.
func TestPartialCloneCancel(t *testing.T) {
	_, c, ids, _ := partialClone(t, SHA1, 3)
	if !c.r.Partial() {
		t.Fatal("not recognised")
	}
	fifo := filepath.Join(t.TempDir(), "waiting")
	mute := filepath.Join(t.TempDir(), "mute")
	script := fmt.Sprintf("#!/bin/sh\necho > '%s'\nread x\n", fifo)
	if err := errors.Join(makeFifo(fifo), os.WriteFile(mute, []byte(script), 0o755)); err != nil {
		t.Fatal(err)
	}
	c.git("", "config", "remote.origin.uploadpack", mute)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = os.ReadFile(fifo)
		cancel()
	}()
	if _, err := c.r.SizesIf(ctx, ids); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// Of many blobs the one that is missing, damaged or none fails alone.
func TestManyBlobs(t *testing.T) {
	formats(t, func(t *testing.T, r *repo) {
		var ids []string
		for i := range 500 {
			ids = append(ids, r.blob(fmt.Sprintf("content %d\n", i)))
		}
		big := strings.Repeat("0123456789", 1<<20)
		bad := map[int]string{
			0: strings.Repeat("1", len(ids[0])), 77: must(r.w.Tree(nil))(t), 78: "damaged", 79: "damaged", 400: "damaged", 499: strings.Repeat("2", len(ids[0])),
		}
		for i, id := range bad {
			if id != "damaged" {
				ids[i] = id
				continue
			}
			os.Remove(r.w.path(ids[i]))
			if err := os.WriteFile(r.w.path(ids[i]), []byte("garbage"), 0o444); err != nil {
				t.Fatal(err)
			}
		}
		ids[200] = r.blob(big)
		next := 0
		err := r.r.Blobs(t.Context(), ids, func(i int, size int64, content io.Reader, err error) error {
			if i != next {
				t.Fatalf("blob %d instead of %d", i, next)
			}
			next++
			switch {
			case bad[i] != "":
				if err == nil {
					t.Errorf("blob %d: no error", i)
				}
				return nil
			case err != nil:
				t.Errorf("blob %d: %v", i, err)
				return nil
			case i%3 == 1:
				return nil // not everybody reads all
			}
			want := fmt.Sprintf("content %d\n", i)
			if i == 200 {
				want = big
			}
			if data, err := io.ReadAll(content); err != nil || string(data) != want || size != int64(len(want)) {
				t.Errorf("blob %d: %d bytes, %v", i, len(data), err)
			}
			return nil
		})
		if err != nil || next != len(ids) {
			t.Errorf("%d blobs: %v", next, err)
		}
		full := errors.New("full")
		err = r.r.Blobs(t.Context(), ids[1:70], func(i int, _ int64, _ io.Reader, _ error) error {
			if i == 40 {
				return full
			}
			return nil
		})
		if !errors.Is(err, full) {
			t.Errorf("receiver failed: %v", err)
		}
		checkContents(t, r.r, ids[1:70], 1)
	})
}

func makeFifo(path string) error { return unix.Mkfifo(path, 0o600) }
