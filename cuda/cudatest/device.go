package cudatest

import (
	"fmt"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/internal/sys"
)

// attributes are those of an H200, as far as tests ask.
var attributes = map[cuda.Attribute]int{
	cuda.MaxThreadsPerBlock: 1024, cuda.MaxGridX: 1<<31 - 1, cuda.WarpSize: 32, cuda.MultiprocessorCount: 132,
	cuda.SharedMemoryPerBlock: 48 << 10, cuda.SharedMemoryPerBlockOptIn: 227 << 10,
	cuda.SharedMemoryPerMultiprocessor: 228 << 10,
	cuda.ReservedSharedMemoryPerBlock:  1 << 10, cuda.RegistersPerBlock: 65536, cuda.RegistersPerMultiprocessor: 65536,
	cuda.ThreadsPerMultiprocessor: 2048, cuda.BlocksPerMultiprocessor: 32, cuda.ComputeCapabilityMajor: 9,
	cuda.ComputeCapabilityMinor: 0,
	cuda.CopyEngines:            3, cuda.StreamPriorities: 1, cuda.CooperativeLaunch: 1, cuda.ClusterLaunch: 1,
	cuda.CanMapHostMemory: 1,
	cuda.HostRegister:     1, cuda.ReadOnlyHostRegister: 1, cuda.HostPointerForRegistered: 1,
	cuda.UnifiedAddressing: 1, cuda.VirtualMemory: 1,
	cuda.HandleTypeFD: 1, cuda.GPUDirectRDMA: 1, cuda.GPUDirectRDMAVirtual: 1, cuda.TensorMap: 1,
	cuda.L2CacheSize: 60 << 20,
}

// deviceCalls asks about devices and handles their contexts.
func (m *Machine) deviceCalls(t *sys.Table) {
	t.Init = func(uint32) sys.Result { return m.call("cuInit", func() sys.Result { return sys.Success }) }
	t.DriverGetVersion = func(v *int32) sys.Result {
		return m.call("cuDriverGetVersion", func() sys.Result { *v = int32(m.config.Version); return sys.Success })
	}
	t.GetErrorName = func(code sys.Result, p **byte) sys.Result { return m.errorText(code, p, sys.CodeName(code)) }
	t.GetErrorString = func(code sys.Result, p **byte) sys.Result {
		return m.errorText(code, p, "cudatest says "+sys.CodeName(code))
	}
	t.DeviceGetCount = func(n *int32) sys.Result {
		return m.call("cuDeviceGetCount", func() sys.Result { *n = int32(len(m.devices)); return sys.Success })
	}
	t.DeviceGet = func(d *sys.Device, ordinal int32) sys.Result {
		return m.call("cuDeviceGet", func() sys.Result { *d = sys.Device(ordinal); return m.device(*d) })
	}
	t.DeviceGetName = func(p *byte, n int32, d sys.Device) sys.Result {
		return m.deviceCall("cuDeviceGetName", d, func() sys.Result {
			name := "cudatest"
			if names := m.config.Names; len(names) > 0 {
				name = names[int(d)%len(names)]
			}
			text(p, n, name)
			return sys.Success
		})
	}
	t.DeviceGetPCIBusID = func(p *byte, n int32, d sys.Device) sys.Result {
		return m.deviceCall("cuDeviceGetPCIBusId", d, func() sys.Result {
			text(p, n, fmt.Sprintf("0000:%02x:00.0", 0x1b+d))
			return sys.Success
		})
	}
	t.DeviceGetUUID = func(u *sys.UUID, d sys.Device) sys.Result {
		return m.deviceCall("cuDeviceGetUuid", d, func() sys.Result {
			*u = sys.UUID{0: 0xcd, 15: byte(d)}
			return sys.Success
		})
	}
	t.DeviceGetAttribute = func(v *int32, a int32, d sys.Device) sys.Result {
		return m.deviceCall("cuDeviceGetAttribute", d, func() sys.Result {
			value, replaced := m.config.Attributes[cuda.Attribute(a)]
			if !replaced {
				value = attributes[cuda.Attribute(a)]
			}
			*v = int32(value)
			return sys.Success
		})
	}
	t.DeviceTotalMem = func(n *uint64, d sys.Device) sys.Result {
		return m.deviceCall("cuDeviceTotalMem", d, func() sys.Result { *n = m.config.Memory; return sys.Success })
	}
	t.DeviceCanAccessPeer = func(can *int32, d, peer sys.Device) sys.Result {
		return m.deviceCall("cuDeviceCanAccessPeer", d, func() sys.Result { *can = m.linked(d, peer); return m.device(peer) })
	}
	t.DeviceGetP2PAttribute = func(v *int32, a int32, from, to sys.Device) sys.Result {
		return m.deviceCall("cuDeviceGetP2PAttribute", from, func() sys.Result {
			if a != sys.P2PPerformanceRank {
				*v = m.linked(from, to)
			}
			return m.device(to)
		})
	}
	m.contextCalls(t)
}

