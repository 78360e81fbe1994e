package environment

import (
	"context"
	"fmt"
	"math"
	"path/filepath"

	"github.com/git-env/git-env/fusefs"
)

// env.disk bounds what an environment's workspace keeps on the disk. The file
// server enforces it; a change of it counts from the next exec on where there was
// a limit, and else from the next time that the workspace is mounted.

// limitBeside reads the limit while the caller does something else.
func (v *Env) limitBeside(ctx context.Context) func() (int64, error) {
	type answer struct {
		limit int64
		err   error
	}
	st, done := v.st, make(chan answer, 1)
	go func() {
		set, err := v.e.store.settingsOf(ctx, st)
		done <- answer{set.Disk, err}
	}()
	return func() (int64, error) {
		a := <-done
		return a.limit, a.err
	}
}

// renewLimit takes over a limit that was changed since the workspace was mounted.
// v.mu is held and the workspace mounted.
func (v *Env) renewLimit(ctx context.Context) error {
	if v.disk == 0 {
		return nil
	}
	set, err := v.settings(ctx)
	if err != nil {
		return err
	}
	limit := set.Disk
	if limit == 0 {
		limit = math.MaxInt64
	}
	if limit == v.disk {
		return nil
	}
	if err := v.files.SetQuota(ctx, v.st.ID, limit); err != nil {
		return fmt.Errorf("cannot change the limit of the workspace: %w", err)
	}
	v.disk = limit
	return nil
}

// DiskUse tells how many bytes the workspace of an environment that is not mounted
// keeps on the disk, and how many it may; zeros where there is no limit.
func (s *Store) DiskUse(ctx context.Context, st *State) (used, limit int64, err error) {
	set, err := s.settingsOf(ctx, st)
	if err != nil || set.Disk == 0 {
		return 0, 0, err
	}
	used, err = fusefs.OfflineUsage(filepath.Join(s.Dir, "layers"), st.Layers)
	return used, set.Disk, err
}

// diskUse is the same of one that may be mounted. v.mu is held.
func (v *Env) diskUse(ctx context.Context) (used, limit int64, err error) {
	if !v.mounted || v.serverDied() {
		return v.e.store.DiskUse(ctx, v.st)
	}
	if v.disk == 0 || v.disk == math.MaxInt64 {
		return 0, 0, nil
	}
	u, err := v.files.Usage(ctx, v.st.ID)
	return u.Used, u.Limit, err
}

// fullNotice says that requests found no room. v.mu is held.
func (v *Env) fullNotice(ctx context.Context, times int64) string {
	used, limit, err := v.diskUse(ctx)
	if err != nil {
		v.e.log.Warn("cannot ask for the use of the disk", "env", v.name, "err", err)
		limit = v.disk
	}
	return fmt.Sprintf("the workspace is full: %s of the %s that env.disk allows are used, and %d request(s) failed with ENOSPC; remove files in it, or raise env.disk",
		HumanSize(used), HumanSize(limit), times)
}

// HumanSize writes a number of bytes for people, as git does.
func HumanSize(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d bytes", n)
	}
	f, i := float64(n)/unit, 0
	for ; f >= unit && i < 3; i++ {
		f /= unit
	}
	return fmt.Sprintf("%.2f %s", f, [...]string{"KiB", "MiB", "GiB", "TiB"}[i])
}
