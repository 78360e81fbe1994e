package environment

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/runtime"
)

// A prepared root filesystem is one that no container runs on: what some steps
// have made of an image. Environments begin as branches of it, which cost the
// same whatever is in it. It is complete as soon as it is there, because it comes
// into being in one step, itself as a branch of the environment's whose steps have
// succeeded.

// preparedPrefix begins the ids of prepared root filesystems; those of
// environments are ULIDs.
const preparedPrefix = "setup-"

// recipe is all that decides what a prepared root filesystem is like. Values of
// secrets are not in it: they may decide what can be fetched, not what is.
type recipe struct {
	Version int `json:"version"`
	// Repo keeps the ids apart in a containerd that several repositories use.
	Repo    string   `json:"repo"`
	Image   string   `json:"image"` // its identity
	Vars    []string `json:"vars"`
	Secrets []string `json:"secrets"` // names
	Steps   []string `json:"steps"`
}

// id is that of the root filesystem after the first n steps.
func (r recipe) id(n int) string {
	r.Steps = r.Steps[:n]
	data, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings and numbers
	}
	sum := sha256.Sum256(data)
	return preparedPrefix + hex.EncodeToString(sum[:20])
}

// prepared is the file that tells of a prepared root filesystem; it was used last
// when the file was changed last.
type prepared struct {
	Image string    `json:"image"`
	Steps []string  `json:"steps"`
	Made  time.Time `json:"made"`
}

func (s *Store) preparedDir() string { return filepath.Join(s.Dir, "setup") }

func (s *Store) preparedFile(id string) string { return filepath.Join(s.preparedDir(), id+".json") }

// usePrepared makes the environment's root filesystem one that some of the steps
// have prepared, as many as there is one for, and returns how many.
func (e *Engine) usePrepared(ctx context.Context, b runtime.Backend, img runtime.Image, r recipe, root string) (int, error) {
	for n := len(r.Steps); n > 0; n-- {
		id := r.id(n)
		err := b.ForkRootFS(ctx, id, root, img)
		if errors.Is(err, runtime.ErrNotFound) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("cannot use the prepared root filesystem %s: %w", id, err)
		}
		if err := os.Chtimes(e.store.preparedFile(id), time.Time{}, now()); err != nil {
			e.log.Warn("cannot note the use of a prepared root filesystem", "id", id, "err", err)
		}
		return n, nil
	}
	return 0, nil
}

// keepPrepared keeps what the first n steps have made. No container runs on the
// root filesystem. That it cannot be kept costs the next environment time, and
// this one nothing.
func (e *Engine) keepPrepared(ctx context.Context, b runtime.Backend, img runtime.Image, r recipe, n int, root string) {
	id := r.id(n)
	err := func() error {
		if err := durable.MkdirAll(e.store.preparedDir(), 0o700); err != nil {
			return err
		}
		// The file first: without it nobody would ever remove the other.
		if err := durable.WriteJSON(e.store.preparedFile(id), prepared{Image: img.Ref, Steps: r.Steps[:n], Made: now()}, 0o600); err != nil {
			return err
		}
		// What the steps wrote has to be on the disk before it counts as complete.
		if err := syncFS(e.store.Dir); err != nil {
			return err
		}
		if err := b.ForkRootFS(ctx, root, id, img); err != nil && !errors.Is(err, runtime.ErrExists) {
			return err
		}
		return e.trimPrepared(ctx, b)
	}()
	if err != nil {
		e.log.Warn("cannot keep a prepared root filesystem", "id", id, "err", err)
	}
}

// syncFS writes what a file system holds back to its disk.
func syncFS(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return &os.PathError{Op: "syncfs", Path: dir, Err: err}
	}
	return nil
}

// trimPrepared forgets the prepared root filesystems that were not used for the
// longest time. Environments that began with one keep its layers.
func (e *Engine) trimPrepared(ctx context.Context, b runtime.Backend) error {
	if e.setting.SetupCache == 0 {
		return nil
	}
	files, err := os.ReadDir(e.store.preparedDir())
	if err != nil {
		return err
	}
	type kept struct {
		id   string
		used time.Time
	}
	var all []kept
	for _, f := range files {
		id, ok := strings.CutSuffix(f.Name(), ".json")
		if info, err := f.Info(); ok && err == nil && strings.HasPrefix(id, preparedPrefix) {
			all = append(all, kept{id, info.ModTime()})
		}
	}
	slices.SortFunc(all, func(x, y kept) int { return y.used.Compare(x.used) })
	for _, k := range all[min(int64(len(all)), e.setting.SetupCache):] {
		if err := b.RemoveRootFS(ctx, k.id); err != nil {
			return err
		}
		if err := durable.Remove(e.store.preparedFile(k.id)); err != nil {
			return err
		}
	}
	return nil
}

// alone waits until nobody else makes a root filesystem of the same recipe, so
// that many environments at once do the work once.
func (e *Engine) alone(ctx context.Context, id string, waiting func()) (release func(), err error) {
	for told := false; ; told = true {
		e.mu.Lock()
		other, busy := e.preparing[id]
		if !busy {
			mine := make(chan struct{})
			e.preparing[id] = mine
			e.mu.Unlock()
			return func() {
				e.mu.Lock()
				delete(e.preparing, id)
				e.mu.Unlock()
				close(mine)
			}, nil
		}
		e.mu.Unlock()
		if !told {
			waiting()
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
