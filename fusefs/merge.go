package fusefs

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/git-env/git-env/fusefs/layer"
)

// MergeOptions say which layers to merge into one.
type MergeOptions struct {
	// Exe is the program that has the hidden command fusefs.
	Exe      string
	LayerDir string
	// Tree is the id of the git tree under the stack.
	Tree string
	// Run are the layers to merge, bottom to top. Nobody writes to them any more.
	// Below is what is under them.
	Below, Run []string
	// Out is the id of the new layer.
	Out string
	// Log gets messages; nil for none.
	Log *os.File
}

// ErrDamagedRun reports layers that are not merged because a part of them
// cannot be read: what is left of it is where it is.
var ErrDamagedRun = errors.New("layers are damaged")

// Merge makes one layer with the net effect of several, which stay as they are.
// It takes the time of what is in them; a process of its own, with low priority,
// does it, and dies with this one. Out is complete when it returns nil, and when
// its Meta can be read; else it is rubbish.
func Merge(ctx context.Context, o MergeOptions) error {
	hold, life, err := os.Pipe()
	if err != nil {
		return err
	}
	defer life.Close()
	defer hold.Close()
	cmd := exec.CommandContext(ctx, o.Exe, "fusefs", "merge", "--layers", o.LayerDir, "--tree", o.Tree,
		"--below", strings.Join(o.Below, ","), "--run", strings.Join(o.Run, ","), "--out", o.Out)
	cmd.Dir, cmd.Stdin = "/", hold
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if o.Log != nil {
		cmd.Stdout, cmd.Stderr = o.Log, o.Log
	}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == exitDamagedRun {
		return ErrDamagedRun
	}
	if err != nil {
		return fmt.Errorf("merging layers: %w", err)
	}
	return nil
}

const exitDamagedRun = 3

// mergeMain is the process that merges. It leaves when its standard input ends.
func mergeMain(args []string, logger *log.Logger) int {
	var o MergeOptions
	flags := flag.NewFlagSet("merge", flag.ContinueOnError)
	flags.StringVar(&o.LayerDir, "layers", "", "directory of layers")
	flags.StringVar(&o.Tree, "tree", "", "tree underneath")
	flags.StringVar(&o.Out, "out", "", "layer to make")
	below := flags.String("below", "", "layers underneath")
	run := flags.String("run", "", "layers to merge")
	if err := flags.Parse(args); err != nil || o.LayerDir == "" || o.Out == "" || *run == "" {
		logger.Print("for internal use: git-env starts this itself")
		return 129
	}
	o.Below, o.Run = splitList(*below), splitList(*run)
	// Of all threads; who is served comes first.
	if err := unix.Setpriority(unix.PRIO_PGRP, 0, 19); err != nil {
		logger.Printf("priority: %v", err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	err := merge(o)
	switch {
	case errors.Is(err, ErrDamagedRun):
		return exitDamagedRun
	case err != nil:
		logger.Printf("merging layers %s: %v", *run, err)
		return 1
	}
	return 0
}

func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

// merge does the work of Merge in this process.
func merge(o MergeOptions) (err error) {
	t, err := mergeTree(o.Tree)
	if err != nil {
		return err
	}
	m := newMerger(t)
	layers, err := replayFor(o, t, m)
	if err != nil {
		return err
	}
	first := len(o.Below)
	base := layers[first].Meta()
	meta := layer.Meta{
		Version: layer.Version, ID: o.Out, Parent: base.Parent, StartSeq: base.StartSeq, FirstIno: base.FirstIno,
		Sealed: true,
	}
	for _, l := range layers[first:] {
		meta.Replaces = append(meta.Replaces, l.Meta().Originals()...)
	}
	w, err := layer.NewWriter(filepath.Join(o.LayerDir, o.Out), meta)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			w.Abandon()
		}
	}()
	for _, l := range layers[first:] {
		if err := w.TakeExtras(l); err != nil {
			return err
		}
	}
	err = m.describe(int16(first), func(r *layer.Record) error {
		if r.Kind == layer.KindNode && r.Flags&layer.NodeData != 0 {
			if err := linkData(w, layers[t.nodes[r.Ino].data], r.Ino); err != nil {
				return err
			}
		}
		return w.Append(r)
	})
	if err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := verifyMerge(o, t, w); err != nil {
		return err
	}
	return w.Finish()
}

func mergeTree(id string) (*tree, error) { return newTree(id, treeTime, treeID, treeID) }

// replayFor applies the layers under the run and then, noting them, those of it.
func replayFor(o MergeOptions, t *tree, m *merger) ([]*layer.Layer, error) {
	var layers []*layer.Layer
	for i, id := range append(append([]string{}, o.Below...), o.Run...) {
		l, err := layer.Open(filepath.Join(o.LayerDir, id), false)
		if err != nil {
			return nil, err
		}
		fn := t.apply
		if i >= len(o.Below) {
			fn = m.apply
		}
		if err := replayWith(l, int16(i), t, fn); err != nil {
			return nil, err
		}
		if t.lenient {
			return nil, fmt.Errorf("%w: %s", ErrDamagedRun, id)
		}
		layers = append(layers, l)
	}
	return layers, nil
}

// linkData puts the data file of ino in a layer into the one being made, unless
// it was lost with the power before it was synced.
func linkData(w *layer.Writer, from *layer.Layer, ino uint64) error {
	err := w.LinkData(from, ino)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if !errors.Is(err, unix.EMLINK) {
		return err
	}
	src, err := os.Open(from.DataPath(ino))
	if err != nil {
		return err
	}
	defer src.Close()
	st, err := src.Stat()
	if err != nil {
		return err
	}
	dst, err := w.CreateData(ino)
	if err != nil {
		return err
	}
	defer dst.Close()
	if err := fill(backingFile{fd: int(dst.Fd())}, &fdRef{backingFile: backingFile{fd: int(src.Fd())}}, st.Size()); err != nil {
		return err
	}
	if err := os.Chtimes(dst.Name(), st.ModTime(), st.ModTime()); err != nil {
		return err
	}
	return dst.Sync()
}

// verifyMost bounds for how many nodes a merge is checked.
const verifyMost = 500_000

// verifyMerge replays what was written and compares.
func verifyMerge(o MergeOptions, want *tree, w *layer.Writer) error {
	if len(want.nodes) > verifyMost {
		return nil
	}
	got, err := mergeTree(o.Tree)
	if err != nil {
		return err
	}
	for i, id := range o.Below {
		l, err := layer.Open(filepath.Join(o.LayerDir, id), false)
		if err != nil {
			return err
		}
		if err := replayWith(l, int16(i), got, got.apply); err != nil {
			return err
		}
	}
	if err := replayWith(w.Layer(), int16(len(o.Below)), got, got.apply); err != nil {
		return err
	}
	if diff := want.differs(got, int16(len(o.Below))); diff != "" {
		return fmt.Errorf("bug: the merged layer differs: %s", diff)
	}
	return nil
}
