package libfabric

import (
	"testing"
	"unsafe"

	"github.com/weftgo/weft/fabric/internal/provider"
)

// TestDescribeDevice: memory of a GPU is described as fi_mr_regattr wants it, by its address or by a dma-buf.
func TestDescribeDevice(t *testing.T) {
	e := &Endpoint{}
	const address, bytes, key = 0x7f00_0020_1100, 5000, 77
	plain := provider.DeviceMemory{Address: address, Bytes: bytes, GPU: 3, DMABuf: -1}
	if flags := e.describeDevice(plain, key); flags != 0 {
		t.Errorf("flags %#x", flags)
	}
	want := memoryAttr{
		where: uintptr(unsafe.Pointer(&e.out.vector)), count: 1, access: access, key: key, device: deviceCUDA, ordinal: 3,
	}
	if e.out.attr != want || e.out.vector != (vector{address, bytes}) {
		t.Errorf("by its address: %+v, %+v", e.out.attr, e.out.vector)
	}
	exported := plain
	exported.DMABuf, exported.Offset = 9, 0x100
	if flags := e.describeDevice(exported, key); flags != flagDMABuf {
		t.Errorf("flags %#x", flags)
	}
	want.where = uintptr(unsafe.Pointer(&e.out.dmaBuf))
	if e.out.attr != want || e.out.dmaBuf != (dmaBuf{fd: 9, offset: 0x100, length: bytes, base: address - 0x100}) {
		t.Errorf("by a dma-buf: %+v, %+v", e.out.attr, e.out.dmaBuf)
	}
}
