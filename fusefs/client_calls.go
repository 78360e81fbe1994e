package fusefs

import "context"

// Dirty returns, for each directory asked for ("" is the root), its names
// that changed since the last mark. A path that is no directory has none.
func (c *Client) Dirty(ctx context.Context, id string, dirs []string) (Dirty, error) {
	resp, err := c.call(ctx, &request{Op: opDirty, Mount: id, Paths: dirs}, nil)
	resp.Dirty.Entries = padded(resp.Dirty.Entries, len(dirs))
	return resp.Dirty, err
}

// List returns all entries of each directory asked for, as they are now.
func (c *Client) List(ctx context.Context, id string, dirs []string) ([][]DirtyEntry, error) {
	resp, err := c.call(ctx, &request{Op: opList, Mount: id, Paths: dirs}, nil)
	return padded(resp.Lists, len(dirs)), err
}

// padded makes up for empty lists that the encoding leaves out.
func padded(lists [][]DirtyEntry, n int) [][]DirtyEntry {
	for len(lists) < n {
		lists = append(lists, nil)
	}
	return lists
}

// Stat describes each path as it is now. The Name of an entry is its path.
// Symbolic links are not followed.
func (c *Client) Stat(ctx context.Context, id string, paths []string) ([]DirtyEntry, error) {
	resp, err := c.call(ctx, &request{Op: opStat, Mount: id, Paths: paths}, nil)
	return resp.Entries, err
}

// Mark says that everything that was dirty at seq, a number Dirty returned,
// is part of commit now. It is durable when it returns.
func (c *Client) Mark(ctx context.Context, id string, seq uint64, commit string) error {
	_, err := c.call(ctx, &request{Op: opMark, Mount: id, Seq: seq, Commit: commit}, nil)
	return err
}

// Freeze seals the top layer and puts the empty layer newTop on it, in constant
// time. Open files and mappings go on. The caller should have noted the new
// stack durably before: a mount with a last layer that does not exist yet makes
// it.
func (c *Client) Freeze(ctx context.Context, id, newTop string) (Frozen, error) {
	resp, err := c.call(ctx, &request{Op: opFreeze, Mount: id, NewTop: newTop}, nil)
	return resp.Frozen, err
}

// Stack tells how large the layers of a mount are.
func (c *Client) Stack(ctx context.Context, id string) (Stack, error) {
	resp, err := c.call(ctx, &request{Op: opStack, Mount: id}, nil)
	return resp.Stack, err
}

// Sync makes durable what was written before the call.
func (c *Client) Sync(ctx context.Context, id string) error {
	_, err := c.call(ctx, &request{Op: opSync, Mount: id}, nil)
	return err
}

// Notices returns what the workspace refused since the last call, for whoever is
// to be told why; errors of system calls cannot say it.
func (c *Client) Notices(ctx context.Context, id string) (Notices, error) {
	resp, err := c.call(ctx, &request{Op: opNotices, Mount: id}, nil)
	return resp.Notices, err
}

// Hold keeps whoever looks up the file .git of a mount waiting, or lets them go on.
// It is for the time in which the git directory that the file names is behind the
// workspace, and ends by itself after some seconds. Nothing else waits.
func (c *Client) Hold(ctx context.Context, id string, on bool) error {
	_, err := c.call(ctx, &request{Op: opHold, Mount: id, Held: on}, nil)
	return err
}

// Awaited returns when somebody looks up the file .git of a mount while it is on
// hold, or it is not on hold any more, or its time is over.
func (c *Client) Awaited(ctx context.Context, id string) error {
	_, err := c.call(ctx, &request{Op: opAwaited, Mount: id}, nil)
	return err
}

// Serving returns nil while the kernel may ask for something of a mount, be it
// that it is only in another mount namespace any more.
func (c *Client) Serving(ctx context.Context, id string) error {
	_, err := c.call(ctx, &request{Op: opServing, Mount: id}, nil)
	return err
}
