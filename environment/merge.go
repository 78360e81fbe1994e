package environment

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/git-env/git-env/fusefs"
	"github.com/git-env/git-env/fusefs/layer"
	"github.com/git-env/git-env/notes"
)

// Layers of a stack that got deep, or whose logs got long, are merged into one
// in the background. What is mounted goes on with the old ones; when it is
// mounted the next time, or forked, an environment takes the merged layer
// instead: its env.json names that from then on. The old layers go when nobody
// names them any more.
//
// A crash leaves, in this order: a directory of a layer without meta, which the
// next daemon removes; a merged layer that no environment names but could, which
// it keeps; old layers that nobody names, which it removes.

const (
	// maxDepth is how many layers a stack may have before some are merged.
	maxDepth = 8
	// longLog is the size in bytes from which on a log may be too long for what
	// it says, which is guessed as nodeBytes for each file or directory.
	longLog   = 4 << 20
	nodeBytes = 100
	// mergedPrefix is what the ids of merged layers begin with.
	mergedPrefix = "m"
)

// merging is what an engine knows of merged layers.
type merging struct {
	// naming is held for reading while layers that env.json of one environment
	// names are being named in that of another, or others in their place, and for
	// writing while layers that nobody names are removed. It comes after Env.mu.
	naming sync.RWMutex

	mu     sync.Mutex
	made   map[string][]string // what a merged layer replaces, by id; guarded by mu; nil until read
	making string              // the one that is being made, guarded by mu
	queue  []mergeJob          // guarded by mu
	tried  map[string]bool     // runs that cannot be merged, guarded by mu
	wg     sync.WaitGroup      // of the worker
	busy   bool                // there is a worker, guarded by mu
	ended  bool                // the engine closes, guarded by mu
}

// mergeJob asks for the layers of a stack to be looked at, but for the top.
type mergeJob struct {
	layers []string
	tree   string
	// nodes is how many files and directories there are, 0 for unknown.
	nodes int
}

// mergedLayers returns what the merged layers replace. mu is held.
func (e *Engine) mergedLayers() map[string][]string {
	g := &e.merging
	if g.made != nil {
		return g.made
	}
	g.made, g.tried = map[string][]string{}, map[string]bool{}
	entries, err := os.ReadDir(e.layerDir())
	if err != nil {
		return g.made
	}
	for _, d := range entries {
		if !strings.HasPrefix(d.Name(), mergedPrefix) {
			continue
		}
		if l, err := layer.Open(filepath.Join(e.layerDir(), d.Name()), false); err == nil {
			g.made[d.Name()] = l.Meta().Replaces
		}
	}
	return g.made
}

// adopt returns the stack with merged layers in the place of what they replace.
// The top is never replaced. naming is held until the result is saved.
func (e *Engine) adopt(layers []string) []string {
	e.merging.mu.Lock()
	defer e.merging.mu.Unlock()
	made := e.mergedLayers()
	for {
		next := adoptOne(layers, made)
		if next == nil {
			return layers
		}
		layers = next
	}
}

// adoptOne puts the merged layer that replaces most in, nil when none fits.
func adoptOne(layers []string, made map[string][]string) []string {
	var best []string
	for id, replaces := range made {
		if from, to := findRun(layers[:len(layers)-1], replaces, made); to > from {
			next := slices.Concat(layers[:from], []string{id}, layers[to:])
			if best == nil || len(next) < len(best) {
				best = next
			}
		}
	}
	return best
}

// findRun returns from where to where layers stand for exactly the originals, or
// an empty range: also when one merged layer does that already.
func findRun(layers, originals []string, made map[string][]string) (from, to int) {
	for from := range layers {
		rest := originals
		for to := from; to < len(layers) && len(rest) > 0; to++ {
			part := []string{layers[to]}
			if r, ok := made[layers[to]]; ok {
				part = r
			}
			if len(part) > len(rest) || !slices.Equal(part, rest[:len(part)]) {
				break
			}
			if rest = rest[len(part):]; len(rest) == 0 {
				if _, merged := made[layers[from]]; merged && to == from {
					return 0, 0
				}
				return from, to + 1
			}
		}
	}
	return 0, 0
}

// adoptMerged makes the environment name merged layers in the place of others.
// It is not mounted; v.mu is held.
func (v *Env) adoptMerged() error {
	v.e.merging.naming.RLock()
	defer v.e.merging.naming.RUnlock()
	layers := v.e.adopt(v.st.Layers)
	if len(layers) == len(v.st.Layers) && slices.Equal(layers, v.st.Layers) {
		return nil
	}
	next := *v.st
	next.Layers = layers
	if err := v.e.store.save(&next); err != nil {
		return err
	}
	v.e.log.Info("merged layers", "env", v.st.Name, "before", len(v.st.Layers), "now", len(layers))
	v.st = &next
	v.e.collectSoon()
	return nil
}

