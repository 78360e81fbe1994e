package objects

import (
	"strings"
	"unicode/utf8"
)

// UnsafeName reports whether git refuses to check out a path with this
// component on some filesystem: it is no name at all, or it is, or could be
// taken for, the git directory by a filesystem that folds case, drops trailing
// dots and spaces, knows streams and short names (NTFS), or ignores invisible
// characters (HFS+).
func UnsafeName(name string) bool {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return true
	}
	return isNTFSDotGit(name) || strings.EqualFold(hfsVisible(name), ".git")
}

// UnsafeLink reports whether git refuses a symbolic link of this name: one that
// could be taken for .gitmodules.
func UnsafeLink(name string) bool {
	if UnsafeName(name) || strings.EqualFold(hfsVisible(name), ".gitmodules") {
		return true
	}
	base, _, _ := strings.Cut(name, ":")
	base = strings.ToLower(strings.TrimRight(base, ". "))
	// NTFS numbers short names after the first four only by a hash of the name.
	return base == ".gitmodules" || len(base) == 8 &&
		(strings.HasPrefix(base, "gitmod~") || strings.HasPrefix(base, "gi7eba~") || strings.HasPrefix(base, "gi7eb~"))
}

// isNTFSDotGit looks at every part between backslashes, which separate names
// there, and ignores a stream after a colon.
func isNTFSDotGit(name string) bool {
	for part := range strings.SplitSeq(name, `\`) {
		part, _, _ = strings.Cut(part, ":")
		part = strings.TrimRight(part, ". ")
		if strings.EqualFold(part, ".git") || strings.EqualFold(part, "git~1") {
			return true
		}
	}
	return false
}

// hfsVisible drops the characters that HFS+ ignores when it compares names.
func hfsVisible(name string) string {
	if !utf8.ValidString(name) {
		return name
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 0x200c && r <= 0x200f, r >= 0x202a && r <= 0x202e,
			r >= 0x206a && r <= 0x206f, r == 0xfeff:
			return -1
		}
		return r
	}, name)
}
