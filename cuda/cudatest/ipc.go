package cudatest

import (
	"encoding/binary"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/internal/sys"
)

// What an IPC handle of this package says: where the memory's file is, and of which machine.
const (
	ipcMagic   = 0x7765667463756461
	ipcProcess = 8
	ipcFile    = 16
	ipcMachine = 24
)

// ipcCalls share device memory with other processes, and between machines of one process, which
// play them.
func (m *Machine) ipcCalls(t *sys.Table) {
	t.IpcGetMemHandle = func(c sys.Context, out *sys.IpcHandle, at sys.Pointer) sys.Result {
		return m.contextCall("cuIpcGetMemHandle", c, func(*primary) sys.Result {
			r := m.find(uintptr(at))
			if r == nil || r.kind != deviceMemory {
				return sys.Result(cuda.ErrInvalidValue)
			}
			binary.LittleEndian.PutUint64(out[:], ipcMagic)
			binary.LittleEndian.PutUint64(out[ipcProcess:], uint64(process()))
			binary.LittleEndian.PutUint64(out[ipcFile:], uint64(r.file.fd))
			binary.LittleEndian.PutUint64(out[ipcMachine:], uint64(m.identity()))
			return sys.Success
		})
	}
	t.IpcOpenMemHandle = func(c sys.Context, out *sys.Pointer, h sys.IpcHandle, _ uint32) sys.Result {
		return m.still("cuIpcOpenMemHandle", c, func(p *primary) sys.Result {
			pid, fd := binary.LittleEndian.Uint64(h[ipcProcess:]), binary.LittleEndian.Uint64(h[ipcFile:])
			switch {
			case binary.LittleEndian.Uint64(h[:]) != ipcMagic:
				return sys.Result(cuda.ErrInvalidValue)
			case pid == uint64(process()) && binary.LittleEndian.Uint64(h[ipcMachine:]) == uint64(m.identity()):
				return m.misuse(cuda.ErrInvalidContext, "cuIpcOpenMemHandle of the process's own memory")
			}
			f, err := openOf(int(pid), int(fd), p.device)
			if err != nil {
				return sys.Result(cuda.ErrInvalidValue)
			}
			base, err := f.mapAnywhere()
			if err != nil {
				f.close()
				return sys.Result(cuda.ErrOutOfMemory)
			}
			m.insert(&region{kind: ipcMemory, base: base, size: f.size, owner: p, file: f})
			*out = sys.Pointer(base)
			return sys.Success
		})
	}
	t.IpcCloseMemHandle = func(c sys.Context, at sys.Pointer) sys.Result {
		return m.still("cuIpcCloseMemHandle", c, func(p *primary) sys.Result {
			r := m.starting(uintptr(at), ipcMemory)
			if r == nil {
				return m.misuse(cuda.ErrInvalidValue, "cuIpcCloseMemHandle of %#x, which is not open", uint64(at))
			}
			if result := m.own("cuIpcCloseMemHandle", "mapping", r.owner, p); result != sys.Success {
				return result
			}
			return m.free(r)
		})
	}
}

// identity tells the machines of a process apart.
func (m *Machine) identity() uintptr { return uintptr(unsafe.Pointer(m)) }
