package network

import "fmt"

// Mode says what network a container has.
type Mode string

// Modes.
const (
	// Full reaches everything but the host itself; see the package comment.
	Full Mode = "full"
	// None has a loopback interface and nothing else.
	None Mode = "none"
	// Allow reaches what the rules list; everything else is refused at once.
	Allow Mode = "allow"
	// Host is the host's own network namespace.
	Host Mode = "host"
)

// ParseMode reads a mode; "" is Full.
func ParseMode(s string) (Mode, error) {
	switch m := Mode(s); m {
	case "":
		return Full, nil
	case Full, None, Allow, Host:
		return m, nil
	}
	return "", fmt.Errorf("%q is not full, none, allow or host", s)
}
