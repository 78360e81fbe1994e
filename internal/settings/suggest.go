package settings

import "strings"

// suggest returns the setting that a name was perhaps meant to be; "" when none
// is near.
func suggest(name string) string {
	section, service := "env.", ""
	if parts := strings.SplitN(name, ".", 2); len(parts) == 2 && strings.EqualFold(parts[0], "service") {
		section = "service." + anyService + "."
		if i := strings.LastIndexByte(parts[1], '.'); i >= 0 {
			service, name = parts[1][:i], section+parts[1][i+1:]
		} else {
			return ""
		}
	}
	best, bestAt := "", 3
	for _, k := range Schema() {
		if d := distance(strings.ToLower(name), strings.ToLower(k.Name)); d < bestAt && d*3 <= len(k.Name)-len(section)+1 {
			best, bestAt = k.named(service), d
		}
	}
	return best
}

// distance is the number of letters to add, drop, change or swap with a
// neighbour to get from one word to another.
func distance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
