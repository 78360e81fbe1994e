package fusefs

import "context"

// Usage returns how much of its quota a workspace uses; zeros without a quota.
func (c *Client) Usage(ctx context.Context, id string) (Usage, error) {
	resp, err := c.call(ctx, &request{Op: opUsage, Mount: id}, nil)
	return resp.Usage, err
}

// SetQuota changes the limit of a workspace that was mounted with one.
func (c *Client) SetQuota(ctx context.Context, id string, limit int64) error {
	_, err := c.call(ctx, &request{Op: opQuota, Mount: id, Limit: limit}, nil)
	return err
}
