package fusefs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// statx says the same as stat, however fresh it is to be.
func TestStatx(t *testing.T) {
	everywhere(t, map[string]string{"f": "content", "l": "->f", "d/f": ""}, func(t *testing.T, dir string) {
		check := func() {
			t.Helper()
			for _, name := range []string{"f", "l", "d", "d/f"} {
				for _, sync := range []int{unix.AT_STATX_SYNC_AS_STAT, unix.AT_STATX_FORCE_SYNC, unix.AT_STATX_DONT_SYNC} {
					st := lstat(t, filepath.Join(dir, name))
					var x unix.Statx_t
					must(t, unix.Statx(unix.AT_FDCWD, filepath.Join(dir, name), sync|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME|unix.STATX_MNT_ID, &x))
					if x.Mask&unix.STATX_BASIC_STATS != unix.STATX_BASIC_STATS || x.Mask&unix.STATX_MNT_ID == 0 {
						t.Errorf("%s: mask %#x", name, x.Mask)
					}
					got := fmt.Sprint(x.Ino, x.Mode, x.Nlink, x.Uid, x.Gid, x.Size, x.Blocks, x.Blksize, x.Mtime.Sec, x.Mtime.Nsec, x.Ctime.Sec, x.Ctime.Nsec)
					want := fmt.Sprint(st.Ino, st.Mode, st.Nlink, st.Uid, st.Gid, st.Size, st.Blocks, st.Blksize, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec)
					if got != want {
						t.Errorf("%s, %#x: statx %s, stat %s", name, sync, got, want)
					}
				}
			}
		}
		check()
		must(t, writeAt(filepath.Join(dir, "f"), []byte("more"), 5000, 0))
		must(t, os.Chmod(filepath.Join(dir, "d/f"), 0o600))
		check()
	})
}

// openat2 keeps to what it is told.
func TestResolve(t *testing.T) {
	results := map[string]string{}
	files := map[string]string{"d/f": "x", "d/in": "->f", "d/up": "->../f", "d/abs": "->/etc", "d/sub/f": "y", "d/sub/back": "->../f", "f": "z"}
	everywhere(t, files, func(t *testing.T, dir string) {
		d, err := unix.Open(filepath.Join(dir, "d"), unix.O_PATH|unix.O_DIRECTORY, 0)
		must(t, err)
		defer unix.Close(d)
		for _, resolve := range []uint64{
			0, unix.RESOLVE_BENEATH, unix.RESOLVE_IN_ROOT, unix.RESOLVE_NO_SYMLINKS, unix.RESOLVE_NO_MAGICLINKS, unix.RESOLVE_NO_XDEV,
			unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
		} {
			for _, flags := range []uint64{unix.O_RDONLY, unix.O_RDWR, unix.O_PATH | unix.O_NOFOLLOW, unix.O_CREAT | unix.O_RDWR} {
				for _, path := range []string{"f", "in", "up", "abs", "../f", "sub/f", "sub/back", "sub/../f", "sub/../../f", "/f", "none", ".", "sub/../.."} {
					if path == "/f" && resolve&(unix.RESOLVE_BENEATH|unix.RESOLVE_IN_ROOT) == 0 {
						continue // that is in the root of the machine
					}
					how := unix.OpenHow{Flags: flags, Resolve: resolve}
					if flags&unix.O_CREAT != 0 {
						how.Mode = 0o644
					}
					fd, err := openat2(d, path, &how)
					key, got := fmt.Sprintf("%s flags %#x resolve %#x", path, flags, resolve), fmt.Sprint(err)
					if err == nil {
						unix.Close(fd)
					}
					if want, ok := results[key]; !ok {
						results[key] = got
					} else if got != want {
						t.Errorf("%s: %s, in a plain directory %s", key, got, want)
					}
				}
			}
			_ = os.Remove(filepath.Join(dir, "d/none")) // where it was made
		}
	})
	if got := results[fmt.Sprintf("up flags 0x0 resolve %#x", unix.RESOLVE_BENEATH)]; got != unix.EXDEV.Error() {
		t.Errorf("out of the directory: %q", got)
	}
}

