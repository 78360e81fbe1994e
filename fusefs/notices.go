package fusefs

// Notices are what a workspace refused and why.
type Notices struct {
	// Refusals are the first few changes that hidden paths were in the way of, and
	// hidden paths that were looked for;
	// MoreRefusals is how many others there were.
	Refusals     []Refusal
	MoreRefusals int
}

// notices answers Client.Notices.
func (w *workspace) notices() Notices {
	var n Notices
	n.Refusals, n.MoreRefusals = w.refusals.take()
	return n
}
