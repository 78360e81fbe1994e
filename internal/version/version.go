package version

import "runtime/debug"

// stamped is set by the linker: -ldflags "-X …/internal/version.stamped=v1.2".
var stamped string

// String returns the version: what the build was stamped with, else the
// module's, else "devel".
func String() string {
	if stamped != "" {
		return stamped
	}
	if bi, ok := debug.ReadBuildInfo(); ok && bi.Main.Version != "" && bi.Main.Version != "(devel)" {
		return bi.Main.Version
	}
	return "devel"
}