// Names are bytes, up to 255 of them.
func TestNames(t *testing.T) {
	odd := []string{
		strings.Repeat("n", 255), strings.Repeat("\xff", 255), strings.Repeat("\u00e4", 127), "\xff\xfe", "\xc3", "a\nb", "\x01\x7f", " ", "-", "...", "\\", "\"",
		"e\u0301", "\u00e9", strings.Repeat(".", 255),
	}
	files := map[string]string{"f": "x"}
	for i, name := range odd {
		if i != 0 && !strings.HasPrefix(name, "....") { // those are made by the test alone
			files["tree/"+name] = name
		}
	}
	eachKind(t, files, func(t *testing.T, r *rig, dir string) {
		p := func(name string) string { return filepath.Join(dir, name) }
		names := func(sub string) []string {
			entries, err := os.ReadDir(p(sub))
			must(t, err)
			var all []string
			for _, e := range entries {
				all = append(all, e.Name())
			}
			return all
		}
		for _, name := range names("tree") {
			wantFile(t, p("tree/"+name), name)
		}
		must(t, os.Mkdir(p("d"), 0o755))
		for i, name := range odd {
			switch i % 4 {
			case 0:
				must(t, os.WriteFile(p("d/"+name), []byte(name), 0o644))
			case 1:
				must(t, os.WriteFile(p("d/tmp"), []byte(name), 0o644))
				must(t, os.Rename(p("d/tmp"), p("d/"+name)))
			case 2:
				must(t, os.WriteFile(p("other"), []byte(name), 0o644))
				must(t, os.Link(p("other"), p("d/"+name)))
				must(t, os.Remove(p("other")))
			case 3:
				must(t, os.Mkdir(p("d/"+name), 0o755))
				must(t, os.WriteFile(p("d/"+name+"/"+name), []byte(name), 0o644))
			}
		}
		check := func() {
			t.Helper()
			want := slices.Clone(odd)
			slices.Sort(want)
			if got := names("d"); !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
			for i, name := range odd {
				path := p("d/" + name)
				if i%4 == 3 {
					path += "/" + name
				}
				wantFile(t, path, name)
			}
		}
		check()
		r.freeze()
		r.unmount()
		r.mount()
		check()
		long := p(strings.Repeat("n", 256))
		for what, err := range map[string]error{
			"stat":        unix.Lstat(long, new(unix.Stat_t)),
			"open":        openClose(long, unix.O_RDONLY, nil),
			"create":      openClose(long, unix.O_CREAT|unix.O_WRONLY, nil),
			"mkdir":       unix.Mkdir(long, 0o755),
			"mkfifo":      unix.Mkfifo(long, 0o644),
			"symlink":     unix.Symlink("x", long),
			"link":        unix.Link(p("f"), long),
			"rename to":   unix.Rename(p("f"), long),
			"rename from": unix.Rename(long, p("g")),
			"unlink":      unix.Unlink(long),
			"rmdir":       unix.Rmdir(long),
			"below":       unix.Lstat(long+"/x", new(unix.Stat_t)),
		} {
			if err != unix.ENAMETOOLONG {
				t.Errorf("%s of a name of 256 bytes: %v", what, err)
			}
		}
	})
}

// Directories are as deep as who goes step by step makes them.
func TestDeeperThanAPath(t *testing.T) {
	const depth = 60
	name := strings.Repeat("n", 200)
	eachKind(t, map[string]string{"top/f": "x"}, func(t *testing.T, r *rig, dir string) {
		// descend goes down from top, step by step, and returns where it comes to.
		descend := func(top string, mk bool) int {
			t.Helper()
			fd, err := unix.Open(filepath.Join(dir, top), unix.O_RDONLY|unix.O_DIRECTORY, 0)
			must(t, err)
			for range depth {
				if mk {
					must(t, unix.Mkdirat(fd, name, 0o755))
				}
				next, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
				must(t, err)
				unix.Close(fd)
				fd = next
			}
			return fd
		}
		content := func(fd int) string {
			t.Helper()
			f, err := unix.Openat(fd, "deep", unix.O_RDONLY, 0)
			must(t, err)
			defer unix.Close(f)
			b := make([]byte, 100)
			n, err := unix.Read(f, b)
			must(t, err)
			return string(b[:n])
		}
		fd := descend("top", true)
		f, err := unix.Openat(fd, "deep", unix.O_CREAT|unix.O_RDWR, 0o644)
		must(t, err)
		_, err = unix.Write(f, []byte("far down"))
		must(t, err)
		unix.Close(f)
		unix.Close(fd)
		r.dirtyFiles()
		r.freeze()
		must(t, os.Rename(filepath.Join(dir, "top"), filepath.Join(dir, "moved")))
		r.unmount()
		r.mount()
		fd = descend("moved", false)
		if got := content(fd); got != "far down" {
			t.Errorf("%q", got)
		}
		must(t, unix.Renameat(fd, "deep", unix.AT_FDCWD, filepath.Join(dir, "out")))
		unix.Close(fd)
		wantFile(t, filepath.Join(dir, "out"), "far down")
		must(t, os.RemoveAll(filepath.Join(dir, "moved")))
	})
}

// openat2 tries again when a rename or mount anywhere on the machine came in
// between, which the kernel tells with EAGAIN.
func openat2(dir int, path string, how *unix.OpenHow) (fd int, err error) {
	for range 100 {
		if fd, err = unix.Openat2(dir, path, how); !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return fd, err
}
