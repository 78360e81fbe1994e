package fusefs

import (
	"errors"
	"io"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// A small file is copied up by way of memory. What is to be written to it is
// put in its place there, so that the data file is made with one write, and only
// then does the log tell of it.

// smallCopy is up to how many bytes reading and writing is faster than asking
// the file system for more.
const smallCopy = 16 << 10

// piece is what is to be written at an offset; nothing if data is empty.
type piece struct {
	off  int64
	data []byte
}

// upContent is what is to be copied up: text when it is in memory, else src, nil
// for nothing.
type upContent struct {
	src  *fdRef
	text []byte
	room *scratchRoom // has text
	more bool         // text has a piece in it
}

// upContent returns the content of ino. Its shard is held.
func (w *workspace) upContent(ino uint64) (c upContent, st fuse.Status) {
	c.room = w.blobs.rooms.get()
	n, st, done := w.readLower(ino, 0, c.room[:memoryBlob])
	switch {
	case !done:
		c.src, st = w.backing(ino)
	case st.Ok():
		c.text = c.room[:n]
	}
	if !st.Ok() {
		c.release(w)
	}
	return c, st
}

// add puts p into the first size bytes of the content and reports whether it
// could.
func (c *upContent) add(size int64, p piece) bool {
	if len(p.data) == 0 || p.off > size || p.off+int64(len(p.data)) > int64(len(c.room)) || !c.load(size) {
		return false
	}
	end := p.off + int64(len(p.data))
	c.text = c.room[:max(size, end)]
	c.more = true
	copy(c.room[p.off:], p.data)
	return true
}

// load brings the first size bytes into memory if that is worth it.
func (c *upContent) load(size int64) bool {
	switch {
	case c.room == nil, c.src == nil && size > int64(len(c.text)):
		return false
	case c.src == nil:
		c.text = c.room[:size]
		return true
	case size > smallCopy:
		return false
	}
	n, err := c.src.ReadAt(c.room[:size], 0)
	if int64(n) < size || err != nil && !errors.Is(err, io.EOF) {
		return false // copying it tells
	}
	c.text = c.room[:size]
	return true
}

// fill makes dst have the first size bytes of the content, and what was added.
func (c *upContent) fill(dst backingFile, size int64) error {
	if !c.more && !c.load(size) {
		return fill(dst, c.src, size)
	}
	_, err := dst.WriteAt(c.text, 0)
	return err
}

func (c *upContent) release(w *workspace) {
	if c.src != nil {
		w.fds.release(c.src)
	}
	if c.room != nil {
		w.blobs.rooms.put(c.room)
	}
}
