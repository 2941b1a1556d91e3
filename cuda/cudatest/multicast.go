package cudatest

import (
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/internal/sys"
)

// A multicast is a multicast group as one process has it. What all of them share, the devices and what each
// has bound, stands at the beginning of the group's file, which no device can access.
type multicast struct {
	file  *file
	at    uintptr
	bound map[int]*file // by device: what this process has bound
	seen  [mostMembers]struct {
		binding binding
		file    *file
		at      uintptr
	}
}

// mostMembers is how many devices a group may have.
const mostMembers = 128

const multicastMagic = 0x7765667463617374

// shared is the beginning of a group's file.
type shared struct {
	magic          uint64
	devices, added atomic.Uint32
	members        [mostMembers]struct {
		device atomic.Uint32 // 1 more than its ordinal; 0: none yet
		bound  atomic.Uint32
		binding
	}
}

// binding says where a device's part is: a file of a process.
type binding struct{ process, descriptor int32 }

func (c *multicast) shared() *shared {
	return (*shared)(unsafe.Pointer(unsafe.SliceData(view(c.at, int(unsafe.Sizeof(shared{}))))))
}

// newMulticast opens a group's file.
func newMulticast(f *file) (*multicast, error) {
	at, err := f.mapAnywhere()
	return &multicast{file: f, at: at, bound: map[int]*file{}}, err
}

// member is the index of a device among the group's, or -1.
func (c *multicast) member(d int) int {
	s := c.shared()
	for i := range s.devices.Load() {
		if s.members[i].device.Load() == uint32(d)+1 {
			return int(i)
		}
	}
	return -1
}

// close gives back all that the process has of the group.
func (c *multicast) close() {
	for i := range c.seen {
		c.forget(i)
	}
	_ = unmap(c.at, c.file.size)
}

func (c *multicast) forget(i int) {
	if o := &c.seen[i]; o.file != nil {
		_ = unmap(o.at, o.file.size)
		o.file.close()
		o.file = nil
	}
}

// memory is where the process sees a member's part; 0: nothing is bound, or the process is gone.
func (c *multicast) memory(i int) uintptr {
	m, o := &c.shared().members[i], &c.seen[i]
	if m.bound.Load() == 0 {
		return 0
	}
	if o.file != nil && o.binding == m.binding {
		return o.at
	}
	c.forget(i)
	f, err := openOf(int(m.process), int(m.descriptor), int(m.device.Load())-1)
	if err != nil {
		return 0
	}
	at, err := f.mapAnywhere()
	if err != nil {
		f.close()
		return 0
	}
	o.binding, o.file, o.at = m.binding, f, at
	return at
}

