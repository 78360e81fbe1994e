package fusefs

// Notices are what a workspace refused and why.
type Notices struct {
	// Refusals are the first few changes that hidden paths were in the way of, and
	// hidden paths that were looked for;
	// MoreRefusals is how many others there were.
	Refusals     []Refusal
	MoreRefusals int
	// Full is how many requests found no room within the quota.
	Full int64
}

// notices answers Client.Notices.
func (w *workspace) notices() Notices {
	var n Notices
	n.Refusals, n.MoreRefusals = w.refusals.take()
	n.Full = w.quota.take()
	return n
}
