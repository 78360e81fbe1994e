package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// All data is made by these functions and is the same in every run.

const (
	treeFiles    = 20_000
	manyFiles    = 100_000
	changeFiles  = 2_000 // lower files that chmod, append and rename work on
	createFiles  = 10_000
	npmPackages  = 300
	npmFiles     = 40 // files of each package
	sqliteSingle = 1_000
	sqliteBulk   = 200_000
)

// source is a generator that depends on nothing but seed.
func source(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// text writes n bytes, or a few more, of lines that look like source code.
func text(w *bytes.Buffer, r *rand.Rand, n int) {
	for w.Len() < n {
		fmt.Fprintf(w, "func item%d(x int) int { return x*%d + %d }\n", r.IntN(1e6), r.IntN(1000), r.IntN(1000))
	}
}

// sizes are those of small source files; the mean is about four KiB.
func sizes() []int { return []int{200, 800, 1500, 3000, 4000, 6000, 12_000} }

// nested is the path of file i: 40 in a directory, 25 directories in one above.
func nested(top string, i int) string {
	return fmt.Sprintf("%s/d%02d/e%03d/f%05d.go", top, i/1000, i/40, i)
}

// fileMaker is called once for each file of a set.
type fileMaker func(name string, data []byte) error

// small makes n small source files below top.
func small(top string, n int, sizes []int, seed uint64, add fileMaker) error {
	r := source(seed)
	var b bytes.Buffer
	for i := range n {
		b.Reset()
		text(&b, r, sizes[r.IntN(len(sizes))])
		if err := add(nested(top, i), b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// repository makes a bare repository with one commit of the files that fill
// makes, without ever writing them to a directory.
func repository(ctx context.Context, env []string, dir string, fill func(fileMaker) error) error {
	if _, err := (command{env: env, args: []string{"git", "init", "-q", "--bare", "-b", "main", dir}}).output(ctx); err != nil {
		return err
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(stream(w, fill)) }()
	_, err := command{env: env, stdin: r, args: []string{"git", "-C", dir, "fast-import", "--quiet", "--depth=0"}}.output(ctx)
	return err
}

// stream writes the commit for git fast-import.
func stream(w io.Writer, fill func(fileMaker) error) error {
	b := bufio.NewWriterSize(w, 1<<20)
	fmt.Fprintf(b, "commit refs/heads/main\ncommitter Bench <bench@example.com> 1700000000 +0000\ndata 5\nfiles\n")
	add := func(name string, data []byte) error {
		fmt.Fprintf(b, "M 100644 inline %s\ndata %d\n", name, len(data))
		_, err := b.Write(data)
		return err
	}
	if err := add(".gitignore", []byte("/out/\n")); err != nil {
		return err
	}
	if err := fill(add); err != nil {
		return err
	}
	return b.Flush()
}

// fillTiny is a tree for work that brings its own files.
func fillTiny(add fileMaker) error { return small("tree", 10, sizes(), 1, add) }

func fillTree(add fileMaker) error {
	if err := small("tree", treeFiles, sizes(), 2, add); err != nil {
		return err
	}
	for i, top := range []string{"chmod", "append", "rename"} {
		if err := small(top, changeFiles, sizes(), uint64(3+i), add); err != nil {
			return err
		}
	}
	return nil
}

func fillMany(add fileMaker) error { return small("many", manyFiles, []int{300, 900, 2000}, 6, add) }

// fillCount makes n files with one content, for what depends on their number.
func fillCount(n int) func(fileMaker) error {
	return func(add fileMaker) error {
		for i := range n {
			if err := add(fmt.Sprintf("t/a%03d/b%03d/f%02d", i/10_000, i/100%100, i%100), []byte("content\n")); err != nil {
				return err
			}
		}
		return nil
	}
}

// writeTar writes the archive that is unpacked.
func writeTar(name string) error {
	return create(name, func(w io.Writer) error {
		t := tar.NewWriter(w)
		if err := small("u", treeFiles, sizes(), 7, tarFile(t)); err != nil {
			return err
		}
		return t.Close()
	})
}

// tarFile adds files to t.
func tarFile(t *tar.Writer) fileMaker {
	return func(name string, data []byte) error {
		if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
			return err
		}
		_, err := t.Write(data)
		return err
	}
}

// writePackages makes npm packages in dir, as "npm pack" would.
func writePackages(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for i := range npmPackages {
		err := create(filepath.Join(dir, fmt.Sprintf("p%03d.tgz", i)), func(w io.Writer) error { return npmPackage(w, i) })
		if err != nil {
			return err
		}
	}
	return nil
}

func npmPackage(w io.Writer, i int) error {
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	add := tarFile(t)
	err := add("package/package.json", fmt.Appendf(nil, `{"name":"p%03d","version":"1.0.0","main":"lib/f0.js"}`, i))
	r := source(uint64(100 + i))
	var b bytes.Buffer
	for j := 0; j < npmFiles && err == nil; j++ {
		b.Reset()
		text(&b, r, sizes()[r.IntN(len(sizes()))])
		err = add(fmt.Sprintf("package/lib/f%d.js", j), b.Bytes())
	}
	if err != nil {
		return err
	}
	if err := t.Close(); err != nil {
		return err
	}
	return z.Close()
}

// create writes a file through a buffer.
func create(name string, fill func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	b := bufio.NewWriterSize(f, 1<<20)
	if err := fill(b); err != nil {
		return err
	}
	if err := b.Flush(); err != nil {
		return err
	}
	return f.Close()
}

// moduleRepository makes a repository of the tracked files of the Go module in
// from, with what it needs from other modules below vendor/: the build then
// reads everything from the tree.
func moduleRepository(ctx context.Context, env []string, from, dir string) error {
	src := dir + ".src"
	defer os.RemoveAll(src)
	script := `set -e
git -C "$1" archive --format=tar HEAD | (mkdir "$2" && tar x -C "$2")
cd "$2"
GOFLAGS= go mod vendor
printf '/out/\n' >>.gitignore
rm -rf vendor/*/testdata
git init -q -b main && git add -A -f && git -c gc.auto=0 commit -q -m files
git clone -q --bare . "$3"`
	// The user's module cache is read; everything else is as in the sessions.
	env = append(env, "GOMODCACHE="+goModCache(ctx))
	_, err := command{env: env, args: []string{"sh", "-c", script, "sh", from, src, dir}}.output(ctx)
	return err
}

func goModCache(ctx context.Context) string {
	out, err := command{args: []string{"go", "env", "GOMODCACHE"}}.output(ctx)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace([]byte(out)))
}
