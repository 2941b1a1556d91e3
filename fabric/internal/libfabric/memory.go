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
	const access = accessRead | accessWrite | accessRemoteWrite
	start := unsafe.SliceData(bytes)
	if err := e.check("fi_mr_reg", e.domain.mr.at(opRegister).Call(dl.Word(e.domain), dl.Word(start),
		uintptr(len(bytes)), access, 0, uintptr(key), 0, dl.Word(&e.out.memory), 0)); err != nil {
		return nil, err
	}
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
		m.base = uint64(dl.Word(start))
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
