package libfabric

import (
	"unsafe"

	"github.com/weftgo/weft/fabric/internal/provider"
	"github.com/weftgo/weft/internal/dl"
)

// memory is a registered region.
type memory struct {
	endpoint *Endpoint
	object   *memoryObject
	base     uint64
}

// Register registers memory for writes by peers, and as a source of writes.
func (e *Endpoint) Register(bytes []byte, key uint64) (provider.Memory, error) {
	start := unsafe.SliceData(bytes)
	if err := e.check("fi_mr_reg", e.domain.mr.at(opRegister).Call(dl.Word(e.domain), dl.Word(start),
		uintptr(len(bytes)), access, 0, uintptr(key), 0, dl.Word(&e.out.memory), 0)); err != nil {
		return nil, err
	}
	return e.granted(dl.Word(start))
}

// access is what regions are for.
const access = accessRead | accessWrite | accessRemoteWrite

// RegisterDevice implements [provider.DeviceEndpoint].
func (e *Endpoint) RegisterDevice(d provider.DeviceMemory, key uint64) (provider.Memory, error) {
	register := e.domain.mr.at(opRegAttr)
	if register == 0 {
		return nil, e.failure("fi_mr_regattr", codeNoFunction)
	}
	flags := e.describeDevice(d, key)
	err := e.check("fi_mr_regattr", register.Call(dl.Word(e.domain), dl.Word(&e.out.attr), uintptr(flags),
		dl.Word(&e.out.memory)))
	if err != nil {
		return nil, err
	}
	return e.granted(d.Address)
}

// describeDevice fills in what fi_mr_regattr takes, and gives its flags.
func (e *Endpoint) describeDevice(d provider.DeviceMemory, key uint64) (flags uint64) {
	e.out.attr = memoryAttr{count: 1, access: access, key: key, device: deviceCUDA, ordinal: uint64(d.GPU)}
	if d.DMABuf < 0 {
		e.out.vector = vector{base: d.Address, length: uint64(d.Bytes)}
		e.out.attr.where = dl.Word(&e.out.vector)
		return 0
	}
	e.out.dmaBuf = dmaBuf{
		fd: int32(d.DMABuf), offset: uint64(d.Offset), length: uint64(d.Bytes), base: d.Address - uintptr(d.Offset),
	}
	e.out.attr.where = dl.Word(&e.out.dmaBuf)
	return flagDMABuf
}

// granted is the memory that the library has registered, which begins at an address.
func (e *Endpoint) granted(address uintptr) (provider.Memory, error) {
	m := &memory{endpoint: e, object: e.out.memory}
	e.memory[m] = struct{}{}
	if e.mrMode&mrEndpoint != 0 {
		err := e.check("fi_mr_bind", m.object.ops.at(opBind).Call(dl.Word(m.object), dl.Word(e.ep), 0))
		if err == nil {
			err = e.check("fi_mr_enable", m.object.ops.at(opControl).Call(dl.Word(m.object), controlEnable, 0))
		}
		if err != nil {
			_ = m.Close() // the first error tells more
			return nil, err
		}
	}
	if e.mrMode&mrVirtual != 0 {
		m.base = uint64(address)
	}
	return m, nil
}

func (m *memory) Base() uint64 { return m.base }

func (m *memory) Key() uint64 { return m.object.key }

func (m *memory) Close() error {
	if _, open := m.endpoint.memory[m]; !open {
		return nil
	}
	delete(m.endpoint.memory, m)
	return m.endpoint.check("fi_close of memory", m.object.ops.at(opClose).Call(dl.Word(m.object)))
}