// saveFirst writes the env.json of an environment that comes into being, whose
// layers another one names.
func (e *Engine) saveFirst(st *State) error {
	e.merging.naming.RLock()
	defer e.merging.naming.RUnlock()
	st.Layers = e.adopt(st.Layers)
	return e.store.save(st)
}

// tidyLayers looks after a workspace that was just mounted: a log that is long for
// what it says is not to be replayed again and again. v.mu is held.
func (v *Env) tidyLayers(ctx context.Context) {
	stack, err := v.files.Stack(ctx, v.st.ID)
	if n := len(stack.Logs); err == nil && n > 0 && isLong(stack.Logs[n-1], stack.Nodes) {
		_, err = v.freeze(ctx)
	}
	if err != nil {
		v.e.log.Warn("cannot look after the layers", "env", v.st.Name, "err", err)
	}
	v.mergeSoon(stack.Nodes)
}

// isLong reports whether a log may be much longer than what it says about a
// number of files and directories.
func isLong(log int64, nodes int) bool {
	return log > longLog && log/8 > int64(nodes)*nodeBytes
}

// collectSoon has layers that nobody names removed in the background.
func (e *Engine) collectSoon() { e.enqueue(mergeJob{}) }

// mergeSoon has the workspace's layers looked at in the background. v.mu is held.
func (v *Env) mergeSoon(nodes int) {
	if n := len(v.st.Layers); n > 1 {
		v.e.enqueue(mergeJob{layers: slices.Clone(v.st.Layers[:n-1]), tree: v.st.Tree, nodes: nodes})
	}
}

func (e *Engine) enqueue(j mergeJob) {
	g := &e.merging
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return
	}
	// What is asked for again, or of an earlier stage of the same stack, is done once.
	g.queue = slices.DeleteFunc(g.queue, func(o mergeJob) bool {
		return len(o.layers) <= len(j.layers) && slices.Equal(o.layers, j.layers[:len(o.layers)])
	})
	g.queue = append(g.queue, j)
	if !g.busy {
		g.busy = true
		g.wg.Go(e.mergeAll)
	}
}

// mergeAll does what is in the queue.
func (e *Engine) mergeAll() {
	g := &e.merging
	for {
		g.mu.Lock()
		if len(g.queue) == 0 || g.ended {
			g.busy = false
			g.mu.Unlock()
			return
		}
		j := g.queue[0]
		g.queue = g.queue[1:]
		g.mu.Unlock()
		if len(j.layers) == 0 {
			e.collect()
		} else if err := e.mergeOne(e.life, j); err != nil && e.life.Err() == nil {
			e.log.Warn("cannot merge layers", "err", err)
		}
	}
}

// endMerging stops the worker.
func (e *Engine) endMerging() {
	e.merging.mu.Lock()
	e.merging.ended = true
	e.merging.mu.Unlock()
	e.merging.wg.Wait()
}

