package environment

import "time"

// laps times the parts of something, for the log.
type laps struct {
	last  time.Time
	parts []any // name, duration, name, duration, …
}

func startLaps() *laps { return &laps{last: time.Now()} }

// lap ends the part that is under way.
func (l *laps) lap(name string) {
	now := time.Now()
	l.parts = append(l.parts, name, now.Sub(l.last).Round(100*time.Microsecond))
	l.last = now
}
