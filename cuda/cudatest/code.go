package cudatest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/internal/sys"
)

// Code is a kernel of an image.
type Code struct {
	Parameters []Parameter
	Shared     int // bytes of static shared memory of a block
	Threads    int // of a block, at most; 0 means 1024
	// Run runs a launch of it. Its arguments lie at the offsets of the parameters, are aligned to
	// 16 bytes and its own. An error loses the context, with the [cuda.Code] that it wraps or else
	// with [cuda.ErrLaunchFailed]. Run is called without any lock.
	Run func(c *Call, arguments []byte) error
}

// A Parameter is where one argument lies among all, in bytes.
type Parameter struct{ Offset, Size int }

// imageMark begins the images that Image makes. Their length and the code follow.
const imageMark = "\x7fcudatest image\n"

// Image is an image of code that [Machine.Loader] understands.
func Image(code []byte) []byte {
	head := binary.LittleEndian.AppendUint64([]byte(imageMark), uint64(len(code)))
	return append(head, code...)
}

// Loader says how modules are loaded from what [Image] made: load gives the image's kernels by
// name, which go before those of [Machine.Kernel]. It is called with the machine locked and must
// not use it. If it fails the module does not load.
func (m *Machine) Loader(load func(code []byte) (map[string]Code, error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.loader = load
}

// code is the content of an image. An image that Image did not make has nothing.
func (m *Machine) code(image *byte) (map[string]Code, sys.Result) {
	head := make([]byte, 0, len(imageMark)+8)
	for len(head) < cap(head) {
		if len(head) < len(imageMark) && !bytes.Equal(head, []byte(imageMark[:len(head)])) {
			return nil, sys.Success
		}
		head = append(head, *(*byte)(unsafe.Add(unsafe.Pointer(image), len(head))))
	}
	if !bytes.HasPrefix(head, []byte(imageMark)) {
		return nil, sys.Success
	}
	if m.loader == nil {
		return nil, m.misuse(cuda.ErrInvalidValue, "an image of code, and the machine has no Loader")
	}
	size := int(binary.LittleEndian.Uint64(head[len(imageMark):]))
	code, err := m.loader(slices.Clone(unsafe.Slice(image, len(head)+size)[len(head):]))
	if err != nil {
		return nil, m.misuse(cuda.ErrInvalidValue, "load an image: %w", err)
	}
	return code, sys.Success
}

// threads is how many a block may have.
func (c Code) threads() int {
	if c.Threads == 0 {
		return attributes[cuda.MaxThreadsPerBlock]
	}
	return c.Threads
}

// copy lays out the arguments of a launch.
func (c Code) copy(arguments []unsafe.Pointer) []byte {
	size := 0
	for _, p := range c.Parameters {
		size = max(size, p.Offset+p.Size)
	}
	words := make([][2]uint64, (size+15)/16+1)
	all := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*16)
	for i, p := range c.Parameters {
		copy(all[p.Offset:p.Offset+p.Size], unsafe.Slice((*byte)(arguments[i]), p.Size))
	}
	return all[:size:size]
}

// A Range is memory from Base to before End.
type Range struct {
	Base, End uint64
	Peer      bool // another device's, or the host's
}

// Ranges are the memory that the kernel's device can access, in order. Mappings that touch are one
// range if they are on one device.
func (c *Call) Ranges() []Range {
	c.machine.mu.Lock()
	defer c.machine.mu.Unlock()
	var all []Range
	var last *region
	for _, r := range c.machine.regions {
		if r.size == 0 || c.machine.reach(c.context, r.base, 1) != "" {
			continue
		}
		if last != nil && last.end() == r.base && last.kind == mappedMemory && r.kind == mappedMemory &&
			last.owner == r.owner {
			all[len(all)-1].End = uint64(r.end())
		} else {
			host := r.kind == hostMemory || r.kind == registeredMemory
			all = append(all, Range{Base: uint64(r.base), End: uint64(r.end()), Peer: host || r.owner != c.context})
		}
		last = r
	}
	if c.machine.config.Unified {
		return c.machine.between(all)
	}
	return all
}

// between adds to ranges the gaps between the driver's allocations.
func (m *Machine) between(ranges []Range) []Range {
	at := firstAddress
	for at < lastAddress {
		if gap := m.unified(at); gap > 0 {
			ranges = append(ranges, Range{Base: uint64(at), End: uint64(at) + uint64(gap)})
			at += uintptr(gap)
		} else {
			at = m.find(at).end()
		}
	}
	slices.SortFunc(ranges, func(a, b Range) int { return cmp.Compare(a.Base, b.Base) })
	return ranges
}
