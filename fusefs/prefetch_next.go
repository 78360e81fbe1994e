package fusefs

// Who reads files in two directories of a directory reads those in its others
// next. From the second one on that a reader had to wait in, the directories
// behind it are read ahead too, as far as their trees were read, and more of
// them each time. One whose tree is read only then is read ahead at once, as
// long as what was so fetched is asked for: somebody may only be looking.

const (
	// aheadCredit is how many directories are read ahead as soon as their trees
	// are there, without one of them being asked for.
	aheadCredit = 4
	// aheadProof is in how many directories of one a reader had to wait.
	aheadProof = 2
)

// stream notes that somebody had to wait in directory d of directory over for
// the first time, and returns how many files to read ahead. a.mu is held.
func (a *aheadState) stream(d *aheadDir, over uint64) (window int) {
	o := a.dir(over)
	if o.below++; o.below < aheadProof {
		return d.window
	}
	o.credit = aheadCredit
	d.onwards = true
	return max(d.window, min(aheadFirst<<(3*min(o.below-1, 8)), aheadMost))
}

// following returns small files of the directories after parent in the same
// directory, at most so many.
func (w *workspace) following(parent uint64, most int, room int64) (all []wanted) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	p := w.t.nodes[parent]
	if p == nil || p.parent == nil || !p.parent.isDir() {
		return nil
	}
	e := p.parent.dir.ents[p.name]
	if e == nil {
		return nil
	}
	looked := 0
	for _, next := range p.parent.dir.after(e.cookie) {
		if next.n == nil || !next.n.isDir() || !next.n.dir.loaded {
			continue
		}
		for _, e := range next.n.dir.order {
			if looked++; looked > aheadLook || len(all) >= most || room <= 0 {
				return all
			}
			if key, ok := w.aheadNode(e.n); ok && e.n.size <= aheadSmall && !w.blobs.memory.has(key) {
				all = append(all, wanted{w.t.oidString(&e.n.oid), e.n.size})
				room -= e.n.size
			}
		}
	}
	return all
}

// aheadNode returns the blob of n when it may be read ahead. mu is held.
func (w *workspace) aheadNode(n *node) (key blobKey, ok bool) {
	if n == nil || !n.plainLower() || n.size > aheadLarge {
		return key, false
	}
	return blobKey(n.oid[:len(key)]), true
}

// cameIn reads directory n ahead, whose tree was just read, when others beside
// it are being read.
func (w *workspace) cameIn(n *node) {
	if w.aheadWorker == nil {
		return
	}
	w.mu.RLock()
	over := n.parent
	w.mu.RUnlock()
	if over == nil {
		return
	}
	a := &w.ahead
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.dirs[over.ino]
	if o == nil || o.credit == 0 {
		return
	}
	if w.aheadWorker.post(func() {
		w.mu.Lock()
		n.dir.ahead = true
		w.mu.Unlock()
		w.blobs.fetchMany(w.siblings(n.ino, "", aheadFirst))
	}) {
		o.credit--
	}
}

// asked notes that a file of n, a directory that was read ahead unasked, was
// read.
func (w *workspace) asked(n *node) {
	w.mu.Lock()
	over := n.parent
	n.dir.ahead = false
	w.mu.Unlock()
	if over == nil {
		return
	}
	a := &w.ahead
	a.mu.Lock()
	if o := a.dirs[over.ino]; o != nil {
		o.credit = aheadCredit
	}
	a.mu.Unlock()
}
