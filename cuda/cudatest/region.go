package cudatest

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/internal/sys"
)

// A kind says what a region is.
type kind uint8

const (
	deviceMemory kind = iota
	hostMemory
	registeredMemory
	mappedMemory
	ipcMemory
)

func (k kind) String() string {
	return [...]string{
		"device allocations", "host allocations", "registrations of host memory", "mappings",
		"IPC mappings",
	}[k]
}

// A region is memory that the driver knows.
type region struct {
	kind   kind
	base   uintptr
	size   int
	owner  *primary       // whose memory it is, or who registered it
	file   *file          // what holds it; nil for registered memory
	access map[int]bool   // of a mapping: the devices that may use it
	share  sys.Allocation // of a mapping
}

func (r *region) end() uintptr { return r.base + uintptr(r.size) }

func (r *region) overlaps(base uintptr, size int) bool {
	return base < r.end() && r.base < base+uintptr(size)
}

// find is the region that holds an address.
func (m *Machine) find(at uintptr) *region {
	i, found := slices.BinarySearchFunc(m.regions, at, func(r *region, at uintptr) int {
		switch {
		case at < r.base:
			return 1
		case at >= r.end():
			return -1
		}
		return 0
	})
	if !found {
		return nil
	}
	return m.regions[i]
}

func (m *Machine) insert(r *region) {
	i, _ := slices.BinarySearchFunc(m.regions, r.base, func(r *region, base uintptr) int {
		if r.base < base {
			return -1
		}
		return 1
	})
	m.regions = slices.Insert(m.regions, i, r)
}

func (m *Machine) remove(r *region) {
	i := slices.Index(m.regions, r)
	m.regions = slices.Delete(m.regions, i, i+1)
}

// starting is the region of a kind that begins at an address.
func (m *Machine) starting(at uintptr, k kind) *region {
	if r := m.find(at); r != nil && r.base == at && r.kind == k {
		return r
	}
	return nil
}

// reach says why a device may not use size bytes at an address, or "".
func (m *Machine) reach(p *primary, at uintptr, size int) string {
	for size > 0 {
		r := m.find(at)
		if gap := m.unified(at); r == nil && gap > 0 {
			n := min(size, gap)
			at += uintptr(n)
			size -= n
			continue
		}
		if r == nil {
			return fmt.Sprintf("%d bytes at %#x are no memory of the machine", size, at)
		}
		switch r.kind {
		case deviceMemory, ipcMemory:
			if r.kind == deviceMemory && r.owner != p && !p.peers[r.owner] {
				return fmt.Sprintf("%#x is device %d's memory, and device %d has no peer access to it", at,
					r.owner.device, p.device)
			}
		case mappedMemory:
			if m.multicasts[r.share] != nil {
				return fmt.Sprintf("%#x is an address of a multicast group, which only multimem instructions access", at)
			}
			if !r.access[p.device] {
				return fmt.Sprintf("%#x is mapped, and device %d has no access to it", at, p.device)
			}
		}
		n := min(size, int(r.end()-at))
		at += uintptr(n)
		size -= n
		if next := m.find(at); size > 0 && next != nil && (next.kind != mappedMemory || r.kind != mappedMemory) {
			return fmt.Sprintf("%d bytes at %#x run over the end of one allocation into another", size, at)
		}
	}
	return ""
}

// firstAddress and lastAddress bound the memory that a process may have, of 47 bits of addresses.
const firstAddress, lastAddress = uintptr(1 << 16), ^uintptr(0) >> 17

// unified is how many bytes from an address on are no allocation of the driver's, if devices reach
// such memory.
func (m *Machine) unified(at uintptr) int {
	if !m.config.Unified || at < firstAddress || at >= lastAddress {
		return 0
	}
	end := lastAddress
	for _, r := range m.regions {
		if r.base <= at && at < r.end() {
			return 0
		}
		if r.base > at {
			end = min(end, r.base)
		}
	}
	return int(end - at)
}

// pinned says whether host memory is.
func (m *Machine) pinned(at uintptr, size int) bool {
	r := m.find(at)
	return r != nil && (r.kind == hostMemory || r.kind == registeredMemory) && at+uintptr(size) <= r.end()
}

// stray loses the context for an access that cannot be.
func (m *Machine) stray(p *primary, call, why string) sys.Result {
	p.lost = sys.Result(cuda.ErrIllegalAddress)
	return m.misuse(cuda.ErrIllegalAddress, "%s: %s", call, why)
}

// lose loses the context for what a kernel did.
func (m *Machine) lose(p *primary, call string, why error) sys.Result {
	code := cuda.ErrLaunchFailed
	errors.As(why, &code)
	p.lost = sys.Result(code)
	return m.misuse(code, "%s: %w", call, why)
}

// view is memory as a slice: at lies outside of Go's heap.
func view(at uintptr, size int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&at))), size)
}

// Bytes is device memory at an address, for a test to look at and to change. It is nil if the
// memory is not all there.
func (m *Machine) Bytes(p cuda.Pointer, size int) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.find(uintptr(p))
	if r == nil || uintptr(p)+uintptr(size) > r.end() {
		return nil
	}
	return view(uintptr(p), size)
}