func (m *Machine) contextCalls(t *sys.Table) {
	t.DevicePrimaryCtxRetain = func(c *sys.Context, d sys.Device) sys.Result {
		return m.deviceCall("cuDevicePrimaryCtxRetain", d, func() sys.Result {
			m.devices[d].refs++
			*c = m.devices[d].handle
			return sys.Success
		})
	}
	t.DevicePrimaryCtxRelease = func(d sys.Device) sys.Result {
		return m.deviceCall("cuDevicePrimaryCtxRelease", d, func() sys.Result {
			p := m.devices[d]
			if p.refs == 0 {
				return m.misuse(cuda.ErrInvalidContext, "the context of device %d was released more often than retained", d)
			}
			p.refs--
			if p.refs == 0 {
				p.lost = sys.Success
			}
			return sys.Success
		})
	}
	t.CtxSetCurrent = func(c sys.Context) sys.Result {
		return m.call("cuCtxSetCurrent", func() sys.Result {
			p := m.context(c)
			if c != 0 && (p == nil || p.refs == 0) {
				return m.misuse(cuda.ErrInvalidContext, "context %#x made current, which is not held", uintptr(c))
			}
			m.current[thread()] = p
			return sys.Success
		})
	}
	t.CtxGetCurrent = func(c *sys.Context) sys.Result {
		return m.call("cuCtxGetCurrent", func() sys.Result {
			if p := m.current[thread()]; p != nil {
				*c = p.handle
			}
			return sys.Success
		})
	}
	t.CtxSynchronize = func(c sys.Context) sys.Result {
		return m.still("cuCtxSynchronize", c, func(p *primary) sys.Result {
			for p.busy > 0 {
				m.idle.Wait()
			}
			return p.lost
		})
	}
	t.CtxGetStreamPriorityRange = func(c sys.Context, least, greatest *int32) sys.Result {
		return m.contextCall("cuCtxGetStreamPriorityRange", c,
			func(*primary) sys.Result { *least, *greatest = 0, -5; return sys.Success })
	}
	t.CtxEnablePeerAccess = func(c, peer sys.Context, _ uint32) sys.Result {
		return m.contextCall("cuCtxEnablePeerAccess", c, func(p *primary) sys.Result {
			q := m.context(peer)
			switch {
			case q == nil || q.refs == 0 || q == p:
				return m.misuse(cuda.ErrInvalidContext, "peer access of device %d to context %#x", p.device, uintptr(peer))
			case m.config.NoPeers:
				return sys.Result(cuda.ErrPeerUnsupported)
			case p.peers[q]:
				return sys.Result(cuda.ErrPeerAlreadyEnabled)
			}
			p.peers[q] = true
			return sys.Success
		})
	}
	t.CtxDisablePeerAccess = func(c, peer sys.Context) sys.Result {
		return m.contextCall("cuCtxDisablePeerAccess", c, func(p *primary) sys.Result {
			q := m.context(peer)
			if !p.peers[q] {
				return sys.Result(cuda.ErrPeerNotEnabled)
			}
			delete(p.peers, q)
			return sys.Success
		})
	}
}

// call runs a call that needs no context.
func (m *Machine) call(name string, do func() sys.Result) sys.Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.enter(name); r != sys.Success {
		return r
	}
	return do()
}

// deviceCall runs a call about a device.
func (m *Machine) deviceCall(name string, d sys.Device, do func() sys.Result) sys.Result {
	return m.call(name, func() sys.Result {
		if r := m.device(d); r != sys.Success {
			return r
		}
		return do()
	})
}

// contextCall runs a call in a context.
func (m *Machine) contextCall(name string, c sys.Context, do func(*primary) sys.Result) sys.Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, r := m.in(name, c)
	if r != sys.Success {
		return r
	}
	return do(p)
}

// still is contextCall for what the thread may not do while it captures.
func (m *Machine) still(name string, c sys.Context, do func(*primary) sys.Result) sys.Result {
	return m.contextCall(name, c, func(p *primary) sys.Result {
		if r := m.hindered(name); r != sys.Success {
			return r
		}
		for capture := range m.running {
			if capture.thread != thread() {
				continue
			}
			capture.invalid = true
			return m.misuse(cuda.ErrCaptureUnsupported, "%s during a capture", name)
		}
		return do(p)
	})
}

func (m *Machine) device(d sys.Device) sys.Result {
	if d < 0 || int(d) >= len(m.devices) {
		return sys.Result(cuda.ErrInvalidDevice)
	}
	return sys.Success
}

func (m *Machine) linked(a, b sys.Device) int32 {
	if a == b || m.config.NoPeers {
		return 0
	}
	return 1
}

// errorText keeps the text where C would have it: for ever.
func (m *Machine) errorText(code sys.Result, p **byte, s string) sys.Result {
	if sys.CodeName(code) == "" {
		return sys.Result(cuda.ErrInvalidValue)
	}
	*p = sys.CString(s)
	return sys.Success
}

func text(p *byte, n int32, s string) { copy(unsafe.Slice(p, n), s+"\x00") }
