package fusefs

// The dirty set: which names changed since the last mark. It is kept as
// records are applied, never found by walking, and it is a function of the
// records alone, so that replay gives the same set.

// changed says that directory p has, or no longer has, another node under
// name since now.
func (t *tree) changed(p *node, name string, now int64) {
	p.mtime, p.ctime = now, now
	t.dirtyName(p, name)
}

// dirtyContent says that the bytes of n change.
func (t *tree) dirtyContent(n *node) {
	n.dirtySeq = t.seq
	t.dirtyNames(n)
}

func (t *tree) dirtyNames(n *node) { n.eachLink(t.dirtyName) }

func (t *tree) dirtyName(p *node, name string) {
	if p.dir.dirty == nil {
		p.dir.dirty = map[string]uint64{}
	}
	p.dir.dirty[name] = t.seq
	for n := p; ; n = n.parent {
		n.flags |= touched
		if n.parent == nil {
			return
		}
		if n.dir.below == 0 {
			t.register(n)
		}
		n.dir.below = t.seq
	}
}

// register puts directory n into its parent's dirty names.
func (t *tree) register(n *node) {
	d := n.parent.dir
	if _, ok := d.dirty[n.name]; ok {
		return
	}
	if d.dirty == nil {
		d.dirty = map[string]uint64{}
	}
	d.dirty[n.name] = 0
}

// clean forgets everything that became dirty up to record seq.
func (t *tree) clean(seq uint64) { t.cleanDir(t.root.dir, seq) }

// cleanDir returns the number of the last change that is left.
func (t *tree) cleanDir(d *dir, seq uint64) uint64 {
	var last uint64
	for name, at := range d.dirty {
		if at <= seq {
			at = 0
		}
		var below uint64
		if c := d.get(name); c != nil && c.isDir() {
			if c.dir.below != 0 {
				c.dir.below = t.cleanDir(c.dir, seq)
			}
			if c.dir.whole <= seq {
				c.dir.whole = 0
			}
			below = c.dir.below
		}
		if at == 0 && below == 0 {
			delete(d.dirty, name)
		} else {
			d.dirty[name] = at
		}
		last = max(last, at, below)
	}
	if len(d.dirty) == 0 {
		d.dirty = nil
	}
	return last
}
