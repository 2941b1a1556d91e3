package cudatest

import (
	"encoding/binary"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/internal/sys"
)

// copyCalls move and fill memory.
func (m *Machine) copyCalls(t *sys.Table) {
	t.MemcpyHtoD = func(c sys.Context, dst sys.Pointer, src unsafe.Pointer, n uint64) sys.Result {
		return m.still("cuMemcpyHtoD", c, func(p *primary) sys.Result { return m.upload("cuMemcpyHtoD", p, dst, src, n) })
	}
	t.MemcpyDtoH = func(c sys.Context, dst unsafe.Pointer, src sys.Pointer, n uint64) sys.Result {
		return m.still("cuMemcpyDtoH", c, func(p *primary) sys.Result { return m.download("cuMemcpyDtoH", p, dst, src, n) })
	}
	t.MemcpyHtoDAsync = func(c sys.Context, dst sys.Pointer, src unsafe.Pointer, n uint64, s sys.Stream) sys.Result {
		m.demandPinned("cuMemcpyHtoDAsync", src, n)
		return m.enqueue("cuMemcpyHtoDAsync", c, s,
			func(p *primary) sys.Result { return m.upload("cuMemcpyHtoDAsync", p, dst, src, n) })
	}
	t.MemcpyDtoHAsync = func(c sys.Context, dst unsafe.Pointer, src sys.Pointer, n uint64, s sys.Stream) sys.Result {
		m.demandPinned("cuMemcpyDtoHAsync", dst, n)
		return m.enqueue("cuMemcpyDtoHAsync", c, s,
			func(p *primary) sys.Result { return m.download("cuMemcpyDtoHAsync", p, dst, src, n) })
	}
	t.MemcpyDtoDAsync = func(c sys.Context, dst, src sys.Pointer, n uint64, s sys.Stream) sys.Result {
		return m.enqueue("cuMemcpyDtoDAsync", c, s,
			func(p *primary) sys.Result { return m.move("cuMemcpyDtoDAsync", p, dst, p, src, n) })
	}
	t.MemcpyPeerAsync = func(c sys.Context, dst sys.Pointer, to sys.Context, src sys.Pointer, from sys.Context,
		n uint64, s sys.Stream,
	) sys.Result {
		return m.enqueue("cuMemcpyPeerAsync", c, s, func(*primary) sys.Result {
			a, b := m.context(to), m.context(from)
			if a == nil || b == nil || a.refs == 0 || b.refs == 0 {
				return m.misuse(cuda.ErrInvalidContext, "cuMemcpyPeerAsync from context %#x to %#x", uintptr(from), uintptr(to))
			}
			return m.move("cuMemcpyPeerAsync", a, dst, b, src, n)
		})
	}
	t.MemsetD8Async = func(c sys.Context, dst sys.Pointer, v uint8, n uint64, s sys.Stream) sys.Result {
		return m.enqueue("cuMemsetD8Async", c, s,
			func(p *primary) sys.Result { return m.fill("cuMemsetD8Async", p, dst, []byte{v}, n) })
	}
	t.MemsetD32Async = func(c sys.Context, dst sys.Pointer, v uint32, n uint64, s sys.Stream) sys.Result {
		return m.enqueue("cuMemsetD32Async", c, s, func(p *primary) sys.Result {
			if dst%4 != 0 {
				return m.misuse(cuda.ErrInvalidValue, "cuMemsetD32Async to %#x, which is not aligned", uint64(dst))
			}
			return m.fill("cuMemsetD32Async", p, dst, binary.LittleEndian.AppendUint32(nil, v), n)
		})
	}
}

func (m *Machine) upload(call string, p *primary, dst sys.Pointer, src unsafe.Pointer, n uint64) sys.Result {
	if why := m.reach(p, uintptr(dst), int(n)); why != "" {
		return m.misuse(cuda.ErrInvalidValue, "%s: %s", call, why)
	}
	copy(view(uintptr(dst), int(n)), unsafe.Slice((*byte)(src), n))
	return sys.Success
}

func (m *Machine) download(call string, p *primary, dst unsafe.Pointer, src sys.Pointer, n uint64) sys.Result {
	if why := m.reach(p, uintptr(src), int(n)); why != "" {
		return m.misuse(cuda.ErrInvalidValue, "%s: %s", call, why)
	}
	copy(unsafe.Slice((*byte)(dst), n), view(uintptr(src), int(n)))
	return sys.Success
}

// move copies between two devices, each of which must reach its own end.
func (m *Machine) move(call string, to *primary, dst sys.Pointer, from *primary, src sys.Pointer, n uint64) sys.Result {
	for _, why := range []string{m.reach(to, uintptr(dst), int(n)), m.reach(from, uintptr(src), int(n))} {
		if why != "" {
			return m.misuse(cuda.ErrInvalidValue, "%s: %s", call, why)
		}
	}
	copy(view(uintptr(dst), int(n)), view(uintptr(src), int(n)))
	return sys.Success
}

func (m *Machine) fill(call string, p *primary, dst sys.Pointer, pattern []byte, n uint64) sys.Result {
	size := int(n) * len(pattern)
	if why := m.reach(p, uintptr(dst), size); why != "" {
		return m.misuse(cuda.ErrInvalidValue, "%s: %s", call, why)
	}
	const block = 4 << 10 // a multiple of every pattern
	to := view(uintptr(dst), size)
	for done := copy(to, pattern); done < size; {
		done += copy(to[done:], to[:min(done, block)])
	}
	return sys.Success
}

// demandPinned notes a copy that the device makes later from or to memory that may have moved by
// then.
func (m *Machine) demandPinned(call string, at unsafe.Pointer, n uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.config.Pageable && !m.pinned(uintptr(at), int(n)) {
		m.misuse(cuda.ErrInvalidValue, "%s: the %d bytes at %p of the host are not pinned", call, n, at)
	}
}
