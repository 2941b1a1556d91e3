//go:build !linux

package cudatest

import "github.com/weftgo/weft/cuda"

const supported = false

// Nothing below is reached: Open refuses.
type file struct {
	size    int
	device  int
	types   int32
	counted *primary // whose memory it takes; nil for what was imported
	fd      int
}

func newFile(int, int) (*file, error)         { return nil, cuda.ErrUnsupported }
func duplicate(int, int) (*file, error)       { return nil, cuda.ErrUnsupported }
func openOf(int, int, int) (*file, error)     { return nil, cuda.ErrUnsupported }
func (f *file) descriptor() (int, error)      { return 0, cuda.ErrUnsupported }
func (f *file) close()                        {}
func (f *file) mapAnywhere() (uintptr, error) { return 0, cuda.ErrUnsupported }
func (f *file) mapAt(uintptr) error           { return cuda.ErrUnsupported }
func allow(uintptr, int) error                { return cuda.ErrUnsupported }
func reserve(int) (uintptr, error)            { return 0, cuda.ErrUnsupported }
func vacate(uintptr, int) error               { return cuda.ErrUnsupported }
func unmap(uintptr, int) error                { return cuda.ErrUnsupported }
func thread() int                             { return 0 }
func process() int                            { return 0 }
