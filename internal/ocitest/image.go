package ocitest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// File is an entry of an image.
type File struct {
	Name string // relative to the root; a trailing slash makes a directory
	Mode int64  // 0 means 0644, or 0755 for a directory
	Data []byte
	Link string // target of a symbolic link
}

// Config says what an image is to be.
type Config struct {
	// Arch and OS default to this machine's.
	Arch, OS   string
	Env        []string
	WorkingDir string
	User       string
	// Layers are put on top of the base layer, in order.
	Layers [][]File
	// Bare leaves the base layer out.
	Bare bool
}

// applets are the commands that the base layer has links for.
const applets = "sh ls cat echo sleep true false id env pwd mkdir rm rmdir mv cp ln chmod chown touch test stat wc head tail grep sed sort tr seq date kill ps mount umount df du dd find xargs printf readlink tty stty nohup setsid hostname uname which wget nc adduser addgroup mknod sync yes timeout tee ip"

// Busybox returns the path of the host's statically linked busybox.
func Busybox() (string, error) {
	for _, path := range []string{"/bin/busybox", "/usr/bin/busybox"} {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath("busybox")
	if err != nil {
		return "", fmt.Errorf("busybox (package busybox-static): %w", err)
	}
	return path, nil
}

// Image builds an image whose base layer has busybox, its applets, and the files
// every root needs.
func Image(c Config) (v1.Image, error) {
	if c.Arch == "" {
		c.Arch = goruntime.GOARCH
	}
	if c.OS == "" {
		c.OS = "linux"
	}
	layers := c.Layers
	if !c.Bare {
		base, err := baseLayer()
		if err != nil {
			return nil, err
		}
		layers = append([][]File{base}, layers...)
	}
	img := v1.Image(empty.Image)
	for _, files := range layers {
		layer, err := makeLayer(files)
		if err != nil {
			return nil, err
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			return nil, fmt.Errorf("build image: %w", err)
		}
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("build image: %w", err)
	}
	file = file.DeepCopy()
	file.Architecture, file.OS = c.Arch, c.OS
	file.Config.Env, file.Config.WorkingDir, file.Config.User = c.Env, c.WorkingDir, c.User
	if img, err = mutate.ConfigFile(img, file); err != nil {
		return nil, fmt.Errorf("build image: %w", err)
	}
	return img, nil
}

// Index builds an index of images.
func Index(images ...v1.Image) (v1.ImageIndex, error) {
	index := v1.ImageIndex(empty.Index)
	for _, img := range images {
		file, err := img.ConfigFile()
		if err != nil {
			return nil, fmt.Errorf("build index: %w", err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: file.OS, Architecture: file.Architecture}}})
	}
	return index, nil
}

func baseLayer() ([]File, error) {
	path, err := Busybox()
	if err != nil {
		return nil, err
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read busybox: %w", err)
	}
	files := []File{
		{Name: "bin/"}, {Name: "etc/"}, {Name: "home/"}, {Name: "root/", Mode: 0o700},
		{Name: "tmp/", Mode: 0o1777}, {Name: "var/"}, {Name: "workspace/"},
		{Name: "bin/busybox", Mode: 0o755, Data: busybox},
		{Name: "etc/passwd", Data: []byte("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:User:/home/user:/bin/sh\n")},
		{Name: "etc/group", Data: []byte("root:x:0:\nuser:x:1000:\nextra:x:2000:user\n")},
	}
	for applet := range strings.FieldsSeq(applets) {
		files = append(files, File{Name: "bin/" + applet, Link: "busybox"})
	}
	return files, nil
}

func makeLayer(files []File) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		if err := w.WriteHeader(f.header()); err != nil {
			return nil, fmt.Errorf("build layer: %w", err)
		}
		if _, err := w.Write(f.Data); err != nil {
			return nil, fmt.Errorf("build layer: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("build layer: %w", err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	})
	if err != nil {
		return nil, fmt.Errorf("build layer: %w", err)
	}
	return layer, nil
}

func (f File) header() *tar.Header {
	h := &tar.Header{Name: filepath.ToSlash(f.Name), Mode: f.Mode, Size: int64(len(f.Data)), Typeflag: tar.TypeReg}
	switch {
	case f.Link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.Link, 0o777
	case strings.HasSuffix(f.Name, "/"):
		h.Typeflag = tar.TypeDir
		if h.Mode == 0 {
			h.Mode = 0o755
		}
	case h.Mode == 0:
		h.Mode = 0o644
	}
	return h
}
