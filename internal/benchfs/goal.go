package main

import (
	"fmt"
	"strings"
)

// goal is what is aimed at for a row of ours, as times of another column; zero
// means that there is none.
type goal struct {
	overlay float64 // ours and ours-inside, to overlay
	io      float64 // ours-io, to overlay; the others' goal when it has none of its own
	fuse    float64 // all of ours, to fuse-overlayfs, in addition
}

func (g goal) String() string {
	var parts []string
	if g.overlay > 0 {
		parts = append(parts, fmt.Sprintf("%.2f", g.overlay))
	}
	if g.io > 0 {
		parts = append(parts, fmt.Sprintf("ours-io %.2f", g.io))
	}
	if g.fuse > 0 {
		parts = append(parts, fmt.Sprintf("%.2f of fuse-overlayfs", g.fuse))
	}
	return strings.Join(parts, ", ")
}

// missed tells whether the median of a column of ours is above what is aimed
// at. As in the table, hundredths count.
func (g goal) missed(column string, median map[string]float64) bool {
	took, ok := median[column]
	if !ok || !strings.HasPrefix(column, "ours") {
		return false
	}
	limit := g.overlay
	if column == "ours-io" && g.io > 0 {
		limit = g.io
	}
	above := func(base string, limit float64) bool {
		return limit > 0 && median[base] > 0 && took/median[base] >= limit+0.005
	}
	return above("overlay", limit) || above("fuse-overlayfs", g.fuse)
}
