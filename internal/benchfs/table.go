package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// result is one row of the JSON document.
type result struct {
	Name    string               `json:"name"`
	Goal    string               `json:"goal,omitempty"`
	Median  map[string]float64   `json:"seconds"`
	Ratio   map[string]float64   `json:"ratio,omitempty"`  // to overlay
	Missed  []string             `json:"missed,omitempty"` // columns above the goal
	Samples map[string][]float64 `json:"samples"`
}

// report is the JSON document.
type report struct {
	Version    string                    `json:"version"`
	Kernel     string                    `json:"kernel"`
	CPUs       int                       `json:"cpus"`
	Backing    string                    `json:"backing"`
	Transport  string                    `json:"transport"`
	Columns    []string                  `json:"columns"`
	Rounds     int                       `json:"rounds"`
	SlowRounds int                       `json:"slow_rounds"`
	Rows       []result                  `json:"rows"`
	Figures    []figure                  `json:"figures,omitempty"`
	Requests   map[string]map[string]int `json:"requests,omitempty"`
	Failed     []string                  `json:"failed,omitempty"`
	Reasons    []reason                  `json:"reasons,omitempty"`
}

// median of values; it sorts a copy.
func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	switch n := len(v); {
	case n == 0:
		return 0
	case n%2 == 0:
		return (v[n/2-1] + v[n/2]) / 2
	default:
		return v[n/2]
	}
}

// results makes the rows of what was measured.
func (b *bench) results() []result {
	var rows []result
	for _, w := range workloads() {
		got := b.samples[w.name]
		if !b.only.MatchString(w.name) {
			continue
		}
		r := result{Name: w.name, Goal: w.goal.String(), Samples: got, Median: map[string]float64{}, Ratio: map[string]float64{}}
		for column, values := range got {
			r.Median[column] = median(values)
		}
		if base := r.Median["overlay"]; base > 0 {
			for column, m := range r.Median {
				r.Ratio[column] = m / base
			}
		}
		for _, c := range b.columns {
			if w.goal.missed(c, r.Median) {
				r.Missed = append(r.Missed, c)
			}
		}
		rows = append(rows, r)
	}
	return rows
}

func (b *bench) report() report {
	version, _ := exec.Command(b.gitEnv, "version").Output()
	return report{Version: strings.TrimSpace(string(version)), Kernel: kernel(), CPUs: runtime.NumCPU(), Backing: b.backing,
		Transport: b.transport, Columns: b.columns, Rounds: b.rounds, SlowRounds: min(b.rounds, b.slowRounds), Rows: b.results(), Figures: b.figs, Requests: b.counts, Failed: b.failed, Reasons: b.reasons}
}

func kernel() string {
	var u syscall.Utsname
	if syscall.Uname(&u) != nil {
		return "unknown"
	}
	var s strings.Builder
	for _, c := range u.Release {
		if c == 0 {
			break
		}
		s.WriteByte(byte(c))
	}
	return s.String()
}

func (b *bench) print(w io.Writer) error {
	r := b.report()
	if b.json {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	fmt.Fprintf(w, "%s, Linux %s, %d processors, backing %s, transport of ours: %s\n", r.Version, r.Kernel, r.CPUs, r.Backing, r.Transport)
	fmt.Fprintf(w, "medians of %d rounds, of slow rows %d: seconds, and in brackets times overlay\n", r.Rounds, r.SlowRounds)
	fmt.Fprintf(w, "a goal is for ours, in times overlay; ! marks what misses it\n\n")
	table(w, r)
	figureLines(w, r.Figures)
	requests(w, r.Requests)
	return nil
}

func table(w io.Writer, r report) {
	fmt.Fprintf(w, "%-26s", "")
	for _, c := range r.Columns {
		fmt.Fprintf(w, "%17s", c)
	}
	fmt.Fprintf(w, "   %s\n", "goal")
	for _, row := range r.Rows {
		fmt.Fprintf(w, "%-26s", row.Name)
		for _, c := range r.Columns {
			fmt.Fprintf(w, "%17s", cell(row, c))
		}
		fmt.Fprintf(w, "   %s\n", row.Goal)
	}
	for _, why := range r.Reasons {
		fmt.Fprintf(w, "- %s in %s: %s\n", why.Row, why.Column, why.Text)
	}
	fmt.Fprintln(w)
}

// figureLines prints the second section.
func figureLines(w io.Writer, figures []figure) {
	for _, f := range figures {
		goal := ""
		if f.Goal > 0 {
			goal = fmt.Sprintf("   goal %g", f.Goal)
			if f.Value > f.Goal {
				goal += " !"
			}
		}
		fmt.Fprintf(w, "%-62s %12s%s\n", f.Name, f.Text, goal)
	}
}

// cell is "seconds (ratio)", with "!" where the goal is missed.
func cell(row result, column string) string {
	m, ok := row.Median[column]
	if !ok {
		return "-"
	}
	text := fmt.Sprintf("%.3f", m)
	if m >= 10 {
		text = fmt.Sprintf("%.1f", m)
	}
	if ratio, ok := row.Ratio[column]; ok {
		text += fmt.Sprintf(" (%.2f)", ratio)
	}
	if slices.Contains(row.Missed, column) {
		text += "!"
	}
	return text
}

// requests prints the counts of FUSE requests, the most frequent kinds first.
func requests(w io.Writer, counts map[string]map[string]int) {
	if len(counts) == 0 {
		return
	}
	fmt.Fprintf(w, "\nFUSE requests in one session, the warm-up and all repetitions together\n")
	for _, row := range slices.Sorted(keys(counts)) {
		kinds := slices.SortedFunc(keys(counts[row]), func(a, b string) int { return counts[row][b] - counts[row][a] })
		var parts []string
		for _, k := range kinds {
			parts = append(parts, fmt.Sprintf("%s %d", k, counts[row][k]))
		}
		fmt.Fprintf(w, "%-40s %s\n", row, strings.Join(parts, ", "))
	}
}
