package fusefs

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/git-env/git-env/fusefs/layer"
)

// BenchmarkReplay replays the log of a workspace with 20,000 new files in 200
// directories, and that of the layer that it is merged to.
func BenchmarkReplay(b *testing.B) {
	dir := b.TempDir()
	l, err := layer.Create(filepath.Join(dir, "l1"), layer.Meta{ID: "l1", FirstIno: newIno + 1})
	must(b, err)
	ino := uint64(newIno)
	n := 0
	put := func(recs ...layer.Record) {
		must(b, l.Append(recs...))
		n += len(recs)
	}
	for d := range 200 {
		ino++
		p := ino
		put(layer.Record{Kind: layer.KindCreate, Time: 1e18, Ino: p, Parent: rootIno, Name: fmt.Sprint("directory", d), Mode: 0o40755})
		for f := range 100 {
			ino++
			put(layer.Record{Kind: layer.KindCreate, Time: 1e18, Ino: ino, Parent: p, Name: fmt.Sprintf("some-file-%d.js", f), Mode: 0o100644},
				layer.Record{Kind: layer.KindDataUp, Time: 1e18, Ino: ino},
				layer.Record{Kind: layer.KindSetattr, Time: 1e18, Ino: ino, Mask: layer.SetMode | layer.SetMtime, Mode: 0o644, Mtime: 1e18},
				layer.Record{Kind: layer.KindSetattr, Time: 1e18, Ino: ino, Mask: layer.SetUID | layer.SetGID},
				layer.Record{Kind: layer.KindDirty, Time: 1e18, Ino: ino})
		}
	}
	put(layer.Record{Kind: layer.KindMark, Time: 1e18, Seq: uint64(n), Commit: "c"})
	must(b, l.Close())
	tree := fmt.Sprintf("%040d", 0)
	must(b, merge(MergeOptions{LayerDir: dir, Tree: tree, Run: []string{"l1"}, Out: "m1"}))
	for _, id := range []string{"l1", "m1"} {
		b.Run(id, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				t, err := newTree(tree, 0, 0, 0)
				must(b, err)
				_, err = openStack(dir, []string{id}, t, false)
				must(b, err)
			}
		})
	}
}