// mergeOne merges layers of a stack if that is worth while.
func (e *Engine) mergeOne(ctx context.Context, j mergeJob) error {
	stack := e.adopt(append(slices.Clone(j.layers), ""))
	stack = stack[:len(stack)-1]
	sizes := make([]int64, len(stack))
	for i, id := range stack {
		st, err := os.Stat(filepath.Join(e.layerDir(), id, "log"))
		if err != nil {
			return nil //nolint:nilerr // deleted meanwhile
		}
		sizes[i] = st.Size()
	}
	from, to := e.planMerge(stack, sizes, j.nodes)
	if to == from {
		return nil
	}
	id := mergedPrefix + notes.NewID(now())
	g := &e.merging
	g.mu.Lock()
	g.making = id
	g.mu.Unlock()
	err := e.merge(ctx, fusefs.MergeOptions{
		Exe: e.opts.Exe, LayerDir: e.layerDir(), Tree: j.tree, Below: stack[:from], Run: stack[from:to], Out: id,
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.making = ""
	switch {
	case errors.Is(err, fusefs.ErrDamagedRun):
		g.tried[stack[from]] = true
		return nil
	case errors.Is(err, os.ErrNotExist):
		return nil // deleted meanwhile
	case err != nil:
		return err
	}
	l, err := layer.Open(filepath.Join(e.layerDir(), id), false)
	if err != nil {
		return err
	}
	e.mergedLayers()[id] = l.Meta().Replaces
	e.log.Info("made a merged layer", "layer", id, "of", to-from, "below", from)
	return nil
}

// merge holds what it reads.
func (e *Engine) merge(ctx context.Context, o fusefs.MergeOptions) error {
	for _, id := range slices.Concat(o.Below, o.Run) {
		release, err := layer.Hold(filepath.Join(o.LayerDir, id))
		if err != nil {
			return err
		}
		defer release()
		if _, err := os.Stat(filepath.Join(o.LayerDir, id, "meta")); err != nil {
			return err
		}
	}
	log, err := e.openLog()
	if err != nil {
		return err
	}
	defer log.Close()
	o.Log = log
	return fusefs.Merge(ctx, o)
}

// planMerge says which layers to merge: none, as long as the stack is not deep
// and no log is long for the number of files.
//
// Of a deep stack it is the upper part, down to where a layer is more than twice
// as large as all of it. So a large layer at the bottom is not written again for
// every few small ones, and what is in a layer is written again no more than
// once for each time that the stack doubles in size.
func (e *Engine) planMerge(stack []string, sizes []int64, nodes int) (from, to int) {
	const least = 4096 // a layer costs something, however little is in it
	e.merging.mu.Lock()
	defer e.merging.mu.Unlock()
	made := e.mergedLayers()
	for i, id := range stack {
		long := nodes > 0 && isLong(sizes[i], nodes)
		if _, merged := made[id]; long && !merged && !e.merging.tried[id] {
			return i, i + 1
		}
	}
	if len(stack) <= maxDepth {
		return 0, 0
	}
	// Not beyond what cannot be merged.
	bottom, top := 0, len(stack)
	for i, id := range stack {
		if e.merging.tried[id] {
			if len(stack)-i > i {
				bottom = i + 1
			} else {
				top = min(top, i)
			}
		}
	}
	if top-bottom < 2 {
		return 0, 0
	}
	from = top - 2
	sum := sizes[top-1] + sizes[top-2] + 2*least
	for from > bottom && sizes[from-1]+least <= 2*sum {
		from--
		sum += sizes[from] + least
	}
	return from, top
}

// collect removes layers that no environment names, and merged ones that none
// could. It waits for nobody: what it cannot do now is done the next time.
func (e *Engine) collect() {
	if !e.merging.naming.TryLock() {
		return
	}
	defer e.merging.naming.Unlock()
	if err := e.dropOrphanLayers(); err != nil {
		e.log.Warn("cannot remove old layers", "err", err)
	}
}

// dropOrphanLayers removes layers that no environment refers to. Layers are
// named in env.json before they are written, so what is not named is garbage;
// when any environment cannot be read nothing is removed. naming is held for
// writing, or nobody else is there yet.
func (e *Engine) dropOrphanLayers() error {
	entries, err := os.ReadDir(e.layerDir())
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	stacks, err := e.stacks("")
	if err != nil {
		return nil //nolint:nilerr // an unreadable environment may own any layer
	}
	keep := e.wantedLayers(stacks)
	for _, d := range entries {
		if !keep[d.Name()] {
			if err := e.removeLayer(d.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

// wantedLayers are those that the stacks name, merged ones that could take the
// place of some, and the one that is being made.
func (e *Engine) wantedLayers(stacks [][]string) map[string]bool {
	e.merging.mu.Lock()
	defer e.merging.mu.Unlock()
	keep := map[string]bool{e.merging.making: true}
	for _, s := range stacks {
		for _, l := range s {
			keep[l] = true
		}
	}
	made := e.mergedLayers()
	for id, replaces := range made {
		if keep[id] {
			continue
		}
		for _, s := range stacks {
			if from, to := findRun(s[:len(s)-1], replaces, made); to > from {
				keep[id] = true
				break
			}
		}
	}
	return keep
}

// removeLayer removes a layer, unless somebody is reading it: then it is garbage
// for the next time.
func (e *Engine) removeLayer(id string) error {
	if id != filepath.Base(id) {
		return nil
	}
	err := layer.Remove(filepath.Join(e.layerDir(), id))
	if errors.Is(err, layer.ErrInUse) {
		return nil
	}
	if err == nil {
		e.merging.mu.Lock()
		delete(e.mergedLayers(), id)
		e.merging.mu.Unlock()
	}
	return err
}

// stacks lists the layers of all environments but except.
func (e *Engine) stacks(except string) ([][]string, error) {
	names, err := e.store.Names()
	if err != nil {
		return nil, err
	}
	var stacks [][]string
	for _, n := range names {
		if n == except {
			continue
		}
		st, err := e.store.Load(n)
		if errors.Is(err, ErrNoEnv) {
			continue // deleted just now
		}
		if st == nil {
			return nil, err
		}
		stacks = append(stacks, st.Layers)
	}
	return stacks, nil
}

// dropLayers removes the layers that no other environment has. When one cannot
// be read, all stay.
func (e *Engine) dropLayers(st *State) error {
	e.merging.naming.Lock()
	defer e.merging.naming.Unlock()
	stacks, err := e.stacks(st.Name)
	if err != nil {
		e.log.Warn("layers are kept: an environment cannot be read", "err", err)
		return nil
	}
	keep := e.wantedLayers(stacks)
	e.merging.mu.Lock()
	candidates := slices.Clone(st.Layers)
	for id := range e.mergedLayers() {
		candidates = append(candidates, id)
	}
	e.merging.mu.Unlock()
	for _, l := range candidates {
		if !keep[l] {
			if err := e.removeLayer(l); err != nil {
				return err
			}
		}
	}
	return nil
}