// multicastCalls make groups of memory of several devices.
func (m *Machine) multicastCalls(t *sys.Table) {
	t.MulticastGetGranularity = func(out *uint64, _ *sys.MulticastProp, _ int32) sys.Result {
		return m.call("cuMulticastGetGranularity", func() sys.Result {
			*out = granularity
			return sys.Success
		})
	}
	t.MulticastCreate = func(out *sys.Allocation, prop *sys.MulticastProp) sys.Result {
		return m.call("cuMulticastCreate", func() sys.Result {
			if prop.Devices == 0 || prop.Devices > mostMembers || prop.Size == 0 || prop.Size%granularity != 0 ||
				prop.HandleTypes&^sys.MemHandleTypePosixFD != 0 || prop.Flags != 0 {
				return m.misuse(cuda.ErrInvalidValue, "cuMulticastCreate with %+v", *prop)
			}
			if m.config.Attributes[cuda.Multicast] == 0 {
				return sys.Result(cuda.ErrNotSupported)
			}
			f, err := newFile(int(prop.Size), 0)
			if err != nil {
				return sys.Result(cuda.ErrOutOfMemory)
			}
			f.types = int32(prop.HandleTypes)
			c, err := newMulticast(f)
			if err != nil {
				f.close()
				return sys.Result(cuda.ErrOutOfMemory)
			}
			c.shared().magic = multicastMagic
			c.shared().devices.Store(prop.Devices)
			*out = m.share(f)
			m.multicasts[*out] = c
			return sys.Success
		})
	}
	t.MulticastAddDevice = func(h sys.Allocation, d sys.Device) sys.Result {
		return m.group("cuMulticastAddDevice", h, d, func(c *multicast) sys.Result {
			s := c.shared()
			i := s.added.Add(1) - 1
			if i >= s.devices.Load() || c.member(int(d)) >= 0 {
				return m.misuse(cuda.ErrInvalidValue, "cuMulticastAddDevice of device %d to %d of %d devices", d, i,
					s.devices.Load())
			}
			s.members[i].device.Store(uint32(d) + 1)
			return sys.Success
		})
	}
	t.MulticastBindMem = func(in sys.Context, h sys.Allocation, offset uint64, memory sys.Allocation,
		from, size, _ uint64,
	) sys.Result {
		p := m.context(in)
		if p == nil {
			return sys.Result(cuda.ErrInvalidContext)
		}
		return m.group("cuMulticastBindMem", h, sys.Device(p.device), func(c *multicast) sys.Result {
			f, s := m.shares[memory], c.shared()
			if m.refs[memory] == 0 || m.multicasts[memory] != nil || offset != 0 || from != 0 || int(size) != c.file.size ||
				f.size < c.file.size || s.added.Load() != s.devices.Load() || f.types&c.file.types != c.file.types {
				return m.misuse(cuda.ErrInvalidValue, "cuMulticastBindMem of %d bytes at %d of %#x at %d, with %d of %d devices",
					size, from, uint64(memory), offset, s.added.Load(), s.devices.Load())
			}
			i := c.member(f.device)
			if i < 0 || s.members[i].bound.Load() != 0 {
				return m.misuse(cuda.ErrInvalidValue, "cuMulticastBindMem of device %d's memory", f.device)
			}
			s.members[i].binding = binding{int32(process()), int32(f.fd)}
			s.members[i].bound.Store(1)
			c.bound[f.device] = f
			return sys.Success
		})
	}
	t.MulticastUnbind = func(h sys.Allocation, d sys.Device, offset, size uint64) sys.Result {
		return m.group("cuMulticastUnbind", h, d, func(c *multicast) sys.Result {
			i := c.member(int(d))
			if i < 0 || c.bound[int(d)] == nil || offset != 0 || int(size) != c.file.size {
				return m.misuse(cuda.ErrInvalidValue, "cuMulticastUnbind of %d bytes of device %d", size, d)
			}
			c.shared().members[i].bound.Store(0)
			delete(c.bound, int(d))
			return sys.Success
		})
	}
}

// group runs a call about a multicast group.
func (m *Machine) group(call string, h sys.Allocation, d sys.Device, do func(*multicast) sys.Result) sys.Result {
	return m.deviceCall(call, d, func() sys.Result {
		c := m.multicasts[h]
		if c == nil || m.refs[h] == 0 {
			return m.misuse(cuda.ErrInvalidValue, "%s of %#x, which is no multicast group", call, uint64(h))
		}
		return do(c)
	})
}

// join notes that an imported file is a multicast group, if it is one.
func (m *Machine) join(h sys.Allocation) sys.Result {
	c, err := newMulticast(m.shares[h])
	if err != nil {
		return sys.Result(cuda.ErrOutOfMemory)
	}
	if c.shared().magic == multicastMagic {
		m.multicasts[h] = c
		return sys.Success
	}
	c.close()
	return sys.Success
}

// binds says whether a multicast group has a file's memory.
func (m *Machine) binds(f *file) bool {
	for _, c := range m.multicasts {
		if c.bound[f.device] == f {
			return true
		}
	}
	return false
}

// A Replica is one device's memory behind addresses of a multicast group, from Base to before End.
type Replica struct {
	Base, End uint64
	Memory    uint64 // where this process sees what is at Base
	Devices   uint32 // of the group: with fewer replicas it may not be accessed
	Peer      uint32 // 1: another device's
}

// Replicas are the memory of all devices behind the multicast addresses that the kernel's device can access.
// No [Range] has these addresses.
func (c *Call) Replicas() (all []Replica) {
	c.machine.mu.Lock()
	defer c.machine.mu.Unlock()
	if len(c.machine.multicasts) == 0 {
		return nil
	}
	for _, r := range c.machine.regions {
		group := c.machine.multicasts[r.share]
		if r.kind != mappedMemory || group == nil || !r.access[c.context.device] {
			continue
		}
		s := group.shared()
		for i := range int(s.devices.Load()) {
			at := group.memory(i)
			if at == 0 {
				continue
			}
			replica := Replica{Base: uint64(r.base), End: uint64(r.end()), Memory: uint64(at), Devices: s.devices.Load()}
			if s.members[i].device.Load() != uint32(c.context.device)+1 {
				replica.Peer = 1
			}
			all = append(all, replica)
		}
	}
	return all
}
