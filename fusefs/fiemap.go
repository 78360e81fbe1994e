package fusefs

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// span is a range of bytes in a file.
type span struct{ start, end int64 }

// unallocated returns the parts of a range of f that have no blocks yet, in order.
// It may take parts for unallocated that are not, where the file system does not
// say.
func unallocated(f *fdRef, start, end int64) ([]span, error) {
	mapped, err := extents(f.fd, start, end)
	if err != nil {
		if mapped, err = dataIn(f, start, end); err != nil {
			return nil, err
		}
	}
	var holes []span
	for _, m := range mapped {
		if m.start > start {
			holes = append(holes, span{start, min(m.start, end)})
		}
		start = max(start, m.end)
	}
	if start < end {
		holes = append(holes, span{start, end})
	}
	return holes, nil
}

// dataIn asks for data, which is less than what is allocated.
func dataIn(f *fdRef, start, end int64) ([]span, error) {
	var list []span
	for off := start; off < end; {
		from, err := unix.Seek(f.fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		to, err := unix.Seek(f.fd, from, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		if from < end {
			list = append(list, span{from, to})
		}
		off = to
	}
	return list, nil
}

// <linux/fiemap.h>
type (
	fiemapHead struct {
		start, length        uint64
		flags, mapped, count uint32
		_                    uint32
	}
	fiemapExtent struct {
		logical, physical, length uint64
		_                         [2]uint64
		flags                     uint32
		_                         [3]uint32
	}
)

const (
	ioctlFiemap = 0xc020660b
	extentLast  = 1
)

// extents returns what is allocated in a range, also what nothing was written to
// yet.
func extents(fd int, start, end int64) ([]span, error) {
	var req struct {
		head fiemapHead
		ext  [32]fiemapExtent
	}
	var list []span
	for start < end {
		req.head = fiemapHead{start: uint64(start), length: uint64(end - start), count: uint32(len(req.ext))}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ioctlFiemap, uintptr(unsafe.Pointer(&req))); errno != 0 {
			return nil, errno
		}
		for i := range min(int(req.head.mapped), len(req.ext)) {
			e := &req.ext[i]
			s := span{int64(e.logical), int64(e.logical + e.length)}
			list = append(list, s)
			if e.flags&extentLast != 0 {
				return list, nil
			}
			start = max(start, s.end)
		}
		if int(req.head.mapped) < len(req.ext) {
			return list, nil
		}
	}
	return list, nil
}
